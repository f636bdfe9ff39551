"""Faults of the scheduler. Those with the subject of a commit undo its fix."""

from fault import Fault

REQUEST = "engine_server/core/scheduling/request.py"
SCHEDULER = "engine_server/core/scheduling/scheduler.py"
HASHING = "engine_server/core/scheduling/hashing.py"
WAITING = "engine_server/core/scheduling/waiting.py"
SCHEDULER_TESTS = ("tests/core/test_scheduler.py", "tests/core/test_scheduled_drafts.py")

FAULTS = (
    # Let a failed step leave a request alone that has an ended one's id
    Fault(
        "the result of an aborted request goes to a later one of the same id",
        SCHEDULER,
        "return self.requests.get(request.request_id) is request",
        "return request.request_id in self.requests",
        ("tests/core/test_overlap.py",),
    ),
    # Fix repeated lookups of a waiting prompt and repeated hashing of its choices
    Fault(
        "a waiting prompt is looked up in every step",
        SCHEDULER,
        "return too_long or not self.table.has_free(refusal.num_blocks)",
        "return False",
        ("tests/core/scheduling/test_refusals.py",),
    ),
    Fault(
        "a refused prompt waits for memory of blocks that it could share with a request admitted since",
        SCHEDULER,
        "refusal is None or refusal.num_admitted < self._num_admitted",
        "refusal is None",
        ("tests/core/scheduling/test_refusals.py",),
    ),
    Fault(
        "a preempted request waits behind all others",
        WAITING,
        "insort(self._requests, request, key=by_queue_position)",
        "self._requests.append(request)",
        ("tests/core/scheduling/test_waiting.py",),
    ),
    # Fix repeated lookups of a waiting prompt and repeated hashing of its choices
    Fault(
        "each choice of a prompt hashes it anew",
        REQUEST,
        "request.prompt_hashes = requests[0].prompt_hashes",
        "request.prompt_hashes = []",
        SCHEDULER_TESTS,
    ),
    Fault(
        "blocks of tokens with other embeddings are shared",
        REQUEST,
        "Stretch(parent, tokens, self._extras(first, end, size))",
        "Stretch(parent, tokens)",
        ("tests/core/scheduling/test_block_hashes.py",),
    ),
    Fault(
        "a prompt with embeddings shares no blocks of the text before them",
        REQUEST,
        "(salt, self.rope_regime, None, *digests)",
        "(salt, self.rope_regime, None, *digests, *[span.digest for span in self.spans])",
        ("tests/core/scheduling/test_block_hashes.py",),
    ),
    # Overlap steps of engines with drafts while no drafts are wanted
    Fault(
        "a request that was preempted while drafts were verified has a negative number of computed tokens",
        REQUEST,
        """\
        if self.row is not None:  # a request that was preempted since has no computed tokens
            self.computed -= num_results - len(tokens)
""",
        "        self.computed -= num_results - len(tokens)\n",
        SCHEDULER_TESTS,
    ),
    # Fix deadlines that were not enforced while the engine is paused or asleep
    Fault(
        "the deadline of a waiting request passes unnoticed",
        SCHEDULER,
        "deadlines = [one.deadline for one in self.requests.values() if one.deadline is not None]",
        "deadlines = [one.deadline for one in self.running if one.deadline is not None]",
        SCHEDULER_TESTS,
    ),
    # Live through a step without memory, end at once with a lost device, and take float16 where a GPU lacks bfloat16
    Fault(
        "a step that did not fit into memory is tried again as large as it was",
        SCHEDULER,
        "self._budget = max(1, num_tokens(batch) // 2)",
        "self._budget = max(1, num_tokens(batch))",
        ("tests/core/test_faults.py",),
    ),
    Fault(
        "a request that waits is not aborted",
        SCHEDULER,
        "            if request := self.requests.get(request_id):\n",
        "            if (request := self.requests.get(request_id)) and request.row is not None:\n",
        SCHEDULER_TESTS,
    ),
    Fault(
        "drafts take more than the budget of a step",
        SCHEDULER,
        "budget -= count + len(drafts)",
        "budget -= count",
        SCHEDULER_TESTS,
    ),
    Fault(
        "the last token of a cached prompt is never computed",
        HASHING,
        "(len(request.token_ids) - 1) // self._known.block_size",
        "len(request.token_ids) // self._known.block_size",
        ("tests/core/test_prefix_cache.py",),
    ),
    Fault(
        "the blocks of a failed request keep what it wrote for the next request",
        SCHEDULER,
        "self.erase(self._release(request, computed=0))",
        "self._release(request, computed=0)",
        SCHEDULER_TESTS,
    ),
)
