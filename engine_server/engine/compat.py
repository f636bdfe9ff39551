"""Older spellings of parameters, and vLLM's parameters that have no effect here."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engine_server.contract.base.quoting import quote
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.prompts import PromptType
from engine_server.requests.validation import text

# Types whose empty value, False or 0 means that a parameter was not given.
PLAIN = (bool, int, str, list, tuple, dict)


def one_prompt(prompt: PromptType | None, inputs: PromptType | None) -> PromptType:
    """Return the prompt; `inputs` is the parameter's older name."""
    if prompt is not None and inputs is not None:
        raise InvalidRequestError("prompt and inputs are one parameter; give one of them", "inputs")
    given = inputs if prompt is None else prompt
    if given is None:
        raise InvalidRequestError("there is no prompt", "prompt")
    return given


def request_key(request_id: str | int) -> str:
    """Return a request id as a string; an integer becomes its decimal digits."""
    if isinstance(request_id, bool) or not isinstance(request_id, str | int):
        raise InvalidRequestError(f"request_id is {quote(request_id)}; it takes a string", "request_id")
    return text("request_id", request_id if isinstance(request_id, str) else str(int(request_id)))


def request_keys(request_ids: str | int | Iterable[str]) -> list[str]:
    """Return one request id or several as a list of strings."""
    if isinstance(request_ids, str | int):
        return [request_key(request_ids)]
    return list(request_ids)


def refuse(**parameters: object) -> None:
    """Raise InvalidRequestError for the first parameter that is given, since it would be ignored."""
    for name, value in parameters.items():
        if value is not None and (not isinstance(value, PLAIN) or value):
            raise InvalidRequestError(f"{name} is not supported yet; leave it out", name)


def rpc_arguments(
    method: object, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[str, list[Any], dict[str, Any]]:
    """Return the arguments of collective_rpc; a function is refused, since only pickle could send it."""
    if not isinstance(method, str):
        raise TypeError(f"method is {method!r}; it takes the name of a method of the executor")
    return method, list(args), dict(kwargs or {})
