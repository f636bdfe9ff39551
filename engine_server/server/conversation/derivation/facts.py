"""All that a server needs of a chat template's renderings when it starts."""

from __future__ import annotations

import msgspec

from engine_server.engine.conversation.capabilities import (
    ALL_CAPABILITIES,
    Capabilities,
    ShownPictures,
)
from engine_server.engine.conversation.chat_template import ChatTemplate
from engine_server.engine.conversation.probe import capabilities_of, shown_pictures
from engine_server.engine.input.template_end import PrintedEnd, printed_end
from engine_server.server.conversation.derivation.derive import Derived, NotDerived, derive_printed
from engine_server.server.conversation.derivation.printed import (
    PrintedAnswers,
    print_answers,
    probes_with_calls,
)
from engine_server.server.conversation.derivation.probes import TOOLS, Probes, UnknownFormError
from engine_server.server.conversation.derivation.proof import prove
from engine_server.server.conversation.derivation.reasoning import derive_reasoning
from engine_server.server.conversation.formats import fitted, formats_in, written_formats

# What was not asked for, since an earlier source has a form.
NOT_NEEDED = NotDerived("a written format reads the template's answers")


class TemplateFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What renderings of a chat template show."""

    # The written format that reads the answers that the template prints, or that has its marks if it prints no calls.
    written: str | None = None
    form: Derived | NotDerived = NotDerived("the template was not rendered")
    # Formats whose marks the template has, and in which its answers are not read as they are, each with the reason.
    refuted: dict[str, str] = {}
    # The delimiters of the reasoning; None for a template without any.
    reasoning: tuple[str, str] | None = None
    capabilities: Capabilities = ALL_CAPABILITIES
    pictures: ShownPictures = ShownPictures(users=False, results=None)
    # What follows an answer; None for a template that prints none.
    end: PrintedEnd | None = None


def facts_of(template: ChatTemplate) -> TemplateFacts:
    """Return what renderings of a template show."""
    if not template.text:
        return TemplateFacts()
    probes, reason = probes_of(template)
    reasoning = derive_reasoning(probes)
    pair = None if reasoning is None else reasoning.pair
    candidates = formats_in(template.text) if template.takes_tools or not reason else []
    printed = None
    if not reason:
        try:
            printed = print_answers(probes, reasoning)
        except UnknownFormError as error:
            reason = str(error)
    refuted = {} if printed is None else refuted_formats(printed, candidates, template.text, pair)
    written = next((name for name in candidates if name not in refuted), None)
    form: Derived | NotDerived = NOT_NEEDED
    if printed is None:
        form = NotDerived(reason)
    elif written is None:
        form = derive_printed(printed)
    capabilities = capabilities_of(template)
    return TemplateFacts(
        written=written,
        form=form,
        refuted=refuted,
        reasoning=pair,
        capabilities=capabilities,
        pictures=shown_pictures(template, capabilities),
        end=printed_end(template.probe),
    )


def probes_of(template: ChatTemplate) -> tuple[Probes, str]:
    """Return the probes of a template, and why it has no calls; "" if it has."""
    try:
        return probes_with_calls(template), ""
    except UnknownFormError as error:
        return Probes(template, TOOLS if template.takes_tools else ()), str(error)


def refuted_formats(
    printed: PrintedAnswers, names: list[str], template: str, reasoning: tuple[str, str] | None
) -> dict[str, str]:
    """Return the formats before the first that reads printed answers, each with the reason why it doesn't."""
    refuted = {}
    for name in names:
        entry = written_formats()[name]
        if entry.get("asked_for"):
            break
        try:
            prove(printed, fitted(entry, template, reasoning))
            break
        except UnknownFormError as error:
            refuted[name] = str(error)
    return refuted
