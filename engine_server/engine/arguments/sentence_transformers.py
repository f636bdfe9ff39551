"""The modules and prompts in sentence-transformers' files of a model's folder.

Nothing is imported: classes and activations are names in a table here. Nothing outside of the folder is read. The
meaning of the files is that of sentence-transformers 6.2 (base/modules, cross_encoder/modules, base/model.py).
"""

from collections import ChainMap
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar, get_args

import msgspec

from engine_server.config import DenseActivation, DenseModule, NormalizeModule, Pooling
from engine_server.contract.base.quoting import quote
from engine_server.model_sources.settings_tables import (
    DENSE,
    ENCODER,
    ENTRY,
    LOGIT_SCORE,
    NORMALIZE,
    POOLING,
    SENTENCE_TRANSFORMERS,
)

MODULES, SETTINGS = "modules.json", "config_sentence_transformers.json"
# The first that a folder has holds the encoder's settings; older versions named it after the model's class.
ENCODER_SETTINGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
MODEL_TYPES = "SentenceTransformer", "CrossEncoder"
POOLINGS: dict[str, Pooling] = {
    "cls": "CLS", "cls_token": "CLS", "mean": "MEAN", "mean_tokens": "MEAN", "lasttoken": "LAST",
}  # fmt: skip
ACTIVATIONS: tuple[DenseActivation, ...] = get_args(DenseActivation)
# Modules that other libraries have too, and compute differently.
OWN_MODULES = ("Dense", "LogitScore")
# Arguments of apply_chat_template that decide about the text; the others are about its tokens.
TEMPLATE_ARGUMENTS = ("add_generation_prompt", "continue_final_message")
T = TypeVar("T")


class Module(msgspec.Struct):
    """An entry of modules.json."""

    type: str
    path: str

    @property
    def kind(self) -> str:
        """The name of its class, with that of its package for another library's."""
        name = self.type.rpartition(".")[2]
        foreign = name in OWN_MODULES and not self.type.startswith("sentence_transformers.")
        return self.type if foreign else name


class DenseSettings(msgspec.Struct):
    """A Dense module's config.json."""

    in_features: int
    out_features: int
    bias: bool = True
    activation_function: str = "torch.nn.modules.activation.Tanh"
    use_residual: bool = False


class LogitScoreSettings(msgspec.Struct):
    """A LogitScore module's config.json."""

    true_token_id: int
    false_token_id: int | None = None


class ModelSettings(msgspec.Struct):
    """The settings in config_sentence_transformers.json."""

    model_type: str | None = None
    named: dict[str, str | None] | None = msgspec.field(default=None, name="prompts")
    default_prompt_name: str | None = None
    # Class of the activation of a cross-encoder's scores.
    activation_fn: str | None = None
    truncate_dim: int | None = None

    @property
    def prompts(self) -> dict[str, str]:
        """The texts of the prompts, by their names."""
        return {name: text or "" for name, text in (self.named or {}).items()}

    @property
    def default_prompt(self) -> str | None:
        """The text of the default prompt; None: there is none."""
        return self.prompts.get(self.default_prompt_name or "") or None


class ProcessingArguments(msgspec.Struct):
    """Arguments of the processor, in sentence_bert_config.json."""

    chat_template: dict[str, Any] | None = None


class EncoderSettings(msgspec.Struct):
    """The settings in sentence_bert_config.json."""

    do_lower_case: bool | None = None
    max_seq_length: float | None = None
    processing_kwargs: ProcessingArguments | None = None

    @property
    def template_arguments(self) -> dict[str, Any]:
        """The arguments of the chat template that texts are rendered by."""
        given = self.processing_kwargs.chat_template if self.processing_kwargs else None
        return {name: value for name, value in (given or {}).items() if name in TEMPLATE_ARGUMENTS}


@dataclass(frozen=True, slots=True)
class Modules:
    """What follows the model's hidden states."""

    # None: modules.json doesn't say.
    pooling: Pooling | None = None
    # The layers after pooling; a scaling to length 1 at the end is `normalize`.
    layers: list[DenseModule | NormalizeModule] = field(default_factory=list)
    normalize: bool = False
    # The negative and the positive answer, or the positive one alone.
    score_tokens: list[int] = field(default_factory=list)

    @property
    def size(self) -> int | None:
        """Length of the embeddings; None: that of the hidden states."""
        sizes = [layer.out_features for layer in self.layers if isinstance(layer, DenseModule)]
        return sizes[-1] if sizes else None


def read_modules(folder: Path, text_config: Any) -> Modules | None:
    """Return the modules of a model; None if modules.json has none. Raises ValueError for one that isn't supported.

    text_config: transformers' configuration of the part that reads texts.
    """
    entries = read(folder / MODULES, list[Module])
    if not entries:
        return None
    ENTRY.check(dict(ChainMap(*needed(folder / MODULES, list[dict[str, Any]]))), str(folder / MODULES))
    for entry in entries:
        check_path(folder, entry.path)
    following = [entry for entry in entries if entry.kind != "Transformer"]
    pooling: Pooling | None = None
    match [entry.kind for entry in following]:
        case ["LogitScore"]:
            return Modules(score_tokens=score_tokens(folder / following[0].path / "config.json"))
        case ["Pooling", *_]:
            pooling = pooling_mode(folder, following[0].path)
            layers = following[1:]
        case _:
            layers = following
    modules: list[DenseModule | NormalizeModule] = []
    size: int | None = None
    for entry in layers:
        if entry.kind == "Normalize":
            file = folder / entry.path / "config.json"
            NORMALIZE.check(read(file, dict[str, Any]) or {}, str(file))
            modules.append(NormalizeModule())
        elif entry.kind == "Dense" and pooling is not None:
            dense = dense_module(folder, entry.path, size or text_config.hidden_size)
            modules.append(dense)
            size = dense.out_features
        else:
            raise ValueError(
                f"{folder / MODULES} has {entry.kind} after {'Pooling' if pooling else 'the encoder'}, which is not "
                "supported; Pooling and then Dense and Normalize are, or LogitScore alone"
            )
    normalize = bool(modules) and isinstance(modules[-1], NormalizeModule)
    while modules and isinstance(modules[-1], NormalizeModule):
        modules.pop()
    return Modules(pooling, modules, normalize)


