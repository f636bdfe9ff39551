"""`hf://org/name[@revision]`: download from a hub, configured by HF_ENDPOINT, HF_HOME and HF_TOKEN."""

import logging
import sys
from pathlib import Path

from engine_server.contract.model_uri import HubRepository
from engine_server.models.errors import ModelSourceError
from engine_server.models.store import step

ALLOWED = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken"]
IGNORED = ["original/*", "onnx/*", "consolidated*"]  # the same weights in formats that are not used


def download(source: HubRepository, into: Path | None = None) -> Path:
    """Download a repository into the hub's cache, or into `into`; return its folder. Raises ModelSourceError."""
    from huggingface_hub import constants, errors, snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # warnings about retries carry tracebacks
    if not sys.stderr.isatty():
        disable_progress_bars()
    name = f"hf://{source.repository}" + (f"@{source.revision}" if source.revision else "")
    where = constants.ENDPOINT
    try:
        with step(f"fetching {name} from {where}"):
            found = snapshot_download(
                source.repository,
                revision=source.revision,
                local_dir=into,
                allow_patterns=ALLOWED,
                ignore_patterns=IGNORED,
            )
    except errors.GatedRepoError as error:
        raise ModelSourceError(
            f"{name}: access to this repository at {where} must be granted to you; then set HF_TOKEN"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelSourceError(
            f"{name}: {where} has no such repository, or it is private and HF_TOKEN does not open it"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelSourceError(
            f"{name}: the repository at {where} has no revision {source.revision}"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        cause = error.__cause__ or error
        if isinstance(cause, errors.OfflineModeIsEnabled):
            reason = "HF_HUB_OFFLINE is set"
        else:
            reason = f"{where} cannot be reached ({type(cause).__name__}: {cause})"
        raise ModelSourceError(
            f"{name}: {reason}, and the model is not complete in the cache {constants.HF_HUB_CACHE}"
        ) from error
    except Exception as error:  # the library passes on any error of its HTTP library
        raise ModelSourceError(f"{name}: {where} failed: {error}") from error
    return Path(found)
