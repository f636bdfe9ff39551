"""Faults of the router's attempts and of its choice of an endpoint. Those with the subject of a commit undo its fix."""

from fault import Fault

REQUESTS = "engine_server/router/requests"
ROUTING = "engine_server/router/routing"
TESTS = "tests/router/requests"

FAULTS = (
    # Count a request that an engine died of, even where the connection was a kept one
    Fault(
        "a request that kills engines visits all whose connections were kept",
        f"{REQUESTS}/attempts.py",
        "relay = relay or Relay(exchange, lifecycle, outcome=Outcome.UNREACHABLE)",
        "relay = Relay(exchange, lifecycle, outcome=Outcome.UNREACHABLE)",
        (f"{TESTS}/test_attempts.py",),
    ),
    # Complete the router: overload, ejection, resumed streams, limits, keys and demand
    Fault(
        "a connect without an answer ejects the last replica",
        f"{REQUESTS}/next_step.py",
        'Verdict(Kind.SUSPECT, str(error) or "no answer to a connect")',
        'Verdict(Kind.EJECT, str(error) or "no answer to a connect")',
        (f"{TESTS}/test_attempts.py",),
    ),
    # End a stream whose continuation an engine refuses as another model without naming its own
    Fault(
        "a stream is sent without end to an engine of another model that does not say which",
        f"{REQUESTS}/next_step.py",
        "view.fingerprint not in (None, stream.fingerprint)",
        "view.fingerprint != stream.fingerprint",
        (f"{TESTS}/test_next_step.py",),
    ),
    # Complete the router: overload, ejection, resumed streams, limits, keys and demand
    Fault(
        "the load of a prompt stays with an endpoint after its first token",
        f"{REQUESTS}/lifecycle.py",
        """\
        if self.prompt_bytes and self.endpoint is not None:
            self.endpoint.record_first_token(self.prompt_bytes)
            self.prompt_bytes = 0
""",
        """\
        if self.endpoint is not None:
            self.prompt_bytes = 0
""",
        (f"{TESTS}/test_lifecycle.py",),
    ),
    # Complete the router: overload, ejection, resumed streams, limits, keys and demand
    Fault(
        "a model name that changes its meaning leaves a request counted at the deployment before",
        f"{REQUESTS}/lifecycle.py",
        """\
            if self.deployment is not None:
                self.metrics.demand.end(self.deployment)
            self.metrics.demand.begin(deployment)
""",
        "            self.metrics.demand.begin(deployment)\n",
        (f"{TESTS}/test_lifecycle.py", "tests/router/test_demand_page.py"),
    ),
    # Route requests for adapters to the replicas that have them
    Fault(
        "a stream of an adapter continues with its former weights",
        f"{ROUTING}/directory.py",
        "            endpoint.fingerprints.pop(name, None)\n",
        "            endpoint.fingerprints.get(name)\n",
        ("tests/router/routing/test_directory.py",),
    ),
    Fault(
        "a stream of which the client has the first event begins again",
        f"{REQUESTS}/journal.py",
        "return self.events > 0",
        "return self.events > 1",
        (f"{TESTS}/test_resume.py",),
    ),
    Fault(
        "a request that waits for a replica stays counted at the endpoint that it left",
        f"{REQUESTS}/lifecycle.py",
        "            self.endpoint.release(self.prompt_bytes)\n            self.endpoint = None\n",
        "            self.endpoint = None\n",
        (f"{TESTS}/test_lifecycle.py",),
    ),
    Fault(
        "a caller with many requests that wait lets no other one have a turn",
        f"{REQUESTS}/hold/line.py",
        "max(highest, last + 1)",
        "max(highest, last)",
        (f"{TESTS}/hold/test_line.py",),
    ),
    Fault(
        "one more retry than the budget has",
        f"{ROUTING}/retry_budget.py",
        "if len(retries) + 1 > max(MINIMUM",
        "if len(retries) > max(MINIMUM",
        ("tests/router/routing/test_retry_budget.py",),
    ),
    Fault(
        "a continued stream repeats or loses events of a report with several",
        f"{REQUESTS}/journal.py",
        "len(report.token_ids), report.events)",
        "len(report.token_ids), 1)",
        (f"{TESTS}/test_journal.py", f"{TESTS}/test_event_reader.py", f"{TESTS}/test_resume.py"),
    ),
    Fault(
        "a chunk with another length than it says passes in the steady state of a stream",
        f"{REQUESTS}/steady_stream.py",
        "if seed == self._seed and _is_size_of(size, data):",
        "if seed == self._seed:",
        (f"{TESTS}/test_steady_stream.py",),
    ),
    Fault(
        "a seed that no engine takes back passes in the steady state of a stream",
        f"{REQUESTS}/steady_stream.py",
        "if seed == self._seed and _is_size_of(size, data):",
        "if _is_size_of(size, data):",
        (f"{TESTS}/test_steady_stream.py",),
    ),
)
