"""TTFT and prefix cache hit rate by routing policy, over simulated engines and with the router's own policies.

    python -m benchmarks.policies [--seconds 600] [--seed 0]

Each engine batches continuously: a step computes a token of each running request and as many tokens of prompts as its
budget allows, and takes longer the more it computes. Its prefix cache is bounded and evicts what was used longest ago.
Users send the next message of their conversation some time after an answer. For "best possible" the engines share one
cache, as large as theirs together: nothing is stored twice, and it does not matter where a request goes. "unbounded
cache" is the same without a bound. The first fifth of the time is not counted. Tables are printed, and the figures are
saved under benchmarks/results/.
"""

import argparse
import heapq
import itertools
import json
import statistics
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from benchmarks.record import save
from engine_server.contract.cluster.api import Key
from engine_server.router.routing.endpoint import RAMP_SECONDS, Address, Endpoint
from engine_server.router.routing.key import DEFAULT_PREFIX_CHARS, RouteKey, read_key
from engine_server.router.routing.policies.policy import Policy
from engine_server.router.routing.policies.registry import POLICIES

ENGINES = 4
BEST = "best possible"
UNBOUNDED = "unbounded cache"

# An engine: about an 8B model on one GPU.
BLOCK_TOKENS = 64
CACHE_TOKENS = 64 * 1024
MAX_SEQUENCES = 64
STEP_TOKENS = 2048
STEP_SECONDS = 0.02
SECONDS_PER_PROMPT_TOKEN = 0.0001
SECONDS_PER_SEQUENCE = 0.0001

CHARACTERS_PER_TOKEN = 4

Block = tuple[str, int, int]


@dataclass(frozen=True)
class Trace:
    """The conversations of a number of users.

    Tokens of messages and answers are the means of exponential distributions, as are seconds.
    """

    users: int
    turns: int
    system_prompts: int
    system_tokens: int
    message_tokens: int
    answer_tokens: int
    think_seconds: float


TRACES = {
    "multi-turn": Trace(60, 8, 1, 0, 250, 150, 5.0),
    "shared system prompt": Trace(60, 4, 1, 2048, 150, 150, 5.0),
    # More conversations than the caches hold together.
    "multi-turn, crowded": Trace(120, 8, 1, 0, 250, 150, 5.0),
    # More system prompts than one cache holds.
    "many system prompts": Trace(60, 4, 64, 2048, 150, 150, 5.0),
}


@dataclass
class Job:
    """One request at an engine. Times are in seconds of the simulation."""

    conversation: int
    system_prompt: int
    system_blocks: int
    prompt_tokens: int
    answer_tokens: int
    sent: float
    on_end: Callable[[float], None]
    endpoint: Endpoint
    size: int
    cached_tokens: int = 0
    computed_tokens: int = 0
    first_token: float = 0.0

    def blocks(self, tokens: int) -> list[Block]:
        """Return the full blocks of the first tokens."""
        system = [("system", self.system_prompt, n) for n in range(self.system_blocks)]
        rest = range(self.system_blocks, tokens // BLOCK_TOKENS)
        return system + [("conversation", self.conversation, n) for n in rest]


class Cache:
    """The prefix cache of an engine, without a bound if there is no capacity."""

    def __init__(self, capacity: int | None) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[Block, None] = OrderedDict()

    def find(self, blocks: list[Block]) -> int:
        """Return how many of the first blocks are cached."""
        found = 0
        for block in blocks:
            if block not in self._blocks:
                break
            self._blocks.move_to_end(block)
            found += 1
        return found

    def add(self, blocks: list[Block]) -> None:
        """Keep blocks, and evict those that were used longest ago. The end of a prompt goes before its beginning."""
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while self._capacity is not None and len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)


@dataclass
class Engine:
    """A simulated engine."""

    clock: "Clock"
    cache: Cache
    ended: list[Job]
    waiting: deque[Job] = field(default_factory=deque)
    prompts: list[Job] = field(default_factory=list)
    # Requests that generate, by the step of their last token.
    answers: list[tuple[int, int, Job]] = field(default_factory=list)
    steps: int = 0
    in_step: bool = False
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def submit(self, job: Job) -> None:
        self.waiting.append(job)
        if not self.in_step:
            self.begin_step(self.clock.now)

    def begin_step(self, now: float) -> None:
        while self.waiting and len(self.prompts) + len(self.answers) < MAX_SEQUENCES:
            job = self.waiting.popleft()
            found = self.cache.find(job.blocks(job.prompt_tokens)) * BLOCK_TOKENS
            job.cached_tokens = job.computed_tokens = min(found, job.prompt_tokens - 1)
            self.prompts.append(job)
        self.in_step = bool(self.prompts or self.answers)
        if not self.in_step:
            return
        budget = STEP_TOKENS - len(self.answers)
        for job in self.prompts:
            tokens = min(budget, job.prompt_tokens - job.computed_tokens)
            job.computed_tokens += tokens
            budget -= tokens
        prompt_tokens = STEP_TOKENS - len(self.answers) - budget
        seconds = STEP_SECONDS + SECONDS_PER_PROMPT_TOKEN * prompt_tokens
        self.clock.call(now + seconds + SECONDS_PER_SEQUENCE * len(self.answers), self.end_step)

    def end_step(self, now: float) -> None:
        self.steps += 1
        for job in [job for job in self.prompts if job.computed_tokens == job.prompt_tokens]:
            self.prompts.remove(job)
            self.cache.add(job.blocks(job.prompt_tokens))
            job.first_token = now
            job.endpoint.record_first_token(job.size)
            heapq.heappush(self.answers, (self.steps + job.answer_tokens - 1, next(self.numbers), job))
        while self.answers and self.answers[0][0] <= self.steps:
            job = heapq.heappop(self.answers)[2]
            self.cache.add(job.blocks(job.prompt_tokens + job.answer_tokens))
            job.endpoint.release(0)
            self.ended.append(job)
            job.on_end(now)
        self.begin_step(now)


