"""The tokens of real answers that go from a step to the client's connection in one function."""

import re
from typing import Any

import pytest
from asked import CHAT, MESSAGES, PATHS, RESPONSES, body_of

from engine_server.contract.wire import headers

COMPLETIONS = "completions"
LIMIT = 100


@pytest.mark.parametrize("reports", [{}, {headers.REPORT_TOKENS: "1"}], ids=["bare", "reported"])
@pytest.mark.parametrize("api", [CHAT, MESSAGES, RESPONSES, COMPLETIONS])
def test_nearly_all_tokens_of_a_streamed_answer_go_the_short_way(
    server: Any, api: str, reports: dict[str, str]
) -> None:
    body = body_of(CHAT if api == COMPLETIONS else api, limit=LIMIT, stream=True)
    if api == COMPLETIONS:
        body["prompt"] = body.pop("messages")[0]["content"]
    if api != MESSAGES:
        body["ignore_eos"] = True
    before = tokens_by_way(server)

    answer = server.request("POST", PATHS.get(api, "/v1/completions"), body, reports)

    assert answer.status == 200, answer.body
    after = tokens_by_way(server)
    short, long = (after[way] - before[way] for way in ("short", "long"))
    assert short + long == LIMIT or api == MESSAGES  # whose answer the model ends
    assert short and long <= 2 + 0.03 * LIMIT  # the first and the last, and few between them


def tokens_by_way(server: Any) -> dict[str, float]:
    page = server.get("/metrics").body.decode()
    found = re.findall(
        r'^fairlead:generation_tokens_by_way_total\{.*way="(\w+)"\} (\S+)$', page, re.MULTILINE
    )
    return {way: float(value) for way, value in found}
