"""vLLM's flags without a counterpart: accepted with a warning, or refused with what replaces them."""

import logging
import re
from pathlib import Path

import pytest

from engine_server.engine.engine_args import AsyncEngineArgs
from engine_server.server.arguments import ServerArgs
from engine_server.server.settings import ApiSettings
from engine_server.server.sources import Settings
from engine_server.server.vllm_flags import ALWAYS_ON, REFUSED, VllmFlags, check_vllm_flags, flag

DOCS = Path(__file__).parents[2] / "docs" / "server.md"
ACCEPTED = [
    "--enable-auto-tool-choice",
    "--tool-call-parser=hermes",
    "--enable-reasoning",
    "--reasoning-parser=deepseek_r1",
    "--guided-decoding-backend=xgrammar",
    "--structured-outputs-config.backend=xgrammar",
]


def check(*argv: str) -> None:
    settings = Settings("fairlead engine", "", AsyncEngineArgs, ApiSettings, ServerArgs, VllmFlags)
    check_vllm_flags(settings.read(["a-model", *argv], {}))


def test_flags_whose_effect_is_always_on_are_accepted_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    check(*ACCEPTED)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert set(re.findall(r"--[a-z-]+", record.getMessage())) == set(map(flag, ALWAYS_ON))


@pytest.mark.parametrize("given", ACCEPTED)
def test_each_flag_whose_effect_is_always_on_may_stand_in_a_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, given: str
) -> None:
    key, _, value = given.removeprefix("--").partition("=")
    outer, _, inner = key.partition(".")
    file = tmp_path / "config.yaml"
    file.write_text(f"{outer}: {{{inner}: {value}}}\n" if inner else f"{outer}: {value or 'true'}\n")
    check(f"--config={file}")
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [f"--{outer}"]


@pytest.mark.parametrize("name", REFUSED)
def test_flag_that_changes_placement_or_results_is_refused_with_its_replacement(name: str) -> None:
    refusal = REFUSED[name]
    given = flag(name) if refusal.kind is bool else f"{flag(name)}=2"
    with pytest.raises(ValueError, match=re.escape(f"{flag(name)} is not supported; {refusal.replacement}")):
        check(given)


@pytest.mark.parametrize(
    "given",
    ["--pipeline-parallel-size=1", "--no-enable-expert-parallel", "--cpu-offload-gb=0", "--task=auto"],
)
def test_flag_that_asks_for_nothing_is_accepted(given: str, caplog: pytest.LogCaptureFixture) -> None:
    check(given)
    assert not caplog.records


def test_other_settings_of_structured_outputs_are_refused() -> None:
    with pytest.raises(ValueError, match="'disable_any_whitespace', which is not supported"):
        check("--structured-outputs-config.disable-any-whitespace", "true")


def test_replacements_exist_and_the_documents_list_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        check("--help")
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    for refusal in REFUSED.values():
        assert set(re.findall(r"--[a-z-]+", refusal.replacement)) <= known
    documented = set(re.findall(r"`(--[a-z-]+)", DOCS.read_text()))
    assert set(map(flag, [*ALWAYS_ON, *REFUSED])) <= documented