class Clock:
    """The time of a simulation, and what happens when."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count()

    def call(self, when: float, function: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), function))

    def run(self, seconds: float) -> None:
        while self._events and self._events[0][0] < seconds:
            self.now, _, function = heapq.heappop(self._events)
            function(self.now)


class Router:
    """The endpoints of the engines, and the policy that chooses among them."""

    def __init__(self, policy: Callable[[list[Endpoint]], Policy], engines: list[Engine]) -> None:
        self.engines = {
            Endpoint(Key("default", "m"), Address(f"10.0.0.{number}", 8000)): engine
            for number, engine in enumerate(engines)
        }
        self.endpoints = list(self.engines)
        for endpoint in self.endpoints:
            endpoint.begin_ramp(-RAMP_SECONDS)
        self.policy = policy(self.endpoints)

    def pick(self, key: RouteKey, now: float) -> Endpoint:
        endpoint = self.policy.pick(key, self.endpoints, now).endpoint
        endpoint.count(now, key.size)
        return endpoint


class User:
    """A user, who has one conversation after the other."""

    def __init__(self, number: int, trace: Trace, seed: int, router: Router, clock: Clock) -> None:
        self.name = f"user-{number}"
        # Numbers that no other user's conversations have.
        self.conversations = itertools.count(number, trace.users)
        self.trace = trace
        self.random = Random(f"{seed} {number}")
        self.router = router
        self.clock = clock
        self.clock.call(self.random.uniform(0.0, 2.0 * trace.think_seconds), self.begin)

    def begin(self, now: float) -> None:
        self.conversation = next(self.conversations)
        self.system_prompt = self.random.randrange(self.trace.system_prompts)
        self.tokens = self.trace.system_tokens
        self.messages = [{"role": "system", "content": text(self.tokens, f"system {self.system_prompt}")}]
        self.turn = 0
        self.send(now)

    def send(self, now: float) -> None:
        self.turn += 1
        tokens = self.draw(self.trace.message_tokens)
        self.tokens += tokens
        content = text(tokens, f"conversation {self.conversation} turn {self.turn}")
        self.messages.append({"role": "user", "content": content})
        body = json.dumps({"model": "m", "stream": True, "user": self.name, "messages": self.messages})
        key = read_key(bytearray(body.encode()), {}, DEFAULT_PREFIX_CHARS)
        endpoint = self.router.pick(key, now)
        answer_tokens = self.draw(self.trace.answer_tokens)
        system_blocks = self.trace.system_tokens // BLOCK_TOKENS
        job = Job(
            self.conversation, self.system_prompt, system_blocks, self.tokens, answer_tokens, now, self.read,
            endpoint, key.size,
        )  # fmt: skip
        self.tokens += answer_tokens
        self.messages.append({"role": "assistant", "content": text(answer_tokens, "answer")})
        self.router.engines[endpoint].submit(job)

    def read(self, now: float) -> None:
        go_on = self.send if self.turn < self.trace.turns else self.begin
        self.clock.call(now + self.random.expovariate(1.0 / self.trace.think_seconds), go_on)

    def draw(self, mean: int) -> int:
        return 16 + int(self.random.expovariate(1.0 / (mean - 16)))


def text(tokens: int, start: str) -> str:
    return (start + " " + "word " * tokens)[: CHARACTERS_PER_TOKEN * tokens]


def simulate(policy: str, trace: Trace, seconds: float, seed: int) -> dict[str, float]:
    """Return the figures of one policy on a trace."""
    clock = Clock()
    ended: list[Job] = []
    capacity = CACHE_TOKENS // BLOCK_TOKENS
    shared = {BEST: Cache(ENGINES * capacity), UNBOUNDED: Cache(None)}.get(policy)
    engines = [Engine(clock, shared or Cache(capacity), ended) for _ in range(ENGINES)]
    router = Router(POLICIES["least_load" if shared else policy], engines)
    for number in range(trace.users):
        User(number, trace, seed, router, clock)
    clock.run(seconds)
    jobs = [job for job in ended if job.sent >= seconds / 5]
    ttfts = sorted(job.first_token - job.sent for job in jobs)
    return {
        "requests_per_second": round(len(jobs) / (0.8 * seconds), 1),
        "hit_rate": round(sum(job.cached_tokens for job in jobs) / sum(job.prompt_tokens for job in jobs), 4),
        "mean_ttft_ms": round(1000 * statistics.mean(ttfts), 1),
        "p90_ttft_ms": round(1000 * ttfts[len(ttfts) * 9 // 10], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare routing policies over simulated engines.")
    parser.add_argument("--seconds", type=float, default=600.0, help="simulated time (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    results: dict[str, dict[str, dict[str, float]]] = {}
    for name, trace in TRACES.items():
        print(
            f"\n| {name} | hit rate | of the best | mean TTFT ms | p90 TTFT ms | req/s |\n|---|---|---|---|---|---|"
        )
        rows = {
            policy: simulate(policy, trace, args.seconds, args.seed)
            for policy in (UNBOUNDED, BEST, *POLICIES)
        }
        for policy, row in rows.items():
            row["hit_rate_of_best"] = round(row["hit_rate"] / rows[BEST]["hit_rate"], 4)
            print(
                f"| {policy} | {row['hit_rate']:.1%} | {row['hit_rate_of_best']:.1%} "
                f"| {row['mean_ttft_ms']:.0f} | {row['p90_ttft_ms']:.0f} | {row['requests_per_second']} |"
            )
        results[name] = rows
    save("policies", {"traces": results})


if __name__ == "__main__":
    main()
