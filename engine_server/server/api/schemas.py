"""The schemas of a request, of its tools and of the answer's form, as a grammar can enforce them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from engine_server.contract.wire.errors import ErrorCode
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.structured_outputs import to_json
from engine_server.server.api.ignored import IgnoredPart
from engine_server.server.conversation.calls.narrowed import narrowed_parts
from engine_server.server.http.errors import ApiError, refusal
from engine_server.structured.errors import GrammarError
from engine_server.structured.schema import parse_json
from engine_server.structured.schemas.errors import SchemaError
from engine_server.structured.schemas.relaxed import Relaxed
from engine_server.structured.schemas.relaxed import refusal as refusal_of_part
from engine_server.structured.schemas.together import SchemaCache

if TYPE_CHECKING:
    from engine_server.requests.structured_outputs import StructuredOutputsParams
    from engine_server.server.api.generation_request import GenerationRequest
    from engine_server.server.conversation.calls.form import CallForm
    from engine_server.server.conversation.layout import Layout
    from engine_server.server.generation.tool_use import AnswerStyle, ToolUse

CACHE = SchemaCache()


class RequestSchemas(NamedTuple):
    """What the request's grammar is made of."""

    style: AnswerStyle | None
    # The grammar of the form that the request asks for.
    form: StructuredOutputsParams | None
    # What of the schemas is not enforced.
    relaxed: tuple[IgnoredPart, ...] = ()


def request_schemas(body: GenerationRequest, layout: Layout | None, strict: bool) -> RequestSchemas:
    """Return a request's style and form with relaxed schemas. Raises ApiError 400.

    layout: that of the model's answers. strict: refuse what would be relaxed.
    """
    try:
        style, form = body.answer_style, body.grammar.params if body.grammar else None
    except InvalidRequestError as error:
        raise refusal(error, body.engine_fields) from None
    use = style.tools if style is not None else None
    schemas = tool_schemas(use) if use is not None else {}
    form_path = body.form_path if form is not None and form.json is not None else None
    if form is not None and form_path is not None:
        schemas[form_path] = form_schema(form, form_path)
    if not schemas:
        return RequestSchemas(style, form)
    try:
        outcomes = dict(CACHE.relax(schemas, strict))
    except OverflowError:
        raise ApiError(ErrorCode.INVALID_VALUE, "a schema has a number of more than 64 bits") from None
    if layout is not None and layout.call is not None:
        tools = [path for path in outcomes if path != form_path]
        outcomes |= {path: as_called(outcomes[path], layout.call, path, strict) for path in tools}
    relaxed: dict[IgnoredPart, None] = {}
    usable: dict[str, Any] = {}
    for path, outcome in outcomes.items():
        if isinstance(outcome, SchemaError):
            if strict or path == form_path or use is None or path in needed_tools(use):
                raise refuse_schema(body, outcome, path == form_path)
            relaxed[IgnoredPart(outcome.path, outcome.kind)] = None
        else:
            usable[path] = outcome.schema
            relaxed |= dict.fromkeys(IgnoredPart(part.path, part.reason) for part in outcome.parts)
    if form is not None and form_path is not None:
        form = msgspec.structs.replace(form, json=to_json(form_path, usable[form_path]))
    if style is not None and use is not None:
        style = replace(style, tools=replace(use, schemas=usable))
    return RequestSchemas(style, form, tuple(relaxed))


def tool_schemas(use: ToolUse) -> dict[str, Any]:
    """Return the schemas that calls are held to, by their paths."""
    held = use.callable if use.choice == "required" else use.strict
    names = {tool["function"]["name"] for tool in held}
    return {
        path: schema
        for path, tool in zip(use.paths, use.definitions, strict=False)
        if tool["function"]["name"] in names and (schema := tool["function"].get("parameters"))
    }


def as_called(
    outcome: Relaxed | SchemaError, form: CallForm, path: str, strict: bool
) -> Relaxed | SchemaError:
    """Return the outcome of a tool's schema with what the form of the model's calls adds to it."""
    if isinstance(outcome, SchemaError):
        return outcome
    try:
        parts = narrowed_parts(form, outcome.schema, path)
    except SchemaError as error:
        return error
    return refusal_of_part(parts[0]) if strict and parts else outcome._replace(parts=(*outcome.parts, *parts))


def needed_tools(use: ToolUse) -> set[str]:
    """Return the paths of the tools that can't be called with any arguments: strict ones, and the named one."""
    return {
        path
        for path, tool in zip(use.paths, use.definitions, strict=False)
        if tool in use.strict or tool["function"]["name"] == use.name
    }


def form_schema(form: StructuredOutputsParams, path: str) -> Any:
    try:
        return parse_json(str(form.json), path)
    except GrammarError as error:
        raise ApiError(ErrorCode.INVALID_VALUE, str(error), param=path) from None


def refuse_schema(body: GenerationRequest, error: SchemaError, of_form: bool) -> ApiError:
    """Return the error of a schema that can't be used."""
    part = IgnoredPart(error.path, "")
    field = body.engine_fields["structured_outputs"] if of_form else part.path
    return ApiError(ErrorCode.INVALID_VALUE, f"{part.path}: {error}", param=field)
