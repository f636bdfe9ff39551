"""The flags of `fairlead operator`."""

import pytest
from llm_operator.flags import PLACEHOLDER_TAG, parse


def test_the_key_of_the_admin_api_can_be_used_without_that_of_the_router() -> None:
    options = parse(["--engine-image=engine:1", "--admin-key-secret=admin"])

    assert options.key_secrets == (None, "admin")
    assert not options.settings.engine_keys


def test_engines_ask_for_keys_with_both() -> None:
    options = parse(["--engine-image=engine:1", "--admin-key-secret=admin", "--router-key-secret=router"])

    assert options.key_secrets == ("router", "admin")
    assert options.settings.engine_keys


def test_the_placeholder_of_the_manifests_is_refused_as_the_image_of_engines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parse([f"--engine-image=registry.example/fairlead:{PLACEHOLDER_TAG}"])

    assert "the overlay must set this argument" in capsys.readouterr().err


def test_the_key_of_the_router_alone_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--engine-image=engine:1", "--router-key-secret=router"])

    assert "--router-key-secret needs --admin-key-secret" in capsys.readouterr().err
