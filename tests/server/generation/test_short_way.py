"""The short way of a stream's tokens: what it writes is what the long way writes."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from continued_streams import groups_of
from hypothesis import assume, given, reject
from hypothesis import strategies as st
from server.generation.played_streams import APIS, IDENTITY, SEED, Asked, PlayedStream, renderer_of, tokenizer
from small_tokenizers import EOS

from engine_server.contract.wire.continuation import Resume
from engine_server.requests.messages import RequestStep, TokenLogprobsArray
from engine_server.requests.sampling_params import SamplingParams
from engine_server.server.api.openai_answer import AnswerOptions
from engine_server.server.generation.events import ChoiceDelta, Finish, Reasoning, Text, TokenCounts

WORDS = [
    "the river",
    " ran",
    " 42 miles",
    "Zoë",
    "🎉",
    "\n",
    " ",
    "\n\n",
    ". ",
    "a < b",
    "</",
    '{"name": "now"',
    "stop",
]
DELIMITERS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>",
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "', '"}}\n</tool_call>',
]  # fmt: skip
ENDS = ["stop", "length", "timeout", "error", "abort", "death", "disconnect"]


@dataclass(frozen=True)
class Turn:
    """A step of the engine, and what its client does meanwhile."""

    token_ids: Sequence[int]
    # The client reads, so that the step may go the short way.
    reads: bool
    # A keep-alive is due before the step.
    wakes: bool


@st.composite
def token_ids_of(draw: st.DrawFn, marked: bool) -> list[int]:
    """Return tokens of answers, with parts of characters and of delimiters."""
    known = tokenizer(marked)
    anything = st.lists(st.integers(3, known.get_vocab_size() - 1), max_size=3)
    texts = st.sampled_from(WORDS) | st.sampled_from(WORDS) | st.sampled_from(DELIMITERS)
    piece = texts.map(lambda text: known.encode(text, add_special_tokens=False).ids)
    parts = draw(st.lists(piece | piece | piece | anything, min_size=1, max_size=12))
    return [token_id for part in parts for token_id in part]


@st.composite
def turns_of(draw: st.DrawFn, marked: bool) -> list[Turn]:
    token_ids, turns = draw(token_ids_of(marked)), []
    while token_ids:
        size = draw(st.sampled_from([1, 1, 1, 1, 2, 4]))
        often, seldom = st.sampled_from([True] * 9 + [False]), st.sampled_from([False] * 9 + [True])
        turns.append(Turn(token_ids[:size], draw(often), draw(seldom)))
        token_ids = token_ids[size:]
    return turns


options = st.builds(
    AnswerOptions,
    include_usage=st.booleans(),
    continuous_usage=st.sampled_from([False, False, True]),
    token_ids=st.sampled_from([False, False, True]),
)
params = st.sampled_from([{}, {}, {}, {"stop": ["stop", "miles, t"]}, {"logprobs": 0}, {"min_tokens": 3}])
asked_for = st.builds(
    Asked, st.sampled_from(APIS), st.booleans(), options, st.booleans(), st.booleans(), st.booleans(),
    st.sampled_from([True, True, False]), params.map(lambda fields: SamplingParams(**fields)),
)  # fmt: skip


async def play(stream: PlayedStream, asked: Asked, turns: Sequence[Turn], end: str | None) -> None:
    """Let a stream have the steps of some turns, and its end, if there is one."""
    await stream.settle()
    for turn in turns:
        if turn.wakes:
            await stream.wake()
        stream.line.is_free = turn.reads
        await stream.step(step_of(asked, turn.token_ids))
    match end:
        case "abort":
            await stream.engine.abort([IDENTITY.id])
        case "death":
            stream.engine.die(RuntimeError("the engine died"))
        case "disconnect":
            await stream.disconnect()
        case str():
            last = step_of(asked, [EOS])
            last.finish_reason = end  # type: ignore[assignment]
            if end == "error":
                last.error = "broken on purpose"
            if stream.engine.state.completions[0].finish_reason is None:  # a stop string may have ended it
                await stream.step(last)
    await stream.settle()


def step_of(asked: Asked, token_ids: Sequence[int]) -> RequestStep:
    logprobs = [TokenLogprobsArray([token_id], [-0.5], [1]) for token_id in token_ids]
    return RequestStep("", list(token_ids), logprobs if asked.params.logprobs is not None else None)


def recorded(stream: PlayedStream) -> dict[str, Any]:
    """Return what a stream leaves but for times and ways."""
    stats = stream.engine.stats
    return {
        "pieces": stream.line.pieces,
        "counts": stream.counts,
        "tokens": [(one.num_generation_tokens, len(one.inter_token_latencies)) for one in stats],
        "finished": [(one.reason, one.num_generation_tokens) for each in stats for one in each.finished],
        "ended": stream.engine.state.metrics.num_generation_tokens,
    }


@given(data=st.data(), asked=asked_for, end=st.sampled_from(ENDS))
async def test_both_ways_write_the_same_bytes_counts_and_reports(
    data: st.DataObject, asked: Asked, end: str
) -> None:
    turns = data.draw(turns_of(asked.marked))
    short, long = PlayedStream(asked, short=True), PlayedStream(asked, short=False)

    await play(short, asked, turns, end)
    await play(long, asked, turns, end)

    assert recorded(short) == recorded(long)
    assert long.line.num_short == 0


@given(data=st.data(), asked=asked_for)
async def test_stream_that_is_continued_at_any_token_by_any_way_is_equal(
    data: st.DataObject, asked: Asked
) -> None:
    asked = replace(asked, reports=True)
    turns = data.draw(turns_of(asked.marked))
    whole = PlayedStream(asked, short=data.draw(st.booleans()))
    await play(whole, asked, turns, "length")
    groups = groups_of(b"".join(whole.line.pieces))
    assume(len(groups) > 1)
    count = data.draw(st.integers(1, len(groups) - 1))
    token_ids = [token_id for group in groups[:count] for token_id in group.report.token_ids]
    events = sum(group.report.events for group in groups[:count])
    logprobs = [one for group in groups[:count] for one in group.report.logprobs]
    resume = Resume(
        id=IDENTITY.id, created=IDENTITY.created, seed=SEED, model="", token_ids=token_ids, events=events,
        logprobs=logprobs,
    )  # fmt: skip

    rest = PlayedStream(asked, data.draw(st.booleans()), resume)
    await play(rest, asked, after(turns, len(token_ids)), "length")

    continued = groups_of(b"".join(rest.line.pieces))
    assert [group.events for group in continued] == [group.events for group in groups[count:]]
    assert [group.report.token_ids for group in continued] == [
        group.report.token_ids for group in groups[count:]
    ]
    assert rest.counts == whole.counts


def after(turns: Sequence[Turn], num_tokens: int) -> list[Turn]:
    """Return the turns after some tokens, which end with a turn."""
    left = list(turns)
    while num_tokens > 0:
        num_tokens -= len(left.pop(0).token_ids)
    assert num_tokens == 0
    return left


@given(
    asked=asked_for,
    kind=st.sampled_from([Text, Reasoning]),
    first=st.text(min_size=1),
    text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
)
def test_writer_writes_the_event_and_changes_the_renderer_as_the_event_does(
    asked: Asked, kind: type[Text] | type[Reasoning], first: str, text: str
) -> None:
    short, long, counts = renderer_of(asked), renderer_of(asked), TokenCounts(3, 5)
    for renderer in (short, long):
        renderer.event(ChoiceDelta(0, [kind(first)], [5], None, None, counts))
    write = short.text_writer(0, kind)
    if write is None:
        reject()

    written = [write(text) for _ in range(2)]

    events = [long.event(ChoiceDelta(0, [kind(text)], [6, 7], None, None, counts)) for _ in written]
    assert written == events
    assert [event.count(b"\n\n") for event in events] == [1, 1]
    last = ChoiceDelta(0, [], [], None, Finish("stop", None), counts)
    assert short.event(last) == long.event(last)


PLAIN = [token_id for _ in range(10) for token_id in tokenizer(True).encode("the river ran 42 miles").ids]


@pytest.mark.parametrize(
    ("asked", "share"),
    [
        (Asked("chat"), 0.9),
        (Asked("chat", reports=False), 0.9),
        (Asked("chat", marked=False), 0.9),
        (Asked("chat", reasons=True), 0.9),
        (Asked("completions"), 0.9),
        (Asked("messages"), 0.9),
        (Asked("messages", reasons=True), 0.9),
        (Asked("responses"), 0.9),
        (Asked("responses", reasons=True), 0.9),
        (Asked("responses", params=SamplingParams(logprobs=1)), 0),
        (Asked("messages", reasons=True, shows_reasoning=False), 0),
        (Asked("chat", options=AnswerOptions(continuous_usage=True)), 0),
        (Asked("chat", options=AnswerOptions(token_ids=True)), 0),
        (Asked("completions", params=SamplingParams(logprobs=1)), 0),
        (Asked("chat", params=SamplingParams(stop=["never"])), 0),
    ],
    ids=str,
)
async def test_plain_text_goes_the_short_way(asked: Asked, share: float) -> None:
    stream = PlayedStream(asked, short=True)

    await play(stream, asked, [Turn([token_id], True, False) for token_id in PLAIN], "length")

    short = sum(one.num_short_way_tokens for one in stream.engine.stats)
    assert short >= share * len(PLAIN) and bool(short) == bool(share)


async def test_error_in_a_streams_writing_ends_that_stream_alone(caplog: pytest.LogCaptureFixture) -> None:
    asked = Asked()
    stream = PlayedStream(asked, short=True)
    await play(stream, asked, [Turn([token_id], True, False) for token_id in PLAIN[:5]], None)
    assert stream.line.num_short
    stream.line.failure = RuntimeError("broken on purpose")

    with caplog.at_level(logging.ERROR):
        await stream.step(step_of(asked, PLAIN[:1]))

    assert b"internal error" in stream.line.pieces[-1]
    assert stream.engine.state.finished
    assert [record.getMessage() for record in caplog.records] == ["a request failed"]
