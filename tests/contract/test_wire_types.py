"""The types by which one process decodes what another one sends: none takes any value, or a number of any size."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from llm_operator.control import fetch, start_poller
from msgspec.inspect import AnyType, FloatType, IntType, Type, type_info

import engine_server.contract
import engine_server.router
from engine_server.contract.cluster.adapters import WantedAdapters
from engine_server.contract.cluster.endpoint_slices import EndpointSlice
from engine_server.contract.cluster.endpoints_file import EndpointsFile
from engine_server.contract.cluster.paged_list import ListPage
from engine_server.contract.wire.continuation import RouterFields
from engine_server.router.callers.keys import KeyEntry
from engine_server.router.sources.kubernetes.objects import LLMDeployment, Message
from engine_server.router.sources.kubernetes.watch import Event

# Those that are decoded without a decoder of their own.
BY_TYPE = (
    RouterFields,
    WantedAdapters,
    EndpointsFile,
    KeyEntry,
    LLMDeployment,
    EndpointSlice,
    Message,
    ListPage,
    Event,
)


def wire_types() -> dict[str, Any]:
    """Return the types of the decoders of contract, router and operator, and those that are decoded without one."""
    packages = (engine_server.contract, engine_server.router)
    names = [found.name for package in packages for found in walk(package)]
    modules = [*map(importlib.import_module, names), start_poller, fetch]
    found = {kind.__name__: kind for kind in BY_TYPE}
    for module in modules:
        for name, value in vars(module).items():
            if isinstance(value, msgspec.json.Decoder):
                found[f"{module.__name__}.{name}"] = value.type
    return found


def walk(package: Any) -> Iterator[pkgutil.ModuleInfo]:
    return pkgutil.walk_packages(package.__path__, package.__name__ + ".")


def unbounded(kind: Type, path: str, seen: set[Any]) -> Iterator[str]:
    """Yield the paths of values that may be anything, and of numbers without a range."""
    match kind:
        case AnyType():
            yield f"{path}: Any"
        case IntType() | FloatType():
            if (kind.ge is None and kind.gt is None) or (kind.le is None and kind.lt is None):
                yield f"{path}: a number without a range"
    if isinstance(kind, msgspec.inspect.StructType):
        if kind.cls in seen:
            return
        seen.add(kind.cls)
        for field in kind.fields:
            yield from unbounded(field.type, f"{path}.{field.name}", seen)
        return
    for name in kind.__struct_fields__:
        part = getattr(kind, name)
        for each in part if isinstance(part, tuple) else (part,):
            if isinstance(each, Type):
                yield from unbounded(each, path, seen)


TYPES = wire_types()


@pytest.mark.parametrize("name", TYPES)
def test_no_wire_type_takes_any_value_or_a_number_without_a_range(name: str) -> None:
    assert list(unbounded(type_info(TYPES[name]), name.rpartition(".")[2], set())) == []


def test_the_walk_finds_numbers_and_any_in_containers() -> None:
    class Inner(msgspec.Struct):
        numbers: dict[str, list[int] | None]
        anything: Any

    assert list(unbounded(type_info(tuple[Inner, float]), "T", set())) == [
        "T.numbers: a number without a range",
        "T.anything: Any",
        "T: a number without a range",
    ]
