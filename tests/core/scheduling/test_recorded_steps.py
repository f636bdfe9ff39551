"""Steps of random requests, without a model, against a recording: blocks, rows, hits, evictions and preemptions.

The table beside this file has a line for each scenario. A change of what steps do is a change of its lines, which a
failure prints.
"""

import csv
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from random_requests import RandomRequests
from scheduling import LONGEST, make

from engine_server.core.scheduling.batch import Batch
from engine_server.modeling.cache.spec import FULL, ChunkSpec, WindowSpec
from engine_server.requests.messages import RequestStep

RECORDING = Path(__file__).with_name("recorded_steps.csv")
NEAR, FAR, CHUNK = WindowSpec(6), WindowSpec(13), ChunkSpec(8)
# The arguments of `make` by scenario; `overlapped`: a step is scheduled before the results of the last one.
SCENARIOS: dict[str, dict[str, Any]] = {
    "full": {"num_blocks": 24, "budget": 16, "seats": 5},
    "full, overlapped": {"num_blocks": 24, "budget": 16, "seats": 5, "overlapped": True},
    "full, few blocks": {"num_blocks": 10, "budget": 9, "seats": 4},
    "full, whole prompts": {"num_blocks": 20, "budget": LONGEST, "seats": 4, "chunked": False},
    "full, without a prefix cache": {"num_blocks": 20, "budget": 16, "seats": 4, "caching": False},
    "full, by priority": {"num_blocks": 16, "budget": 12, "seats": 4, "policy": "priority"},
    "window": {"num_blocks": 20, "budget": 12, "seats": 5, "specs": (NEAR,)},
    "window, overlapped": {"num_blocks": 11, "budget": 12, "seats": 5, "specs": (FAR,), "overlapped": True},
    "chunk": {"num_blocks": 14, "budget": 12, "seats": 5, "specs": (CHUNK,)},
    "window and chunk, a pool each": {
        "num_blocks": 12, "budget": 12, "seats": 5, "specs": (NEAR, CHUNK), "pools": (0, 1),
    },
    "full and window, one pool": {"num_blocks": 24, "budget": 12, "seats": 5, "specs": (FULL, NEAR)},
    "full and window, a pool each": {
        "num_blocks": 24, "budget": 12, "seats": 5, "specs": (FULL, NEAR), "pools": (0, 1),
    },
    "full and window, a pool each, few blocks, overlapped": {
        "num_blocks": 12, "budget": 9, "seats": 6, "specs": (FAR, FULL), "pools": (0, 1), "overlapped": True,
    },
    "full and chunk, a pool each": {
        "num_blocks": 20, "budget": 12, "seats": 5, "specs": (FULL, CHUNK), "pools": (0, 1),
    },
    "full and chunk, one pool, by priority": {
        "num_blocks": 12, "budget": 12, "seats": 5, "specs": (CHUNK, FULL), "policy": "priority",
    },
    "three kinds, one pool": {"num_blocks": 16, "budget": 16, "seats": 5, "specs": (FULL, NEAR, CHUNK)},
    "three kinds, two pools, overlapped": {
        "num_blocks": 20, "budget": 16, "seats": 5, "specs": (NEAR, FULL, FAR), "pools": (0, 1, 0),
        "overlapped": True,
    },
    "three kinds, three pools": {
        "num_blocks": 14, "budget": 16, "seats": 6, "specs": (FULL, FAR, CHUNK), "pools": (0, 1, 2),
    },
}  # fmt: skip


@dataclass
class Recorder(RandomRequests):
    """A scheduler under random requests, and what its steps do."""

    steps: list[Any] = field(default_factory=list)
    taken: int = 0
    hits: int = 0
    evictions: int = 0
    preemptions: int = 0

    def __post_init__(self) -> None:
        self.scheduler.erase = lambda block_ids: self.steps.append(("erase", block_ids))
        for pool in self.scheduler.table.pools:
            pool.allocate = self.counted(pool.allocate, lambda pool=pool: len(pool.blank_blocks))

    def counted(
        self, allocate: Callable[[int], list[int]], num_blank: Callable[[], int]
    ) -> Callable[[int], list[int]]:
        def allocate_and_count(count: int) -> list[int]:
            self.taken += count
            self.evictions += max(0, count - num_blank())
            return allocate(count)

        return allocate_and_count

    def computed(self, batch: Batch) -> None:
        table, stats = self.scheduler.table, self.scheduler.stats()
        self.hits += stats.prefix_cache_hits
        self.preemptions += stats.num_preemptions
        self.steps.append((
            [(one.request.request_id, one.row, one.start, one.num_tokens, one.samples, one.draft) for one in batch],
            table.take_changes().tolist(),
            [(pool.num_free, len(pool.blank_blocks)) for pool in table.pools],
            (stats.num_running, stats.num_waiting, stats.prefix_cache_queries, self.hits, self.preemptions),
            (round(table.usage, 6), table.num_free, self.evictions),
        ))  # fmt: skip

    def received(self, steps: list[RequestStep]) -> None:
        self.steps.append([(step.request_id, step.new_token_ids, step.finish_reason) for step in steps])

    def line(self, scenario: str) -> dict[str, str]:
        numbers = {
            "steps": len(self.steps), "taken": self.taken, "hits": self.hits, "evictions": self.evictions,
            "preemptions": self.preemptions,
        }  # fmt: skip
        digest = sha256(repr(self.steps).encode()).hexdigest()[:16]
        return {
            "scenario": scenario,
            **{name: str(number) for name, number in numbers.items()},
            "sha256": digest,
        }


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_steps_are_the_recorded_ones(scenario: str) -> None:
    arguments = {**SCENARIOS[scenario]}
    overlapped = arguments.pop("overlapped", False)
    recorder = Recorder(make(**arguments), random.Random(scenario), overlapped)
    recorder.run()
    with RECORDING.open(newline="") as file:
        recorded = {line["scenario"]: line for line in csv.DictReader(file)}
    assert recorder.line(scenario) == recorded.get(scenario)
