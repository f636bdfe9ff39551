"""vLLM's forms of settings of pictures."""

from typing import Any

import pytest

from engine_server.engine.arguments.picture_settings import picture_limit, picture_options


@pytest.mark.parametrize(
    "limits, most",
    [
        ({}, 64),
        ({"image": 0}, 0),
        ({"image": 8, "video": 1}, 8),
        ({"image": {"count": 2}}, 2),
        ({"audio": 1}, 64),
    ],
)
def test_limit_is_that_of_images(limits: dict[str, Any], most: int) -> None:
    assert picture_limit(limits) == most


@pytest.mark.parametrize(
    "limits, message",
    [
        ({"images": 1}, "has 'images'; it takes image, audio and video"),
        ({"image": -1}, "has -1 for image; it takes an integer from 0 to 1024"),
        ({"image": True}, "has True for image"),
        ({"image": {"count": "2"}}, "has '2' for image"),
    ],
)
def test_other_limits_are_refused(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        picture_limit(limits)


def test_options_of_the_processor_are_its_size_alone() -> None:
    assert picture_options({"size": {"longest_edge": 512}}) == {"size": {"longest_edge": 512}}
    with pytest.raises(ValueError, match="mm_processor_kwargs has 'num_crops'; it takes size"):
        picture_options({"num_crops": 4})
