"""Older spellings of the same thing, and parameters that can do nothing here yet."""

from collections.abc import Iterable

from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.prompts import PromptType


def one_prompt(prompt: PromptType | None, inputs: PromptType | None) -> PromptType:
    """`inputs` is what `prompt` was called once."""
    if prompt is not None and inputs is not None:
        raise InvalidRequestError("prompt and inputs are one parameter; give one of them", "inputs")
    given = inputs if prompt is None else prompt
    if given is None:
        raise InvalidRequestError("there is no prompt", "prompt")
    return given


def request_key(request_id: str | int) -> str:
    """Request ids are strings; an integer becomes its decimal digits."""
    if isinstance(request_id, bool) or not isinstance(request_id, str | int):
        raise InvalidRequestError(f"request_id is {request_id!r}; it takes a string", "request_id")
    return str(request_id)


def request_keys(request_ids: str | int | Iterable[str]) -> list[str]:
    """One request id or several, as a list of strings."""
    if isinstance(request_ids, str | int):
        return [request_key(request_ids)]
    return list(request_ids)


def refuse(**parameters: object) -> None:
    """Refuse by name what was given and would be ignored: every value must be empty, or 0."""
    for name, value in parameters.items():
        if value:
            raise InvalidRequestError(f"{name} is not supported yet; leave it out", name)
