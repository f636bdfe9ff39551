"""Schemas that only the library of grammars finds to be of no use, such as a pattern that contradicts a length.

They are found where the grammar of an answer fails, each by a grammar of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from engine_server.contract.base.quoting import quote
from engine_server.requests.errors import InvalidRequestError
from engine_server.server.api.ignored import IgnoredPart, ignored_types
from engine_server.server.api.schemas import needed_tools, refuse_schema
from engine_server.server.conversation.grammar import call_grammar
from engine_server.server.http.errors import refusal
from engine_server.structured.schemas.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from engine_server.requests.structured_outputs import StructuredOutputsParams
    from engine_server.server.api.generation_request import GenerationRequest
    from engine_server.server.generation.plan import AnswerRequest, GenerationPlan
    from engine_server.server.generation.tool_use import ToolUse
    from engine_server.server.loaded_model import LoadedModel


async def unusable_schemas(
    model: LoadedModel, body: GenerationRequest, plan: GenerationPlan
) -> list[IgnoredPart]:
    """Return the schemas of tools that must be left out of a plan's grammars; [] for grammars that can be used.

    Raises ApiError 400 for a schema that can't be left out, and the errors of a full queue.
    """
    use, form = use_of(plan.request), plan.request.params.structured_outputs
    tools = held_tools(use) if use is not None else {}
    form_paths = [body.form_path] if form is not None and form.json is not None else []
    if not tools and not form_paths:
        return []

    def parts() -> list[StructuredOutputsParams]:
        calls = (
            [call_grammar(model.layout, use, name) for name in tools.values()] if use and model.layout else []
        )
        return [*calls, form] if form is not None else calls

    faults = await find_faults(model, body, plan, [*tools, *form_paths], parts)
    needed = needed_tools(use) if use is not None else set()
    for path, fault in faults.items():
        if path in form_paths:
            raise refuse_schema(body, SchemaError(path, fault), of_form=True)
        if model.settings.strict_schemas or path in needed:
            message = f"the schema of the tool {quote(tools[path])} can't be used: {fault}"
            raise refuse_schema(body, SchemaError(path, message), of_form=False)
    unusable = [IgnoredPart(path, "unusable") for path in faults]
    ignored_types.warn(part.type for part in unusable)
    return unusable


async def find_faults(
    model: LoadedModel,
    body: GenerationRequest,
    plan: GenerationPlan,
    paths: Sequence[str],
    parts: Callable[[], Sequence[StructuredOutputsParams]],
) -> dict[str, str]:
    """Return the schemas that make one of a plan's grammars fail, by their paths, with the reasons.

    parts: returns the grammars of the schemas, in the order of the paths.
    """
    faults: dict[str, str] = {}
    tried: list[StructuredOutputsParams] = []
    for prompt in plan.prompts:
        grammar = prompt.params.structured_outputs
        if grammar is None or grammar in tried:
            continue
        tried.append(grammar)
        try:
            found = await model.engine.find_faults(grammar, parts, plan.request.context.origin.caller)
        except InvalidRequestError as error:
            raise refusal(error, body.engine_fields) from None
        faults |= {paths[index]: fault for index, fault in found.items()}
    return faults


def without_schemas(request: AnswerRequest, unusable: Sequence[IgnoredPart]) -> AnswerRequest:
    """Return a request without some of its tools' schemas; any arguments are then allowed."""
    style, use = request.style, use_of(request)
    assert style is not None and use is not None
    paths = {part.field for part in unusable}
    schemas = {path: schema for path, schema in (use.schemas or {}).items() if path not in paths}
    return replace(request, style=replace(style, tools=replace(use, schemas=schemas)))


def use_of(request: AnswerRequest) -> ToolUse | None:
    return request.style.tools if request.style is not None else None


def held_tools(use: ToolUse) -> dict[str, str]:
    """Return the names of the tools whose calls are held to their schemas, by the schemas' paths."""
    return {
        path: tool["function"]["name"]
        for path, tool in zip(use.paths, use.definitions, strict=False)
        if path in (use.schemas or {})
    }
