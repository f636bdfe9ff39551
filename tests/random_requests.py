"""Random requests to a scheduler without a model: shared prefixes, aborts, failures, drafts and overlapped steps."""

import random
from dataclasses import dataclass, field

from scheduling import LONGEST

from engine_server.core.scheduling.batch import Batch, by_request, has_drafts, sampled_part
from engine_server.core.scheduling.integrity import check_integrity
from engine_server.core.scheduling.request import GenerationRequest
from engine_server.core.scheduling.scheduler import Scheduler
from engine_server.core.scheduling.step_result import StepResult
from engine_server.requests.messages import RequestStep
from engine_server.requests.sampling_params import SamplingParams

TURNS = 150


@dataclass
class RandomRequests:
    """A scheduler under random requests.

    overlapped: a step is scheduled before the results of the last one; drafts: requests get some at times.
    """

    scheduler: Scheduler
    random: random.Random
    overlapped: bool = False
    drafts: bool = True
    in_flight: list[Batch] = field(default_factory=list)

    def computed(self, batch: Batch) -> None:
        """Called with each step as it is scheduled."""

    def received(self, steps: list[RequestStep]) -> None:
        """Called with what requests get from each step."""

    def run(self) -> None:
        """Run all turns, then all requests to their ends."""
        for turn in range(TURNS):
            for _ in range(self.random.choice([0, 0, 0, 1, 2])):
                self.add(f"{turn} {len(self.scheduler.requests)}")
            self.disturb(self.random.randrange(40))
            self.step()
        while self.scheduler.requests or self.in_flight:
            self.step()

    def add(self, name: str) -> None:
        """Queue a request whose prompt shares a prefix of any length with others of its family."""
        family, shared, own = self.random.randrange(3), self.random.randrange(25), self.random.randrange(1, 8)
        prompt = [family * 100 + token for token in range(shared)]
        prompt += [self.random.randrange(1000, 9000) for _ in range(own)]
        output = self.random.randrange(1, LONGEST - len(prompt) + 1)
        priority = self.random.randrange(3)
        self.scheduler.add(
            GenerationRequest(name, prompt, len(prompt), SamplingParams(), output, priority=priority)
        )

    def disturb(self, event: int) -> None:
        """Do what may come between two steps; most events are none."""
        scheduler = self.scheduler
        match event:
            case 0 | 1 | 2 if scheduler.requests:
                scheduler.abort([self.random.choice(sorted(scheduler.requests))])
            case 3 | 4 | 5 if self.drafts:
                while self.in_flight:
                    self.collect()
                for request in scheduler.running:
                    request.drafts = self.random.choices([7, 8], [3, 1], k=self.random.randrange(1, 7))
            case 6:
                for request, _ in by_request(self.schedule()):
                    scheduler.fail(request, "failed")
            case 7 if batch := self.schedule():
                scheduler.retry(batch, "out of memory")
            case 8:
                scheduler.reset_prefix_cache(reset_running_requests=True)

    def schedule(self) -> Batch:
        while any(has_drafts(batch) for batch in self.in_flight):
            self.collect()
        batch = self.scheduler.schedule()
        self.computed(batch)
        return batch

    def step(self) -> None:
        batch = self.schedule()
        if batch:
            self.in_flight.append(batch)
        if self.in_flight and (len(self.in_flight) > self.overlapped or not batch):
            self.collect()
        check_integrity(self.scheduler)

    def collect(self) -> None:
        batch = self.in_flight.pop(0)
        self.received(self.scheduler.update(batch, [StepResult([7]) for _ in sampled_part(batch)]))
