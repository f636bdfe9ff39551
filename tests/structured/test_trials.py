"""Trials of grammars: bad ones are refused with a message, whatever they do to the library."""

import hashlib
import itertools
import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import byte_level, vocabulary_of
from tiers import tiered
from waiting import until

from engine_server.forks.fork_worker import WorkerEndedError
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.structured_outputs import StructuredOutputsParams
from engine_server.structured.trial_process import Verdict
from engine_server.structured.trials import SHARES, GrammarTrials

# Generous; a trial has a second of CPU time.
SECONDS = 60


@pytest.fixture(scope="module")
def trials() -> Iterator[GrammarTrials]:
    yield GrammarTrials(vocabulary_of(byte_level()))


def verdict(trials: GrammarTrials, params: StructuredOutputsParams) -> str:
    return trials.start(params).result(SECONDS).grammar()


def digest(params: StructuredOutputsParams) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(params)).digest()


def tag(**format: object) -> str:
    return json.dumps({"type": "structural_tag", "format": format})


INTEGER = {"type": "json_schema", "json_schema": {"type": "integer"}}
RECURSIVE = {
    "$defs": {"a": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/a"}}]}},
    "$ref": "#/$defs/a",
}
OLDER_TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}],
    "triggers": ["<f"],
}
SIMILAR = [
    {"type": "object", "properties": {key: {} for key in ("a", "b", "c", "d", "e", f"key{number}")}}
    for number in range(300)
]
UNTRIGGERED = [{"type": "tag", "begin": "y", "content": INTEGER, "end": ""}]
GOOD = {
    "schema": {"json": {"type": "integer"}},
    "json_object": {"json_object": True},
    "regex": {"regex": "^[a-z]+/[0-9]$"},
    "choice": {"choice": ["a", "ab", 'é"\n']},
    "Lark": {"grammar": 'start: "a" /[0-9]+/'},
    "GBNF": {"grammar": 'root ::= "a" item+\nitem ::= [0-9] | "x"'},
    "oneOf": {"json": {"oneOf": [{"type": "integer"}, {"type": "string"}]}},
    "form": {"grammar": 'start: "<" @form', "form": StructuredOutputsParams(regex="[a-z]+")},
    "10,000 values": {"json": {"enum": [f"value {number}" for number in range(10_000)]}},
    "recursive schema": {"json": RECURSIVE},
    "older structural tag": {"structural_tag": json.dumps(OLDER_TAG)},
    "structural tag with a special token": {
        "structural_tag": tag(type="tag", begin="<s>f", content=INTEGER, end="</s>")
    },
}  # fmt: skip
BAD = {
    "look-around": ({"regex": "(?=a)b"}, "look-around"),
    "unbalanced regex": ({"regex": "(a"}, "unclosed group"),
    "JSON text": ({"json": "{"}, "not valid JSON"),
    "schema that is no object": ({"json": "[]"}, "a JSON schema is an object"),
    "unknown type": ({"json": {"type": "nope"}}, "nope"),
    "schema nested too deeply": ({"json": '{"items":' * 100 + "{}" + "}" * 100}, "deeper than 64 levels"),
    "million brackets": ({"json": "[" * 100_000}, "not valid JSON"),
    "reference to itself": ({"json": {"$ref": "#"}}, "no text matches"),
    "unknown rule": ({"grammar": "start: nope"}, "nope"),
    "endless rule": ({"grammar": "start: start"}, "no text matches"),
    "unknown GBNF rule": ({"grammar": "root ::= nope"}, "nope"),
    "300 similar objects": ({"json": {"anyOf": SIMILAR}}, "items"),
    "nested groups": ({"grammar": "start: " + "(" * 60_000}, "nested"),
    "nested regex": ({"regex": "(" * 5000 + "a" + ")" * 5000}, "invalid regex"),
    "structural tag without tags": ({"structural_tag": tag(type="tags_with_separator", tags=[])}, "no tags"),
    "unknown structural tag": ({"structural_tag": tag(type="sequence")}, "sequence"),
    "tag without its trigger": (
        {"structural_tag": tag(type="triggered_tags", triggers=["x"], tags=UNTRIGGERED)}, "triggers"
    ),
}  # fmt: skip
# Each takes the library seconds, gigabytes or its stack.
PATHOLOGICAL = {
    "remainders": {"json": {"type": "integer", "multipleOf": 999_983}},
    "intersections": {"grammar": "start: A\nA: " + " & ".join(f"/(.*[a-z]{{{n}}}.*)/" for n in range(2, 30))},
    "chain of terminals": {
        "grammar": "start: A0\n" + "".join(f"A{n}: A{n + 1}\n" for n in range(10_000)) + 'A10000: "a"'
    },
    "chain of rules": {
        "grammar": "start: a0\n" + "".join(f"a{n}: a{n + 1}\n" for n in range(10_000)) + 'a10000: "a"'
    },
    "chain of GBNF rules": {
        "grammar": "root ::= a0\n" + "".join(f"a{n} ::= a{n + 1}\n" for n in range(9000)) + 'a9000 ::= "a"'
    },
}


