"""The settings of answers: adapters that are served from the start on."""

import json

import pytest

from engine_server.server.settings import ApiSettings


def test_adapters_are_pairs_or_objects_in_the_form_of_vllm() -> None:
    module = {"name": "sql", "path": "/adapters/sql=1", "base_model_name": "base"}
    settings = ApiSettings(lora_modules=["french=hf://org/french", json.dumps(module)])
    assert settings.adapters() == {"french": "hf://org/french", "sql": "/adapters/sql=1"}


@pytest.mark.parametrize(
    "text",
    [
        "sql",
        "=/sql",
        '{"name": "sql"}',
        '{"name": "sql", "path": 3}',
        '{"name": "a", "path": "b", "c": 1}',
        "{",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="takes NAME=URI, or JSON with name and path"):
        ApiSettings(lora_modules=[text]).adapters()
