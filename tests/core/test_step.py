"""The step as docs/architecture.md shows it."""

import inspect
import textwrap
from pathlib import Path

from engine_server.core.engine_core import EngineCore

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


def test_documented_step_is_the_one_that_executes() -> None:
    source = inspect.getsource(EngineCore.step)
    _, _, body = source.partition(f'"""{EngineCore.step.__doc__}"""\n')
    assert body and textwrap.dedent(body) in PAGE.read_text()