@pytest.mark.parametrize("name", GOOD)
def test_good_grammar_passes(trials: GrammarTrials, name: str) -> None:
    assert "start: " in verdict(trials, StructuredOutputsParams(**GOOD[name]))


@pytest.mark.parametrize("name", BAD)
def test_bad_grammar_is_refused_with_a_short_reason(trials: GrammarTrials, name: str) -> None:
    options, expected = BAD[name]
    with pytest.raises(InvalidRequestError, match=expected) as raised:
        verdict(trials, StructuredOutputsParams(**options))
    assert len(str(raised.value)) <= 200 and "\n" not in str(raised.value)
    assert raised.value.parameter == "structured_outputs"


def test_parts_of_a_bad_grammar_that_are_bad_themselves_are_named(trials: GrammarTrials) -> None:
    good, bad = StructuredOutputsParams(regex="a"), StructuredOutputsParams(regex="(a")
    parts = [good, bad, StructuredOutputsParams(regex="b")]

    of_bad = trials.start(bad, parts=parts).result(SECONDS)
    of_good = trials.start(good, parts=parts).result(SECONDS)

    assert list(of_bad.faults) == [1] and of_bad.faults[1] == of_bad.error
    assert of_good.grammar() and of_good.faults == {}


@pytest.mark.more
def test_parts_share_the_limits_of_one_trial(trials: GrammarTrials) -> None:
    parts = [StructuredOutputsParams(**PATHOLOGICAL["remainders"])] * 3

    verdict = trials.start(StructuredOutputsParams(regex="(a"), parts=parts).result(SECONDS)

    assert "too complex" in str(verdict.error) and verdict.faults == {}


@pytest.mark.parametrize("name", tiered(PATHOLOGICAL, "remainders", more=PATHOLOGICAL))
def test_pathological_grammar_ends_at_a_limit_and_the_next_one_passes(
    trials: GrammarTrials, name: str
) -> None:
    pending = trials.start(StructuredOutputsParams(**PATHOLOGICAL[name]))
    assert verdict(trials, StructuredOutputsParams(choice=[name]))  # meanwhile
    with pytest.raises(InvalidRequestError, match="too complex"):
        pending.result(SECONDS).grammar()
    assert verdict(trials, StructuredOutputsParams(choice=[name, "after"]))


def test_a_grammar_that_takes_time_but_little_memory_ends_at_the_limit_on_time(trials: GrammarTrials) -> None:
    comments = "#\n" * 300_000
    with pytest.raises(InvalidRequestError, match="takes more than 1 s"):
        verdict(trials, StructuredOutputsParams(grammar=f'{comments}root ::= "a"'))


def test_pathological_grammars_do_not_hold_up_others(trials: GrammarTrials) -> None:
    order = []
    slow = [trials.start(slow_grammar(number)) for number in range(3)]
    for pending in slow:
        pending.add_done_callback(lambda _: order.append("slow"))
    fast = trials.start(StructuredOutputsParams(regex="[a-f]{3}"))
    fast.add_done_callback(lambda _: order.append("fast"))
    for pending in (*slow, fast):
        pending.result(SECONDS)
    assert order[0] == "fast"


def slow_grammar(number: int) -> StructuredOutputsParams:
    """Return a grammar whose trial ends at a limit, after most of a second."""
    return StructuredOutputsParams(json={"type": "integer", "multipleOf": 999_983, "title": str(number)})


