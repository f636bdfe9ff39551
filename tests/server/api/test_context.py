"""The context of a request: all that a router says in its head, and all that the engine is told beside the prompt."""

from collections.abc import Iterable
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any, cast

from compat.by_router import write_requests, write_resumes
from compat.http_text import parse_message
from compat.sample import ADAPTER
from compat.scripted_engine import EngineServer, ScriptedAdapters
from starlette.datastructures import Headers

from engine_server.contract.wire.router_head import RouterHead
from engine_server.requests.adapters import LoRARequest, PromptAdapterRequest
from engine_server.requests.submission import Origin
from engine_server.server.adapters import ServedAdapter
from engine_server.server.api.context import request_context

LORA = ServedAdapter("uri", LoRARequest("lora", 1, "/lora"), None, "digest")
PROMPT = ServedAdapter("uri", None, PromptAdapterRequest("prompt", 1, "/prompt", 4), "digest")


def headers_of(message: bytes, *others: tuple[bytes, bytes]) -> Headers:
    """Return the headers of a request as the server has them."""
    found = [*parse_message(message).headers, *others]
    return Headers(raw=[(name.lower(), value) for name, value in found])


def told(values: Iterable[Any], names: Iterable[str], nothing: Any) -> set[str]:
    """Return the fields in which one of the values differs from the one that says nothing."""
    return {name for name in names for one in values if getattr(one, name) != getattr(nothing, name)}


def test_the_engine_reads_each_field_of_a_head_and_the_router_writes_it() -> None:
    messages = [*write_requests().values(), *write_resumes().values()]
    names = RouterHead.__struct_fields__

    assert told([RouterHead.parse(headers_of(one)) for one in messages], names, RouterHead()) == set(names)


def test_the_engine_is_told_all_that_accompanies_a_request() -> None:
    model = replace(EngineServer().host.model, traces=True)
    cast(ScriptedAdapters, model.adapters).loaded.update({ADAPTER: LORA, "prompt": PROMPT})
    headers = headers_of(write_requests()[ADAPTER], (b"traceparent", b"00-1-2-01"))
    names = [field.name for field in fields(Origin)]

    of_router = request_context(model, SimpleNamespace(model="any", priority=3, timeout=None), headers)
    of_client = request_context(model, SimpleNamespace(model="prompt", priority=0, timeout=None), {})

    assert of_router.origin.lora_request == LORA.lora
    assert of_router.origin.caller == of_router.router.caller
    assert of_client.origin.prompt_adapter_request == PROMPT.prompt_adapter
    assert told([of_router.origin, of_client.origin], names, Origin()) == set(names)
