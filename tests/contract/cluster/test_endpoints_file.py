"""The endpoints file: what `fairlead up` writes is what the router reads."""

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.endpoints_file import EndpointsFile, FileDeployment
from engine_server.router.routing.endpoint import Address
from engine_server.router.sources.file import to_deployment

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
deployments = st.builds(
    FileDeployment,
    name=text,
    endpoints=st.lists(text, max_size=3).map(tuple),
    namespace=text,
    served_names=st.lists(text, max_size=3).map(tuple),
    policy=st.none() | text,
    created=st.none() | st.datetimes(timezones=st.just(UTC)),
)


@given(st.lists(deployments, max_size=3).map(tuple))
def test_a_written_file_is_read_back_equal(deployments):
    content = EndpointsFile(deployments)

    assert EndpointsFile.decode(content.encode()) == content


def test_names_and_address_suffice():
    content = EndpointsFile.decode(b'{"deployments": [{"name": "a", "endpoints": ["http://h:1"]}]}')

    (entry,) = content.deployments
    read = to_deployment(entry, Path("/run"))
    assert read.key == Key("default", "a")
    assert read.served_names == ("a",)
    assert read.addresses == (Address("h", 1),)
    assert (read.created, read.policy) == (0.0, None)
    assert (read.ready_path, read.key_file) == ("/ready", None)


def test_file_with_a_key_is_relative_to_the_folder_of_the_endpoints_file():
    entry = FileDeployment(
        name="a", endpoints=("http://h:1",), ready_path="/health", endpoint_key_file="keys/a"
    )

    read = to_deployment(entry, Path("/run"), "/alive", Path("/default"))

    assert (read.ready_path, read.key_file) == ("/health", Path("/run/keys/a"))


@pytest.mark.parametrize("path", ["health", "/he alth", "/h\r\nX: y"])
def test_path_of_readiness_that_no_request_can_have_is_a_value_error(path):
    with pytest.raises(ValueError, match="a path of readiness"):
        to_deployment(FileDeployment(name="a", endpoints=(), ready_path=path), Path())


def test_keys_are_spelled_as_in_manifests():
    entry = FileDeployment(
        name="a", endpoints=("http://h:1",), served_names=("m",), created=datetime.fromtimestamp(1, UTC)
    )

    written = msgspec.json.decode(EndpointsFile((entry,)).encode())

    assert written == {
        "deployments": [
            {
                "name": "a",
                "endpoints": ["http://h:1"],
                "namespace": "default",
                "servedNames": ["m"],
                "policy": None,
                "created": "1970-01-01T00:00:01Z",
                "adapters": [],
                "readyPath": None,
                "endpointKeyFile": None,
            }
        ]
    }


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"deployments": [{"name": 3}]}'])
def test_content_of_another_form_is_a_value_error(content):
    with pytest.raises(ValueError):
        EndpointsFile.decode(content)