def test_slow_grammars_of_one_caller_do_not_delay_those_of_another(trials: GrammarTrials) -> None:
    slow = [trials.start(slow_grammar(number), "a") for number in range(100, 112)]
    fast = trials.start(StructuredOutputsParams(regex="[a-f]{4}"), "b")
    ended_before: list[int] = []
    fast.add_done_callback(lambda _: ended_before.append(sum(one.done() for one in slow)))
    assert fast.result(SECONDS).grammar()
    until(lambda: ended_before)
    assert ended_before[0] <= len(slow) // 2
    for one in slow:
        assert one.cancel() or one.result(SECONDS)


@pytest.mark.more
def test_trial_leaves_the_line_with_the_last_request_that_wants_it(
    trials: GrammarTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(trials._line, "shares", SHARES._replace(running_of_caller=0))
        wanted = [trials.start(StructuredOutputsParams(regex=f"z{number}"), "a") for number in range(3)]
        again = trials.start(StructuredOutputsParams(regex="z0"), "a")
        assert all(one.cancel() for one in wanted)
        kept, left = (
            trials._line.find("a", digest(StructuredOutputsParams(regex=f"z{number}"))) for number in (0, 1)
        )
        assert kept is not None and left is None
    assert verdict(trials, StructuredOutputsParams(regex="next"))  # the line goes on with it
    assert again.result(SECONDS).grammar()


def test_grammar_whose_trial_ends_at_a_limit_is_tried_once_more(trials: GrammarTrials) -> None:
    first, second = (trials.start(slow_grammar(500)).result(SECONDS) for _ in range(2))
    third = trials.start(slow_grammar(500))

    assert first.ended and second.ended and second is not first
    assert third.done() and third.result() is second


def test_equal_grammars_are_tried_once(trials: GrammarTrials) -> None:
    first = trials.start(StructuredOutputsParams(regex="x{3}"), "a")
    again = trials.start(StructuredOutputsParams(regex="x{3}", starts_after=[4]), "a")
    other = trials.start(StructuredOutputsParams(regex="x{3}"), "b")
    assert first.result(SECONDS) is again.result(SECONDS)
    assert other.result(SECONDS).grammar() == first.result().grammar()
    assert trials.start(StructuredOutputsParams(regex="x{3}"), "c").done()


@pytest.mark.usefixtures("foreign_folder")
def test_trials_import_nothing_from_the_working_folder() -> None:
    assert verdict(GrammarTrials(vocabulary_of(byte_level())), StructuredOutputsParams(regex="a"))


def test_trials_continue_after_their_process_was_killed(trials: GrammarTrials) -> None:
    assert verdict(trials, StructuredOutputsParams(regex="before"))
    assert trials._worker is not None
    trials._worker.process.kill()
    trials._worker.process.wait()
    assert verdict(trials, StructuredOutputsParams(regex="after"))


NUMBERS = itertools.count()
ACTIONS = st.sampled_from(["fast", "fast", "slow", "kill", "kill with pending verdicts", "cancel", "wait"])


@pytest.mark.more
@settings(max_examples=8)
@given(actions=st.lists(ACTIONS, min_size=3, max_size=12))
def test_every_verdict_comes_or_fails_whenever_the_process_is_killed(
    trials: GrammarTrials, actions: list[str]
) -> None:
    pending: list[Future[Verdict]] = []
    killed: subprocess.Popen[bytes] | None = None
    for action in actions:
        number = next(NUMBERS)
        if action == "fast":
            pending.append(trials.start(StructuredOutputsParams(regex=f"f{number}"), f"caller {number % 3}"))
        elif action == "slow":
            pending.append(trials.start(slow_grammar(10_000 + number), f"caller {number % 3}"))
        elif action == "cancel" and pending:
            pending.pop().cancel()
        elif action == "wait" and pending:
            assert ended(pending.pop(0))
        elif action.startswith("kill") and (worker := trials._worker):
            if action == "kill with pending verdicts":
                until(lambda: trials._worker._tasks or all(one.done() for one in pending))
            worker.process.kill()
            killed = worker.process
    assert all(ended(one) for one in pending)
    if killed is not None:
        killed.wait()
    assert verdict(trials, StructuredOutputsParams(regex=f"last{next(NUMBERS)}"))
    until(lambda: not trials._line._waiting and not trials._line._running)


def ended(pending: Future[Verdict]) -> bool:
    """Wait for a verdict, or the error of a process that was killed."""
    error = pending.exception(SECONDS)
    return error is None or isinstance(error, WorkerEndedError)
