"""Tasks that ask about subjects, for as long as these are followed."""

import asyncio
from collections import Counter

import pytest
from llm_operator.control import follower
from llm_operator.control.follower import Follower
from waiting import until_async

from engine_server.contract.cluster.api import Key

KEY, OTHER = Key("default", "m"), Key("default", "other")


class Question:
    """A question that stays open until `may_answer` is set; about the subject "faulty" it fails at once."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.answered: list[str] = []
        self.cancelled: list[str] = []
        self.may_answer = asyncio.Event()

    async def ask(self, key: Key, subject: str) -> None:
        self.asked[subject] += 1
        if subject == "faulty":
            raise KeyError("a fault")
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.cancelled.append(subject)
            raise
        self.answered.append(subject)


async def test_a_subject_is_asked_about_once_while_it_is_followed() -> None:
    question = Question()
    following = Follower(question.ask)
    following.follow(KEY, ["a"])
    following.follow(KEY, ["a", "b"])
    following.follow(OTHER, ["c"])
    question.may_answer.set()
    await until_async(lambda: len(question.answered) == 3)

    following.follow(KEY, ["a", "b"])
    following.follow(KEY, ["a", "b", "d"])
    await until_async(lambda: "d" in question.answered)

    assert question.asked == {"a": 1, "b": 1, "c": 1, "d": 1}


async def test_a_question_is_cancelled_as_soon_as_its_subject_is_gone() -> None:
    question = Question()
    following = Follower(question.ask)
    following.follow(KEY, ["a", "b"])
    following.follow(OTHER, ["c"])
    await until_async(lambda: question.asked.total() == 3)

    following.follow(KEY, ["b"])
    following.follow(OTHER, [])
    await until_async(lambda: sorted(question.cancelled) == ["a", "c"])

    assert following.tasks.keys() == {KEY}


async def test_a_subject_that_is_gone_and_back_is_asked_about_again() -> None:
    question = Question()
    following = Follower(question.ask)
    following.follow(KEY, ["a"])
    await until_async(lambda: question.asked["a"])

    following.follow(KEY, [])
    following.follow(KEY, ["a"])
    question.may_answer.set()
    await until_async(lambda: question.answered)

    assert (question.cancelled, question.answered) == (["a"], ["a"])


async def test_a_question_that_fails_is_logged_and_repeated_and_hurts_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(follower, "RETRY_SECONDS", 0.001)
    question = Question()
    following = Follower(question.ask)
    following.follow(KEY, ["faulty", "a"])
    following.follow(OTHER, ["b"])
    await until_async(lambda: question.asked["faulty"] > 2)
    question.may_answer.set()
    await until_async(lambda: sorted(question.answered) == ["a", "b"])

    following.follow(KEY, ["a"])

    faults = [record for record in caplog.records if record.exc_info]
    assert len(faults) == question.asked["faulty"]
    assert faults[0].getMessage().startswith("default/m: a question failed")
