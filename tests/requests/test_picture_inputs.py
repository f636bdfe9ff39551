"""What encoders take for pictures, on its way to the core."""

import msgspec
import pytest

from engine_server.requests.messages import AbortRequests, FrontEndMessage, PictureInputs, RawTensor

PIXELS = RawTensor("float32", [2, 500], memoryview(bytes(range(250)) * 16))
SIZES = RawTensor("int64", [1, 2], memoryview(bytes(16)))


def sent(message: FrontEndMessage) -> FrontEndMessage:
    """Return a message as the core has it."""
    encoded, behind = message.detach()
    decoded: FrontEndMessage = msgspec.msgpack.decode(msgspec.msgpack.encode(encoded), type=FrontEndMessage)
    decoded.attach(behind)
    return decoded


def test_the_bytes_of_tensors_are_sent_behind_the_message() -> None:
    message = PictureInputs("a", "digest", {"pixels": PIXELS, "sizes": SIZES})

    encoded, behind = message.detach()

    assert len(msgspec.msgpack.encode(encoded)) < 100
    assert behind == [PIXELS.data, SIZES.data]
    assert sent(message) == message
    assert message.inputs == {"pixels": PIXELS, "sizes": SIZES}


@pytest.mark.parametrize(
    "message",
    [PictureInputs("a", "digest", error="broken"), PictureInputs("a", "b", {}), AbortRequests(["a"])],
)
def test_a_message_without_tensors_is_sent_as_it_is(message: FrontEndMessage) -> None:
    assert message.detach()[1] == []
    assert sent(message) == message


@pytest.mark.parametrize("message", [PictureInputs("a", "b", {"pixels": PIXELS}), AbortRequests(["a"])])
def test_other_bytes_than_those_of_the_message_are_refused(message: FrontEndMessage) -> None:
    _, behind = message.detach()

    with pytest.raises(ValueError):
        message.attach([*behind, memoryview(b"more")])
