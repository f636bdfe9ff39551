"""The launches of a step: our Triton kernels, compiled or interpreted, and torch's operations that launch one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import GridExecutor
from triton.runtime.jit import JITFunction


class Operations(TorchDispatchMode):
    """Appends the names of torch's operations, without allocations and views, which launch nothing."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operation.overloadpacket.__name__
        is_view = any(
            one.alias_info is not None and not one.alias_info.is_write for one in operation._schema.returns
        )
        if not is_view and "empty" not in name and name != "detach":
            self.names.append(name)
        return operation(*args, **kwargs or {})


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Collect the names of what is launched in the block, in order."""
    names: list[str] = []
    interpret, run = GridExecutor.__call__, JITFunction.run

    def interpreted(self: Any, *args: Any, **options: Any) -> Any:
        names.append(self.fn.__name__)
        inside = len(names)
        interpret(self, *args, **options)
        del names[inside:]  # the interpreter's own operations

    def compiled(self: Any, *args: Any, **options: Any) -> Any:
        names.append(self.__name__)
        return run(self, *args, **options)

    with monkeypatch.context() as patch, Operations(names):
        patch.setattr(GridExecutor, "__call__", interpreted)
        patch.setattr(JITFunction, "run", compiled)
        yield names
