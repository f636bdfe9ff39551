"""What is true of a scheduler between two steps, for tests."""

from engine_server.core.scheduling.scheduler import Scheduler


def check_integrity(scheduler: Scheduler) -> None:
    """Assert that requests, rows and blocks agree between two steps. Takes time linear in the number of blocks."""
    scheduler.table.check_integrity()
    scheduler.waiting.check_integrity()
    queued = [*scheduler.running, *scheduler.waiting]
    assert len(queued) == len(scheduler.requests), "a request is in no queue, or in more than one"
    assert all(scheduler.requests.get(request.request_id) is request for request in queued), (
        "a queue contains a request that has ended"
    )
    rows = {request.row for request in scheduler.running}
    assert None not in rows and len(rows) == len(scheduler.running), (
        "running requests share a row or have none"
    )
    assert len(rows) + scheduler.table.num_free_rows == scheduler.table.ids.shape[1], (
        "an open row has no request"
    )
    for request in scheduler.running:
        assert request.row is not None
        assert request.computed <= len(request.token_ids), f"{request.request_id} is computed too far"
        assert request.computed >= request.steady_until or request.pending == 1, (
            f"{request.request_id} is steady and decodes nothing"
        )
        for kind in range(len(scheduler.table.specs)):
            room = scheduler.table.columns(kind, request.row).stop * scheduler.table.block_size
            assert request.computed <= room, f"{request.request_id} has computed tokens without a block"
