"""The file with the operator's profiles."""

from pathlib import Path

import pytest
from llm_operator.api.profiles import read_profiles
from llm_operator.api.schema import SpecError


def test_profiles_are_read_as_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "profiles.yaml"
    file.write_text(
        "gpu-l4:\n  resources: {gpu: 1, cpu: null}\n  podTemplate: {spec: {tolerations: null}}\nempty: {}\n"
    )

    assert read_profiles(file) == {
        "gpu-l4": {"resources": {"gpu": 1}, "podTemplate": {"spec": {"tolerations": None}}},
        "empty": {},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("l4: {resources: {gpus: 1}}", r"profiles\.l4\.resources\.gpus: there is no such field"),
        ("l4: {resources: {gpu: many}}", r"profiles\.l4\.resources\.gpu: expected `int`"),
        ("l4: {model: {uri: a/b}}", r"profiles\.l4\.model: there is no such field"),
        ("l4: {podTemplate: {spec: {containers: [{}]}}}", r"containers\[0\]\.name: this field is required"),
        ("L 4: {}", r"profiles\.L 4: expected `str` matching"),
        ("- l4", "profiles: expected `object`, got `array`"),
        ("l4: {", "^profiles: "),
    ],
)
def test_a_wrong_file_is_refused_with_the_field(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "profiles.yaml"
    file.write_text(text)

    with pytest.raises(SpecError, match=message):
        read_profiles(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="No such file"):
        read_profiles(tmp_path / "profiles.yaml")
