"""The model that a server serves, once its engine is loaded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine_server.model_sources import commit_of
from engine_server.server.adapters import ServedAdapters
from engine_server.server.conversation.layout import PLAIN_TEXT, Layout
from engine_server.server.wanted_adapters import AdapterSet

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from engine_server.config import PoolingConfig
    from engine_server.engine.async_llm import AsyncLLMEngine
    from engine_server.engine.conversation.chat_template import ChatTemplate
    from engine_server.engine.output.token_texts import TokenTexts
    from engine_server.server.conversation.derivation.facts import TemplateFacts
    from engine_server.server.settings import ApiSettings

# W3C Trace Context.
TRACE_HEADERS = ("traceparent", "tracestate")
NO_PICTURES = "the chat template prints no pictures"
TraceHeaders = Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """All that requests need of the engine and its model, which stays the same until the server ends."""

    engine: AsyncLLMEngine
    settings: ApiSettings
    # Those that are served now, and those that should be.
    adapters: ServedAdapters
    adapter_set: AdapterSet
    served_names: list[str]
    # Tokens of prompt and answer.
    max_model_len: int
    # "generate", or those of a pooling model.
    tasks: tuple[str, ...]
    # Sampling parameters by name, for fields that a request leaves out.
    sampling_defaults: dict[str, Any]
    # Identifies all that an answer depends on besides its request.
    fingerprint: str
    # Identifies the settings that streams depend on besides.
    stream_settings: str
    # None for an engine that takes and returns token ids only.
    tokenizer: PreTrainedTokenizerBase | None
    # The layout of its answers; None without a tokenizer.
    layout: Layout | None
    # Why it takes no pictures, for people; empty if it takes them.
    refuses_pictures: str
    # The bytes that each token adds to a text; empty where they are not known.
    token_bytes: Sequence[bytes]
    # The text and the bytes of each token, for log-probabilities.
    token_texts: TokenTexts
    # The engine exports spans.
    traces: bool
    # Of the hub's repository that the model was fetched from, if that is known.
    commit: str | None

    @property
    def answer_layout(self) -> Layout:
        """The layout of answers, which are plain text without a tokenizer."""
        return self.layout or PLAIN_TEXT

    @property
    def takes_pictures(self) -> bool:
        return self.answer_layout.pictures is not None

    @property
    def pooling(self) -> PoolingConfig:
        """The settings of a model that pools."""
        settings = self.engine.model_config.pooling
        assert settings is not None, "endpoints of pooling models check the task"
        return settings

    def trace_headers(self, headers: Mapping[str, str]) -> TraceHeaders:
        """Return the headers that continue the client's trace; None without any, or if the engine exports no spans."""
        found = {name: headers[name] for name in TRACE_HEADERS if name in headers}
        return found if found and self.traces else None


class TemplateReader:
    """The chat template of a server, read once its tokenizer is loaded.

    text: a template in place of the model's own. facts_of: returns the facts of a template; it is called once.
    """

    def __init__(
        self, settings: ApiSettings, text: str | None, facts_of: Callable[[ChatTemplate], TemplateFacts]
    ) -> None:
        self._settings = settings
        self._text = text
        self._facts_of = facts_of
        self._facts: TemplateFacts | None = None

    def facts(self, template: ChatTemplate) -> TemplateFacts:
        """Return what renderings of the server's template show."""
        if self._facts is None:
            self._facts = self._facts_of(template)
        return self._facts

    def end(self, tokenizer: PreTrainedTokenizerBase, ends: Collection[int]) -> int | None:
        """Return the token with which the template ends an answer; None if it is one of `ends`, or a part's end.

        Raises ValueError for a bad response template.
        """
        from engine_server.engine.conversation.chat_template import ChatTemplate
        from engine_server.engine.input.template_end import end_token
        from engine_server.server.conversation.find_layout import find_layout

        if self._text is not None:
            tokenizer.chat_template = self._text
        facts = self.facts(ChatTemplate.of(tokenizer))
        if facts.end is None:
            return None
        file = self._settings.response_template
        layout = find_layout(tokenizer, Path(file) if file else None, facts)
        return end_token(tokenizer, facts.end, ends, layout.inner_marks)


def loaded_model(
    engine: AsyncLLMEngine,
    settings: ApiSettings,
    template: str | None,
    facts_of: Callable[[ChatTemplate], TemplateFacts],
) -> LoadedModel:
    """Derive what requests need from a loaded engine.

    template: a chat template in place of the model's own. facts_of: returns the facts of one. Raises ValueError for a
    template that is invalid, or that doesn't render what the model scores.
    """
    from engine_server.engine.conversation.chat_template import ChatTemplate  # imports transformers
    from engine_server.engine.input.text_pairs import check_template
    from engine_server.server.conversation.find_layout import find_layout
    from engine_server.server.fingerprint import fingerprint, stream_settings

    config, tokenizer = engine.model_config, engine.tokenizer
    if template is not None and tokenizer is not None:
        tokenizer.chat_template = template
    if config.pooling is not None and tokenizer is not None:
        check_template(tokenizer, config.pooling)
    file = settings.response_template
    adapters = ServedAdapters(engine, config.served_model_name)
    sampling_defaults = config.get_diff_sampling_param()
    layout, refuses_pictures = None, engine.refuses_pictures
    if tokenizer is not None:
        facts = facts_of(ChatTemplate.of(tokenizer))
        layout = find_layout(tokenizer, Path(file) if file else None, facts)
        refuses_pictures = refuses_pictures or ("" if facts.pictures.users else NO_PICTURES)
        layout = layout if refuses_pictures else replace(layout, pictures=facts.pictures)
    return LoadedModel(
        engine=engine,
        settings=settings,
        adapters=adapters,
        adapter_set=AdapterSet(adapters),
        served_names=config.served_model_name,
        max_model_len=config.max_model_len,
        tasks=config.supported_tasks,
        sampling_defaults=sampling_defaults,
        fingerprint=fingerprint(engine.config, getattr(tokenizer, "chat_template", None)),
        stream_settings=stream_settings(config, settings, sampling_defaults, layout),
        tokenizer=tokenizer,
        layout=layout,
        refuses_pictures=refuses_pictures,
        token_bytes=engine.token_bytes or (),
        token_texts=engine.token_texts,
        traces=engine.config.observability_config.otlp_traces_endpoint is not None,
        commit=commit_of(Path(config.path)),
    )
