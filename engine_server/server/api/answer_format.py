"""The part of a request's path that concerns reasoning and tool calls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine_server.server.generation.answer_parser import AnswerParser, PlainText
from engine_server.server.generation.prompts import ChatTurns
from engine_server.server.http.errors import ApiError
from engine_server.server.parsers.described_tools import describe_tools, with_text_arguments
from engine_server.server.parsers.tool_grammar import call_grammar

if TYPE_CHECKING:
    from engine_server.server.engine_host import EngineHost
    from engine_server.server.generation.generation import Generation
    from engine_server.server.parsers.model_format import ModelFormat
    from engine_server.server.parsers.tool_use import AnswerStyle, ToolUse


def load_format(host: EngineHost) -> None:
    """Find the model's format. Raises ValueError for a response template that is invalid."""
    if host.tokenizer is None:
        return
    from engine_server.server.parsers.model_format import find_format  # imports transformers

    file = host.settings.response_template
    host.answer_format = find_format(host.tokenizer, Path(file) if file else None)


def with_tools(turns: ChatTurns, format: ModelFormat | None, use: ToolUse | None) -> ChatTurns:
    """Return a conversation with its tools as the chat template takes them. Raises ApiError 400."""
    if format is None:
        return turns
    if use is not None and not format.calls_tools:
        message = (
            "the form of this model's tool calls is not known; start the server with --response-template"
        )
        raise ApiError(400, message, param="tools")
    if not format.takes_tools:
        return replace(turns, messages=describe_tools(turns.messages, use.callable if use else None))
    if format.text_arguments:
        turns = replace(turns, messages=with_text_arguments(turns.messages))
    return replace(turns, tools=use.definitions if use else None)


def with_parser(
    generation: Generation, format: ModelFormat | None, style: AnswerStyle, answer_id: str, stream: bool
) -> Generation:
    """Return a generation whose answers are split into parts, and whose calls match a grammar if the tools demand it.

    Raises ApiError 400 for a demand that the model's format can't express.
    """
    if format is None:
        return generation
    use, params = style.tools, generation.params
    answers = [
        format.answer(
            answer_id,
            prompt.get("prompt") or "",
            use.callable if use and use.callable else None,
            one_call=use is not None and not use.parallel,
            whole=not stream,
            include_reasoning=style.include_reasoning,
        )
        for prompt in generation.prompts
    ]

    def parser(choice: int) -> AnswerParser:
        answer = answers[choice // generation.choices_per_prompt]
        return PlainText() if answer is None else answer.parser(choice)

    if use is not None and use.choice == "required" and format.call is None:
        message = "a tool call can't be demanded in the form of this model's calls; use the tool_choice auto"
        raise ApiError(400, message, param="tool_choice")
    reasoning_end = format.reasoning_end_after(generation.prompts[0].get("prompt") or "")
    if use is not None and format.call is not None and (use.choice == "required" or use.strict):
        if generation.beams is not None:
            message = "a beam search takes no tool_choice but auto and none, and no strict tools"
            raise ApiError(400, message, param="use_beam_search")
        params.structured_outputs = call_grammar(format.call, use, reasoning_end)
    elif params.structured_outputs is not None:
        params.structured_outputs = msgspec.structs.replace(
            params.structured_outputs, starts_after=reasoning_end
        )
    if any(answer is not None for answer in answers):
        tokens = format.marker_token_ids if use and use.callable else format.text_marker_token_ids
        params.visible_special_token_ids = list(tokens)
    return replace(generation, parser=parser)
