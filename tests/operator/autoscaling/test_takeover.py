"""The successor of an operator that has scaled, against a real API server with real routers."""

import re
from datetime import datetime
from typing import Any

import pytest
from waiting import until

# In seconds.
WINDOW = 2


@pytest.mark.more
def test_an_operator_that_takes_over_scales_nothing_down_before_a_window_has_passed(
    scaling: Any, start_scaler: Any, manifest: Any
) -> None:
    leader = start_scaler()
    until(lambda: leader.logged("this operator holds"))
    successor = start_scaler()
    until(lambda: successor.logged("standing by"))
    windows = {"stableWindowSeconds": WINDOW, "panicWindowSeconds": 1, "scaleDownDelaySeconds": 1}
    scaling.apply(manifest, "inherited", 1, min=1, max=4, **windows)
    until(lambda: leader.metric("fairlead_operator_scaling_reason", name="inherited", reason="Steady"))
    assert leader.stop() == 0
    scaling.scale("inherited", 3)
    until(lambda: successor.logged("/inherited: scaled from 3 to 1"))

    assert scaling.replicas("inherited") == 1
    log = successor.log
    begun, scaled = (
        datetime.fromisoformat(found[1].replace(",", "."))
        for words in ("this operator holds", "/inherited: scaled from 3 to 1")
        if (found := re.search(rf"^(\S+ \S+) .*{words}", log, re.MULTILINE))
    )
    assert (scaled - begun).total_seconds() >= WINDOW
