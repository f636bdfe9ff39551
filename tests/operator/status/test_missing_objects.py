"""Missing objects, in the words of the scheduler and the kubelet."""

import pytest
from llm_operator.status.missing_objects import find_missing_object


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ('secret "hub" not found', ("SecretNotFound", "there is no Secret hub")),
        ('configmap "env" not found', ("ConfigMapNotFound", "there is no ConfigMap env")),
        (
            '0/2 nodes are available: persistentvolumeclaim "models" not found. preemption: 0/2 nodes are available',
            ("ClaimNotFound", "there is no PersistentVolumeClaim models"),
        ),
    ],
)
def test_names_the_object_that_a_message_reports_as_missing(message: str, problem: tuple[str, str]) -> None:
    assert find_missing_object(message) == problem


@pytest.mark.parametrize("message", ["", 'node "x" not found', "secret hub was not found"])
def test_finds_nothing_in_other_wording(message: str) -> None:
    assert find_missing_object(message) is None
