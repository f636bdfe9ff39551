"""The changes of a status that deserve an event. No I/O."""

from typing import NamedTuple

from llm_operator.api.status import Condition, Status
from llm_operator.observed import Manifest
from llm_operator.status.conditions import BAD


class News(NamedTuple):
    """The content of an event. `severity` is Normal or Warning."""

    severity: str
    reason: str
    message: str


def news(status: Status, reported: Manifest) -> list[News]:
    """Return what `status` adds to the status that was reported before: each reason once, failures before others."""
    before = {entry["type"]: entry for entry in reported.get("conditions", ())}
    restarted = status.restarts > reported.get("restarts", 0)
    by_reason: dict[str, News] = {}
    for condition in sorted(status.conditions, key=lambda condition: not is_bad(condition)):
        again = restarted and condition.type == "Degraded" and is_bad(condition)
        if again or is_new(condition, before.get(condition.type, {})):
            severity = "Warning" if is_bad(condition) else "Normal"
            by_reason.setdefault(condition.reason, News(severity, condition.reason, condition.message))
    return list(by_reason.values())


def is_new(condition: Condition, last: Manifest) -> bool:
    """Return True if Ready turned, or there is a new reason why something is bad."""
    if condition.type == "Ready":
        return condition.status != str(last.get("status", "False"))
    return is_bad(condition) and (last.get("status"), last.get("reason")) != ("True", condition.reason)


def is_bad(condition: Condition) -> bool:
    """Return True for a condition that says that something is wrong."""
    return condition.type in BAD and condition.status == "True"
