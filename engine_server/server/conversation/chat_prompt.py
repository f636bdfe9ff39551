"""The prompt of a conversation: its messages, and how the chat template renders them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from engine_server.contract.base.quoting import shorten
from engine_server.contract.wire.errors import ErrorCode
from engine_server.engine.conversation.capabilities import (
    ALL_CAPABILITIES,
    ShownPictures,
)
from engine_server.engine.conversation.chat_template import (
    ChatTemplate,
    TemplateFaultError,
    TemplateRefusedError,
)
from engine_server.engine.conversation.messages import Lost, template_messages, template_tools
from engine_server.engine.conversation.turns import Conversation, ImagePart, Turn
from engine_server.engine.input.media_marks import MediaMarks
from engine_server.engine.input.sent_picture import SentPicture
from engine_server.server.conversation.calls.written import write_calls
from engine_server.server.conversation.layout import Layout
from engine_server.server.conversation.openings import added, usual_opening
from engine_server.server.conversation.prefill import Openings, Prefill, prefilled_start
from engine_server.server.generation.answer_start import NO_START, AnswerStart
from engine_server.server.generation.prompts import num_characters
from engine_server.server.generation.template_clock import stopped_clock
from engine_server.server.generation.tool_use import ToolUse
from engine_server.server.http.errors import ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """A conversation as a chat template takes it."""

    layout: Layout
    messages: list[dict[str, Any]]
    # The tools' definitions, in the form of OpenAI's chat API.
    tools: list[dict[str, Any]] | None = None
    # Append the beginning of an assistant's message.
    open_answer: bool = True
    # The beginning of the answer, which follows the messages.
    prefill: Prefill | None = None
    # Further variables of the template.
    variables: Mapping[str, Any] = field(default_factory=dict)
    # In place of the model's own template.
    template: str | None = None
    # Add special tokens to those that the template writes itself.
    add_special_tokens: bool = False
    # What the template doesn't print of the conversation.
    lost: Sequence[Lost] = ()
    # By path, in the order in which they are parts of the messages.
    pictures: Sequence[tuple[str, SentPicture]] = ()

    @property
    def num_characters(self) -> int:
        """About how many characters the template renders."""
        prefill = [] if self.prefill is None else [self.prefill.thought, self.prefill.text]
        return num_characters([self.messages, self.tools, dict(self.variables), prefill])

    def marked(self, marks: MediaMarks) -> ChatPrompt:
        """Return the prompt with marks in all that the template is given."""
        prefill = self.prefill and Prefill(marks.text(self.prefill.thought), marks.text(self.prefill.text))
        return replace(
            self,
            messages=marks.value(self.messages),
            tools=marks.value(self.tools),
            variables=marks.value(self.variables),
            prefill=prefill,
        )

    def render(self, tokenizer: Any, created: int | None) -> tuple[str, AnswerStart]:
        """Return the prompt and the part of the answer that it ends with. Raises ApiError 400.

        created: the time for the template, in seconds since the epoch; None: now.
        """
        try:
            template = ChatTemplate.chosen(tokenizer, self.template, self.tools)
            # A continued stream has the day on which it began.
            with stopped_clock(template.text, created):
                return self._render(template)
        except TemplateFaultError as error:
            whose = "the model's chat template" if self.template is None else "chat_template"
            message = f"{whose} can't be rendered: {shorten(str(error))}"
            raise ApiError(
                ErrorCode.INVALID_VALUE, message, param=None if self.template is None else "chat_template"
            ) from None
        except (TemplateRefusedError, ValueError) as error:
            message = f"messages don't fit the model's chat template: {shorten(str(error))}"
            raise ApiError(ErrorCode.INVALID_VALUE, message, param="messages") from None

    def _render(self, template: ChatTemplate) -> tuple[str, AnswerStart]:
        if self.prefill is not None:
            history = self._rendered(template)
            openings = Openings.of(self.layout, template, self.messages, self.variables)
            start = prefilled_start(openings, self.prefill)
            return history + start.opening + start.prefill, start
        prompt = self._rendered(template, opens=self.open_answer)
        return prompt, self._start(template, prompt) if self.open_answer else NO_START

    def _rendered(self, template: ChatTemplate, opens: bool = False) -> str:
        return template.render(self.messages, self.tools, opens, self.variables)

    def _start(self, template: ChatTemplate, prompt: str) -> AnswerStart:
        """Return how the answer begins. Text of the conversation that looks like an opening is none."""
        opening = usual_opening(template, self.messages, self.variables)
        if opening is None or not prompt.endswith(opening):  # a template may look at the conversation's texts
            try:
                opening = added(prompt, self._rendered(template))
            except TemplateRefusedError:
                opening = None
        return AnswerStart(opening or "")


def chat_prompt(conversation: Conversation, layout: Layout, use: ToolUse | None) -> ChatPrompt:
    """Return the prompt of a conversation with its tools, as the model's chat template takes it.

    A template of the request is not probed: it gets all of the conversation.
    """
    turns, prefill = conversation.turns, None
    if conversation.continue_last:
        check_continued(turns[-1])
        prefill, turns = Prefill.of(turns[-1]), turns[:-1]
    capabilities = layout.capabilities if conversation.template is None else ALL_CAPABILITIES
    write = None if layout.call is None else partial(write_calls, layout.call)
    described = use.callable if use is not None and not layout.takes_tools else ()
    shown = layout.pictures if conversation.template is None and layout.pictures else ShownPictures()
    messages, lost, pictures = template_messages(turns, capabilities, write, described, shown)
    return ChatPrompt(
        layout=layout,
        messages=messages,
        tools=None
        if use is None or not layout.takes_tools
        else template_tools(use.definitions, capabilities),
        open_answer=conversation.open_answer,
        prefill=prefill,
        variables=conversation.variables,
        template=conversation.template,
        add_special_tokens=conversation.add_special_tokens,
        lost=lost,
        pictures=[(picture.path, picture.sent) for picture in pictures],
    )


def check_continued(turn: Turn) -> None:
    """Raise ApiError 400 for a turn that an answer can't continue."""
    for part in turn.parts:
        if isinstance(part, ImagePart):
            message = f"{part.path}: a message with a picture can't be continued"
            raise ApiError(ErrorCode.INVALID_VALUE, message, param=part.path)