def read_settings(folder: Path) -> ModelSettings:
    """Return the prompts and other settings of the whole model. Raises ValueError."""
    settings = read(folder / SETTINGS, ModelSettings) or ModelSettings()
    if settings.model_type not in (None, *MODEL_TYPES):
        raise ValueError(
            f"{folder / SETTINGS} has model_type {quote(settings.model_type)}, which is not supported; it takes "
            f"{' and '.join(MODEL_TYPES)}"
        )
    name = settings.default_prompt_name
    if name is not None and name not in settings.prompts:
        raise ValueError(
            f"{folder / SETTINGS} has {name!r} as default_prompt_name, which none of its prompts is"
        )
    return settings


def read_encoder_settings(folder: Path) -> EncoderSettings:
    """Return the settings of the encoder. Raises ValueError."""
    return read(encoder_file(folder), EncoderSettings) or EncoderSettings()


def encoder_file(folder: Path) -> Path:
    """Return the file with the settings of the encoder, whether the folder has it or not."""
    files = [folder / name for name in ENCODER_SETTINGS]
    return next((file for file in files if file.is_file()), files[0])


def check_settings(folder: Path) -> None:
    """Raise ValueError for settings of the whole model or of the encoder that are refused, and log unknown ones."""
    for file, table in ((folder / SETTINGS, SENTENCE_TRANSFORMERS), (encoder_file(folder), ENCODER)):
        table.check(read(file, dict[str, Any]) or {}, str(file))


def check_path(folder: Path, path: str) -> None:
    """Raise ValueError for a module's folder that is not in the model's."""
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts or "\\" in path or "\0" in path:
        raise ValueError(f"{folder / MODULES} has the path {path!r}; it takes folders in the model's own")


def pooling_mode(folder: Path, path: str) -> Pooling:
    """Return the mode of a Pooling module: one setting, else a flag per mode of older files, else the mean.

    Raises ValueError.
    """
    file = folder / path / "config.json"
    settings = needed(file, dict[str, Any])
    POOLING.check(settings, str(file))
    if settings.get("include_prompt") is False and any(read_settings(folder).prompts.values()):
        raise ValueError(
            f"{file} has include_prompt false; pooling takes all tokens of a text and its prompt"
        )
    prefix = "pooling_mode_"
    modes = settings.get("pooling_mode") or [
        key.removeprefix(prefix) for key, value in settings.items() if key.startswith(prefix) and value
    ]
    mode = " and ".join(map(str, modes)) if isinstance(modes, list) else str(modes)
    mode = mode or "mean"
    if mode not in POOLINGS:
        raise ValueError(f"{file}: pooling by {mode} isn't supported; by {', '.join(POOLINGS)} is")
    return POOLINGS[mode]


def dense_module(folder: Path, path: str, in_features: int) -> DenseModule:
    """Return a Dense module that takes vectors of `in_features` numbers. Raises ValueError."""
    file = folder / path / "config.json"
    settings = needed(file, DenseSettings)
    DENSE.check(needed(file, dict[str, Any]), str(file))
    package, _, name = settings.activation_function.rpartition(".")
    activation = next((own for own in ACTIVATIONS if own == name), None)
    if activation is None or not package.startswith("torch.nn"):
        raise ValueError(
            f"{file} has {settings.activation_function} as activation_function; of torch.nn it takes "
            f"{', '.join(ACTIVATIONS)}"
        )
    if settings.in_features != in_features or settings.out_features < 1:
        raise ValueError(
            f"{file} has {settings.in_features} in_features and {settings.out_features} out_features; the vectors "
            f"before it have {in_features} numbers"
        )
    return DenseModule(
        path=path,
        in_features=in_features,
        out_features=settings.out_features,
        bias=settings.bias,
        activation=activation,
        residual=settings.use_residual,
    )


def score_tokens(file: Path) -> list[int]:
    """Return the tokens of a LogitScore module: the negative answer and the positive one, or the latter alone."""
    settings = needed(file, LogitScoreSettings)
    LOGIT_SCORE.check(needed(file, dict[str, Any]), str(file))
    both = settings.false_token_id, settings.true_token_id
    return [token for token in both if token is not None]


def needed(file: Path, kind: type[T]) -> T:
    """Return the content of a JSON file. Raises ValueError."""
    content = read(file, kind)
    if content is None:
        raise ValueError(f"{file} is missing, which modules.json needs")
    return content


def read(file: Path, kind: type[T]) -> T | None:
    """Return the content of a JSON file; None if there is no file. Raises ValueError."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind) if file.is_file() else None
    except (OSError, msgspec.MsgspecError, UnicodeError) as error:
        raise ValueError(f"{file} can't be read: {error}") from error
