"""Values of a step's requests are built again only when the requests change."""

from scheduling import make, request, run

from engine_server.core.logits.batch_cache import BatchCache
from engine_server.core.scheduling.batch import Batch, sampled_part


def test_value_is_kept_while_steps_have_the_same_requests() -> None:
    built: list[list[str]] = []

    def build(batch: Batch) -> list[str]:
        built.append([scheduled.request.request_id for scheduled in batch])
        return built[-1]

    cache = BatchCache(build)
    scheduler = make(num_blocks=40, budget=64, seats=4)
    scheduler.add(request("short", 3, 3))
    scheduler.add(request("long", 5, 5))
    values = []
    while scheduler.requests:
        batch = scheduler.schedule()
        values.append(cache.get(sampled_part(batch)))
        run(scheduler, batch)
    assert values == [["short", "long"]] * 3 + [["long"]] * 2
    assert built == [["short", "long"], ["long"]]


def test_value_is_built_for_a_later_request_of_the_same_id() -> None:
    cache = BatchCache(lambda batch: batch[0].request)
    scheduler = make(num_blocks=40, budget=64, seats=4)
    for _ in range(2):
        scheduler.add(request("again", 3, 1))
        batch = scheduler.schedule()
        assert cache.get(batch) is batch[0].request
        run(scheduler, batch)
