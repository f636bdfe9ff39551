"""Private methods of libraries that our classes override: without them nothing fails, and the overrides never run."""

import inspect
from importlib.metadata import version

import pytest
from torch import nn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from engine_server.modeling.layers.weight_layer import WeightLayer
from engine_server.server.http.protocol import Connection

pytestmark = pytest.mark.transformers


@pytest.mark.parametrize(
    ("library", "foreign", "ours", "name"),
    [
        ("torch", nn.Module, WeightLayer, "_apply"),
        ("uvicorn", HttpToolsProtocol, Connection, "_start_asgi_task"),
    ],
)
def test_overridden_private_method_exists_and_is_called(
    library: str, foreign: type, ours: type, name: str
) -> None:
    method = f"{foreign.__name__}.{name} of {library} {version(library)}, which {ours.__name__} overrides,"
    assert issubclass(ours, foreign)
    assert name in vars(ours)
    assert hasattr(foreign, name), f"{method} is gone"
    assert f".{name}(" in inspect.getsource(foreign), f"{method} is called no more"
    theirs, overriding = (len(inspect.signature(getattr(kind, name)).parameters) for kind in (foreign, ours))
    assert theirs == overriding, f"{method} takes {theirs} parameters instead of {overriding}"
