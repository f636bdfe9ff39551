"""A server with adapters, and calls of its API and its admin API."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

PROMPT = [3, 4, 5, 6]
COMPLETIONS = "/v1/completions"
JSON = {"Content-Type": "application/json"}


class Tuned(NamedTuple):
    api: Any
    admin: Any
    # Folders of adapters, and PEFT's output for the prompt, by name; "" for the base model.
    folders: dict[str, Path]
    expected: dict[str, list[int]]


@contextmanager
def serving(
    start_server: Callable[..., Any], model: Path, folders: dict[str, Path], expected: dict[str, list[int]], *flags: str
) -> Iterator[Tuned]:  # fmt: skip
    """Serve a model named "base", and its admin API, until the block ends."""
    server = start_server(
        *flags, "--enable-admin", "--admin-port=0", "--drain-grace=0", model=str(model), names=["base"]
    )
    port = int(server.wait_for_line(r"admin API listening on http://127\.0\.0\.1:(\d+)")[1])
    server.wait_for_line("^phase ready ")
    yield Tuned(server, type(server)(server.process, port=port), folders, expected)
    assert server.end(signal.SIGTERM) == 0


def body(model: str, **fields: Any) -> dict[str, Any]:
    return {
        "model": model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True,
        "return_token_ids": True, **fields,
    }  # fmt: skip


def tokens(tuned: Tuned, model: str, **given: str) -> list[int]:
    answer = tuned.api.request("POST", COMPLETIONS, body(model), given)
    assert answer.status == 200, answer.body
    return answer.json["choices"][0]["token_ids"]


def load(tuned: Tuned, name: str, folder: Path, **fields: Any) -> Any:
    content = {"lora_name": name, "lora_path": str(folder), **fields}
    return tuned.admin.request("POST", "/v1/load_lora_adapter", content, JSON)


def unload(tuned: Tuned, name: str) -> Any:
    return tuned.admin.request("POST", "/v1/unload_lora_adapter", {"lora_name": name}, JSON)


def put(tuned: Tuned, **wanted: Path) -> Any:
    content = {"adapters": [{"name": name, "uri": str(uri)} for name, uri in wanted.items()]}
    return tuned.admin.request("PUT", "/adapters", content, JSON)


def states(tuned: Tuned) -> dict[str, Any]:
    return {one["name"]: one for one in tuned.admin.get("/adapters").json["adapters"]}
