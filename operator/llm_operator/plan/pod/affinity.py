"""The terms of a pod's affinity by which it is placed beside other pods, or away from them."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


class Requirement(msgspec.Struct, frozen=True):
    """A requirement on one label."""

    key: str
    operator: str
    values: tuple[str, ...] | None = None

    def accepts(self, labels: Mapping[str, str]) -> bool:
        match self.operator:
            case "In":
                return labels.get(self.key) in (self.values or ())
            case "NotIn":
                return labels.get(self.key) not in (self.values or ())
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels
        return False


class Selector(msgspec.Struct, frozen=True, rename="camel"):
    match_labels: dict[str, str] | None = None
    match_expressions: tuple[Requirement, ...] | None = None

    def accepts(self, labels: Mapping[str, str]) -> bool:
        expressions = self.match_expressions or ()
        return (self.match_labels or {}).items() <= labels.items() and all(
            each.accepts(labels) for each in expressions
        )


class Term(msgspec.Struct, frozen=True, rename="camel"):
    """A term, of which the fields that select pods are read."""

    label_selector: Selector | None = None
    namespaces: tuple[str, ...] | None = None
    namespace_selector: dict[str, Any] | None = None

    def selects(self, labels: Mapping[str, str], namespace: str) -> bool:
        """Return True if pods with these labels are selected. The labels of the namespace may be any."""
        is_here = self.namespace_selector is not None or not self.namespaces or namespace in self.namespaces
        return is_here and self.label_selector is not None and self.label_selector.accepts(labels)


def term_of(value: object) -> Term:
    """Return a term; one that selects nothing for a value that is none, which the API server refuses."""
    try:
        return msgspec.convert(value, Term)
    except msgspec.ValidationError:
        return Term()


def without_terms(affinity: object, kind: str, is_dropped: Callable[[Term], bool]) -> object:
    """Return an affinity without some terms of a kind, podAffinity or podAntiAffinity."""
    if not isinstance(affinity, Mapping) or not isinstance(affinity.get(kind), Mapping):
        return affinity
    terms = dict(affinity[kind])
    for field in (REQUIRED, PREFERRED):
        if not isinstance(terms.get(field), list):
            continue
        kept = [each for each in terms[field] if not is_dropped(term_of(content(each)))]
        if kept:
            terms[field] = kept
        else:
            del terms[field]
    others = {name: value for name, value in affinity.items() if name != kind}
    return others | ({kind: terms} if terms else {})


def content(entry: object) -> object:
    """Return the term of an entry; a preferred one has it beside its weight."""
    return entry.get("podAffinityTerm", entry) if isinstance(entry, Mapping) else entry
