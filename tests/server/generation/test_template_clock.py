"""The clock of chat templates, with transformers' own renderer."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from engine_server.server.generation.template_clock import stopped_clock

DAY = "{{ strftime_now('%Y-%m-%d') }}"
# In 2001, wherever on earth.
LONG_AGO = 1_000_000_000


def render(template: str, seconds: int | None) -> str:
    with stopped_clock(template, seconds):
        (text,), _ = render_jinja_template([[{"role": "user", "content": "a"}]], chat_template=template)
    return str(text)


def test_template_is_rendered_at_the_given_time_and_later_ones_at_the_current_one() -> None:
    assert render(DAY, LONG_AGO).startswith("2001-09-")
    assert not render(DAY, None).startswith("2001")


def test_each_thread_has_its_own_time() -> None:
    times = [LONG_AGO + year * 366 * 24 * 3600 for year in range(8)]
    with ThreadPoolExecutor(4) as threads:
        days = list(threads.map(lambda seconds: render(DAY, seconds), times * 8))

    assert len({*days[:8]}) == 8
    assert days == days[:8] * 8


def test_time_without_a_date_is_an_error_of_the_template_alone() -> None:
    with pytest.raises((ValueError, OverflowError)):
        render(DAY, 1 << 40)
    assert render("{{ messages[0].content }}", 1 << 40) == "a"
