"""Failures of the API server, from the fields of its answers."""

import json
from typing import Any

import pytest
from kubernetes.aio.client import ApiException
from llm_operator.control.api_errors import describe, is_rejection, is_transient, outage_seconds


def failure(status: int, body: Any = None, reason: str = "Some Reason") -> ApiException:
    error = ApiException(status=status, reason=reason)
    error.body = json.dumps(body) if body is not None else None
    return error


def test_describes_the_causes_by_field_each_once() -> None:
    cause = {"reason": "FieldValueRequired", "message": "Required value", "field": "spec.volumes[0].name"}
    other = {"message": "too long", "field": "metadata.name"}
    body = {"message": "Deployment is invalid", "details": {"name": "d", "causes": [cause, cause, other]}}

    assert describe(failure(422, body)) == "spec.volumes[0].name: Required value; metadata.name: too long"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"message": "exceeded quota", "details": {"name": "d"}}, "exceeded quota"),
        ({"message": "exceeded quota"}, "exceeded quota"),
        ({"unexpected": 1}, "Some Reason"),
        (None, "Some Reason"),
    ],
)
def test_describes_an_answer_without_causes_by_its_message(body: Any, words: str) -> None:
    assert describe(failure(403, body)) == words


def test_describes_a_missing_answer_by_the_kind_of_failure() -> None:
    assert describe(TimeoutError()) == "TimeoutError"
    assert describe(OSError("no route")) == "OSError no route"


@pytest.mark.parametrize(
    ("status", "rejected"), [(400, True), (403, True), (422, True), (409, False), (500, False)]
)
def test_only_answers_about_the_content_are_rejections(status: int, rejected: bool) -> None:
    assert is_rejection(failure(status)) is rejected


@pytest.mark.parametrize(
    ("status", "transient"), [(400, False), (403, False), (409, True), (422, False), (500, True), (502, True)]
)
def test_conflicts_and_failures_of_the_server_are_transient(status: int, transient: bool) -> None:
    assert is_transient(failure(status)) is transient
    assert not is_transient(ValueError())


@pytest.mark.parametrize(
    ("status", "retry_after", "seconds"),
    [
        (429, "3", 3),
        (429, None, 1),
        (503, "0", 1),
        (503, "Wed, 21 Oct 2026 07:28:00 GMT", 1),
        (503, "86400", 60),
        (504, "2", 2),
        (500, "3", None),
        (409, None, None),
    ],
)
def test_an_outage_lasts_as_long_as_the_answer_says_and_a_minute_at_most(
    status: int, retry_after: str | None, seconds: float | None
) -> None:
    error = failure(status)
    error.headers = {"Retry-After": retry_after} if retry_after else {}

    assert outage_seconds(error) == seconds


def test_no_answer_is_an_outage_of_a_second_and_a_mistake_is_none() -> None:
    assert outage_seconds(TimeoutError()) == 1
    assert outage_seconds(ValueError()) is None
