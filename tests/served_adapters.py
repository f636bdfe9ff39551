"""A server with adapters, and calls of its API and its admin API."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from api_client import JSON, ApiClient
from local_server import LocalServer, serving_model
from waiting import until

PROMPT = [3, 4, 5, 6]
COMPLETIONS = "/v1/completions"


class Tuned(NamedTuple):
    api: LocalServer
    admin: ApiClient
    # Folders of adapters, and PEFT's output for the prompt, by name; "" for the base model.
    folders: dict[str, Path]
    expected: dict[str, list[int]]
    # The state of each adapter when the server became ready.
    at_start: dict[str, str]


@contextmanager
def serving(
    model: Path, folders: dict[str, Path], expected: dict[str, list[int]], *flags: str
) -> Iterator[Tuned]:
    """Serve a model named "base", and its admin API, until the block ends."""
    flags += ("--enable-admin", "--admin-port=0", "--drain-grace=0")
    with serving_model(*flags, model=str(model), names=["base"], ready=False) as server:
        until(lambda: server.get("/ready").status == 200, "the server's start")
        listed = server.admin.get("/adapters").json["adapters"]
        yield Tuned(server, server.admin, folders, expected, {one["name"]: one["state"] for one in listed})
        assert server.end() == 0


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


def put(tuned: Tuned, /, **wanted: Path) -> Any:
    content = {"adapters": [{"name": name, "uri": str(uri)} for name, uri in wanted.items()]}
    return tuned.admin.request("PUT", "/adapters", content, JSON)


def states(tuned: Tuned) -> dict[str, Any]:
    return {one["name"]: one for one in tuned.admin.get("/adapters").json["adapters"]}
