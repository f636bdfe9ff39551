"""How often, and about how many pods, the API server is asked for Warnings."""

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from llm_operator.control import warning_poller
from llm_operator.control.warning_poller import MOST_PODS, MOST_QUESTIONS, WarningPoller, interval_after
from llm_operator.control.warnings import MOST_KEPT
from llm_operator.observed import Warned
from waiting import until_async

from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.page_size import AnswerTooLargeError

KEY = Key("default", "m")
MISSING = {"reason": "FailedMount", "message": "no secret", "lastTimestamp": "2026-01-01T00:00:00Z"}


class Events:
    """An API server with the same Events about every pod. It answers once it is allowed to."""

    def __init__(self, *events: dict[str, Any]) -> None:
        self.events = list(events)
        self.asked: list[str] = []
        self.in_progress: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def request(self, method: str, path: str, query: dict[str, str], largest: int) -> bytes:
        namespace = path.split("/")[4]
        self.asked.append(query["fieldSelector"].rpartition("=")[2])
        self.in_progress[namespace] += 1
        self.most[namespace] = max(self.most[namespace], self.in_progress[namespace])
        self.most["all"] = max(self.most["all"], self.in_progress.total())
        await self.may_answer.wait()
        self.in_progress[namespace] -= 1
        answer = json.dumps({"items": self.events}).encode()
        if len(answer) > largest:
            raise AnswerTooLargeError("too large")
        return answer


@pytest.fixture(autouse=True)
def _asks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PATIENCE_SECONDS", "INTERVAL_SECONDS", "REST_SECONDS"):
        monkeypatch.setattr(warning_poller, name, 0.01)


def poller(events: Events) -> tuple[WarningPoller, list[Key]]:
    woken: list[Key] = []
    return WarningPoller(woken.append, events), woken  # type: ignore[arg-type]


def pod(number: int) -> dict[str, Any]:
    created = f"2026-01-01T00:00:{number:02}Z"
    return {"metadata": {"name": f"p{number}", "uid": f"uid{number}", "creationTimestamp": created}}


def stop(polled: WarningPoller) -> None:
    for key in list(polled.follower.tasks):
        polled.follow(key, ())


async def test_an_answer_wakes_the_llmdeployment_once_until_it_changes() -> None:
    events = Events(MISSING)
    polled, woken = poller(events)
    polled.follow(KEY, [pod(1)])
    await until_async(lambda: len(events.asked) > 2)
    assert (polled.warnings[KEY], woken) == ({"uid1": (Warned("FailedMount", "no secret"),)}, [KEY])

    events.events = []
    await until_async(lambda: woken == [KEY, KEY])
    stop(polled)
    assert (polled.warnings, polled.follower.tasks) == ({}, {})


async def test_a_pod_is_asked_about_after_a_while_and_only_while_it_waits(monkeypatch: Any) -> None:
    monkeypatch.setattr(warning_poller, "PATIENCE_SECONDS", 3600.0)
    events = Events(MISSING)
    polled, _ = poller(events)
    polled.follow(KEY, [pod(1)])
    await asyncio.sleep(0)

    stop(polled)

    assert events.asked == []


async def test_only_the_newest_pods_of_an_llmdeployment_are_asked_about() -> None:
    events = Events()
    polled, _ = poller(events)
    polled.follow(KEY, [pod(number) for number in range(50)])
    await until_async(lambda: len(events.asked) > 3 * MOST_PODS)
    stop(polled)

    assert set(events.asked) == {f"uid{number}" for number in range(50 - MOST_PODS, 50)}


async def test_a_namespace_has_one_question_at_a_time_and_all_have_a_few() -> None:
    events = Events()
    events.may_answer.clear()
    polled, _ = poller(events)
    for number in range(20):
        for namespace in range(2 * MOST_QUESTIONS):
            polled.follow(Key(f"ns{namespace}", f"m{number}"), [pod(number)])
    await until_async(lambda: len(events.asked) == MOST_QUESTIONS)
    events.may_answer.set()
    await until_async(lambda: len(events.asked) > 10 * MOST_QUESTIONS)
    stop(polled)

    assert events.most.pop("all") == MOST_QUESTIONS
    assert set(events.most.values()) == {1}


async def test_of_many_events_the_last_are_kept_and_what_has_passed_is_not() -> None:
    late = [
        MISSING | {"message": f"at {second}", "lastTimestamp": f"2026-01-01T00:20:{second}Z"}
        for second in range(10, 40)
    ]
    events = Events(*late, MISSING, {"reason": None, "message": None})
    polled, woken = poller(events)
    polled.follow(KEY, [pod(1)])
    await until_async(lambda: woken)
    kept = {warned.message for warned in polled.warnings[KEY]["uid1"]}
    stop(polled)

    assert kept == {f"at {second}" for second in range(40 - MOST_KEPT, 40)}


@pytest.mark.parametrize("content", [{"lastTimestamp": "yesterday"}, {"message": "x" * (1 << 21)}])
async def test_events_that_the_cluster_would_not_write_are_left_out(content: dict[str, Any]) -> None:
    events = Events(MISSING | content)
    polled, woken = poller(events)
    polled.follow(KEY, [pod(1)])
    await until_async(lambda: len(events.asked) > 2)
    stop(polled)

    assert woken == []


def test_a_pod_is_asked_about_ever_more_rarely() -> None:
    assert [interval_after(seconds) for seconds in (0.0, 0.5, 10_000.0)] == [0.01, 0.05, 60.0]
