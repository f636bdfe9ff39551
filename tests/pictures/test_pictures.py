"""Pictures are processed in forks: a bad one is refused alone, and callers take turns."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
from picture_files import encoded, noise, picture, png
from PIL import Image
from tiers import tiered
from tiny_pictures import FAMILIES, Family
from waiting import until

from engine_server.contract.base.bounded_map import BoundedMap
from engine_server.contract.base.bounds import PICTURE_BYTES
from engine_server.forks.fork_worker import WorkerEndedError
from engine_server.modeling.pictures.errors import UnsupportedPicturesError
from engine_server.modeling.pictures.processor import PictureProcessor
from engine_server.pictures.messages import Processed, decode_reply
from engine_server.pictures.pictures import Pictures, characters
from engine_server.requests.errors import InvalidRequestError, QueueFullError, ShareUsedError
from engine_server.requests.messages import RawTensor
from engine_server.requests.picture_stats import PictureStats
from engine_server.requests.pictures import Picture

pytestmark = pytest.mark.transformers
ModelFolder = Callable[[Family], Path]
# Generous; a fork has 5 s of CPU time.
SECONDS = 60


def sent(data: bytes, low_detail: bool = False) -> Picture:
    return Picture(data, hashlib.sha256(data).hexdigest(), low_detail)


def numbered(number: int) -> Picture:
    """Return one of many small pictures."""
    return sent(png(1, 1, bytes([0, number % 256, number // 256, 7])))


@pytest.fixture(scope="module")
def pictures(model_folder: ModelFolder) -> Iterator[Pictures]:
    found = Pictures(model_folder("idefics3"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def others(model_folder: ModelFolder) -> Iterator[Pictures]:
    """Pictures for another model, with options."""
    found = Pictures(model_folder("mistral3"), {"size": {"longest_edge": 28}})
    yield found
    found.close()


@pytest.fixture
def stopped(pictures: Pictures) -> Iterator[Pictures]:
    """Pictures whose process is stopped, so that all that is sent waits or runs."""
    assert pictures.process(sent(picture("PNG")), None).result(SECONDS)
    assert pictures._worker is not None
    process = pictures._worker.process
    process.send_signal(signal.SIGSTOP)
    yield pictures
    process.send_signal(signal.SIGCONT)
    until(lambda: not pictures._line.num_waiting and not pictures._line.num_running)


@pytest.mark.parametrize("family", tiered(FAMILIES, "internvl", more=FAMILIES))
def test_pictures_are_processed_as_the_processor_does(family: Family, model_folder: ModelFolder) -> None:
    processor = PictureProcessor.of_folder(model_folder(family))
    pictures = Pictures(model_folder(family))
    assert pictures.template_token == processor.template_token
    assert pictures.image_token == processor.image_token
    assert pictures.media_tokens == processor.media_tokens
    for size in ((28, 28), (90, 41), (640, 480)):
        found = pictures.process(sent(picture("PNG", *size)), None).result(SECONDS)
        replacement, inputs = processor.process(Image.fromarray(noise(*size)))
        assert found.replacement == replacement
        assert found.inputs.keys() == inputs.keys()
        for name, array in inputs.items():
            np.testing.assert_array_equal(found.inputs[name].tensor().numpy(), array)
    pictures.close()


def test_reason_is_given_and_the_process_ends_for_a_model_without_processor(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    before = set(psutil.Process().children())
    with pytest.raises(UnsupportedPicturesError, match="no processor for models of type llama"):
        Pictures(tmp_path)
    assert set(psutil.Process().children()) <= before


def test_pictures_are_counted_by_outcome(pictures: Pictures) -> None:
    pictures.take_stats()
    good = numbered(300)
    seconds = pictures.process(good, None).result(SECONDS).seconds
    assert isinstance(pictures.process(sent(b"bad"), None).exception(SECONDS), InvalidRequestError)
    assert pictures.replacement(pictures.digest(good))
    assert seconds > 0
    assert pictures.take_stats() == PictureStats([seconds], refused=1, remembered=1)
    assert pictures.take_stats() == PictureStats()


def test_replacement_text_is_remembered_by_digest(pictures: Pictures) -> None:
    first, other = sent(picture("PNG", 60, 30)), sent(picture("PNG", 30, 60))
    assert pictures.replacement(pictures.digest(first)) is None
    found = pictures.process(first, None).result(SECONDS)
    assert pictures.replacement(pictures.digest(first)) == found.replacement
    assert pictures.replacement(pictures.digest(other)) is None


def test_remembered_texts_are_bounded(pictures: Pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = (numbered(number) for number in range(3))
    text = pictures.process(numbered(99), None).result(SECONDS).replacement  # all of one size have it
    room = 2 * characters(pictures.digest(first), text) + 1
    monkeypatch.setattr(pictures, "_replacements", BoundedMap[str, str](room, characters))
    for each in (first, second):
        pictures.process(each, None).result(SECONDS)
    assert pictures.replacement(pictures.digest(first)) == text
    pictures.process(third, None).result(SECONDS)
    remembered = [pictures.replacement(pictures.digest(each)) for each in (first, second, third)]
    assert remembered == [text, None, text]


def test_digest_differs_by_bytes_options_and_settings(pictures: Pictures, others: Pictures) -> None:
    data = picture("PNG")
    digests = {
        pictures.digest(sent(data)),
        pictures.digest(sent(data, low_detail=True)),
        pictures.digest(sent(data + b"a")),
        others.digest(sent(data)),
    }
    assert len(digests) == 4 and all(len(digest) == 64 for digest in digests)


def test_equal_pictures_are_processed_once(stopped: Pictures) -> None:
    first, again = (stopped.process(numbered(500), "a") for _ in range(2))
    assert stopped._line.num_waiting + stopped._line.num_running == 1
    assert stopped._worker is not None
    stopped._worker.process.send_signal(signal.SIGCONT)
    assert first.result(SECONDS) is again.result(SECONDS)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GIF in name alone", "no PNG, JPEG, WebP or GIF"),
        (picture("JPEG")[:-400], "the JPEG can't be decoded"),
        (png(8192, 8192, b""), "67,108,864 pixels in a picture; at most 33,554,432 are allowed"),
    ],
)
def test_bad_picture_is_refused_with_the_reason(pictures: Pictures, data: bytes, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        pictures.process(sent(data), None).result(SECONDS)
    assert pictures.replacement(pictures.digest(sent(data))) is None


def test_too_many_bytes_are_refused_at_once(pictures: Pictures) -> None:
    with pytest.raises(
        InvalidRequestError, match="20,971,521 bytes in a picture; at most 20,971,520 are allowed"
    ):
        pictures.process(sent(bytes(PICTURE_BYTES.limit + 1)), None)


def test_largest_picture_is_within_the_limits_of_a_fork(pictures: Pictures) -> None:
    rows = (b"\x00" + bytes(4 * 8192)) * 4096
    found = pictures.process(sent(png(8192, 4096, rows, colour=6)), None).result(SECONDS)
    assert found.inputs["pixel_values"].shape[0] == 1


def test_options_reach_the_processor(others: Pictures) -> None:
    found = others.process(sent(picture("PNG", 100, 100)), None).result(SECONDS)
    assert found.inputs["image_sizes"].tensor().tolist() == [[28, 28]]


def test_picture_that_the_processor_cant_take_is_refused(others: Pictures) -> None:
    flat = sent(encoded(Image.new("RGB", (199, 1)), "PNG"))
    with pytest.raises(
        InvalidRequestError, match="the model's processor can't take the picture of 199 x 1 pixels"
    ):
        others.process(flat, None).result(SECONDS)
    assert others.process(sent(picture("PNG")), None).result(SECONDS)


def test_fork_that_is_killed_fails_one_picture_alone(pictures: Pictures) -> None:
    assert pictures._worker is not None
    process = psutil.Process(pictures._worker.process.pid)
    seen: list[int] = []
    enough = threading.Event()

    def kill_the_first_fork() -> None:
        while not seen and not enough.is_set():
            for fork in process.children():
                fork.kill()
                seen.append(fork.pid)

    rows = (b"\x00" + bytes(3 * 4096)) * 4096
    killer = threading.Thread(target=kill_the_first_fork)
    killer.start()
    slow = pictures.process(sent(png(4096, 4096, rows)), None)
    error = slow.exception(SECONDS)
    enough.set()
    killer.join()
    assert isinstance(error, InvalidRequestError) and "crashes its decoder" in str(error)
    assert pictures.process(numbered(600), None).result(SECONDS)
    assert psutil.Process(process.pid) == process


def test_pictures_continue_after_their_process_was_killed(pictures: Pictures) -> None:
    assert pictures._worker is not None
    pictures._worker.process.kill()
    pictures._worker.process.wait()
    assert pictures.process(numbered(601), None).result(SECONDS)


def test_pending_picture_fails_when_the_process_is_killed(stopped: Pictures) -> None:
    pending = stopped.process(numbered(602), None)
    assert stopped._worker is not None
    until(lambda: stopped._worker is not None and stopped._worker._tasks)
    stopped._worker.process.kill()
    assert isinstance(pending.exception(SECONDS), WorkerEndedError)
    assert stopped.process(numbered(603), None).result(SECONDS)


def test_100_bad_pictures_at_once_are_each_refused(pictures: Pictures) -> None:
    before = psutil.Process().memory_info().rss
    assert pictures._worker is not None
    process = pictures._worker.process
    whole = picture("JPEG", 300, 300)
    bad = [whole[: 200 + 3 * number] for number in range(40)]
    bad += [png(2**31 - number, 2**31 - 1, b"") for number in range(1, 31)]
    bad += [png(4000, 4000, bytes(12001 * number)) for number in range(30)]
    pending = [pictures.process(sent(data), None) for data in bad]
    assert all(isinstance(each.exception(SECONDS), InvalidRequestError) for each in pending)
    assert psutil.Process().memory_info().rss - before < 100 << 20
    assert pictures.process(numbered(700), None).result(SECONDS)
    assert pictures._worker.process is process and process.poll() is None


def test_callers_take_turns(stopped: Pictures) -> None:
    order: list[str] = []

    def process(number: int, caller: str) -> None:
        stopped.process(numbered(number), caller).add_done_callback(lambda _: order.append(caller))

    for number in range(800, 820):
        process(number, "many")
    for number in range(820, 823):
        process(number, "few")
    assert stopped._worker is not None
    stopped._worker.process.send_signal(signal.SIGCONT)
    until(lambda: len(order) == 23)
    assert order[:12].count("few") == 3


def test_full_line_and_used_share_are_refused_until_a_picture_is_withdrawn(stopped: Pictures) -> None:
    shares = stopped._line.shares
    pending = [
        stopped.process(numbered(number), "a") for number in range(1000, 1000 + shares.waiting_of_caller)
    ]
    while stopped._line.num_waiting < shares.waiting_of_caller:
        pending.append(stopped.process(numbered(1000 + len(pending)), "a"))
    with pytest.raises(ShareUsedError, match="128 pictures of this caller wait to be processed"):
        stopped.process(numbered(2000), "a")
    while stopped._line.num_waiting < shares.waiting:
        pending.append(stopped.process(numbered(1000 + len(pending)), None))
    with pytest.raises(QueueFullError, match="256 pictures wait to be processed, of 256 at most"):
        stopped.process(numbered(2000), "b")
    assert pending.pop().cancel()
    pending.append(stopped.process(numbered(2000), "b"))
    for each in pending:
        each.cancel()


def test_pixels_of_all_pictures_are_bounded_before_they_are_decoded(pictures: Pictures) -> None:
    large = [sent(png(8192, 4096 - number, b"")) for number in range(5)]
    assert pictures.measure(large[:4], None).result(SECONDS) is None
    with pytest.raises(InvalidRequestError, match="pixels in all pictures of a request; at most 134,217,728"):
        pictures.measure(large, None).result(SECONDS)
    assert pictures.measure([*large[:4], sent(b"no picture")], None).result(SECONDS)


@pytest.mark.parametrize(
    "tensor",
    [
        RawTensor("float32", [2, 3], bytes(23)),
        RawTensor("float32", [-2, -3], bytes(24)),
        RawTensor("float16", [1], bytes(2)),
        RawTensor("Tensor", [1], bytes(2)),
    ],
)
def test_reply_with_a_wrong_tensor_is_refused(tensor: RawTensor) -> None:
    reply = msgspec.msgpack.encode(Processed("<image>", {"pixel_values": tensor}, 0.1))
    with pytest.raises(ValueError, match="pixel_values of a processed picture"):
        decode_reply(reply)


def test_engines_process_imports_no_decoder() -> None:
    script = "import sys, engine_server.pictures.pictures; sys.exit('PIL' in sys.modules or 'torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, env=os.environ)


def test_described_picture_is_processed_once_for_the_core(pictures: Pictures) -> None:
    pictures.take_stats()
    good = numbered(301)
    assert pictures.describe(good, None).result(SECONDS)
    first, second = (pictures.process(good, None).result(SECONDS) for _ in range(2))
    assert first == second or first.inputs == second.inputs
    assert len(pictures.take_stats().seconds) == 2  # the first was kept, and then given away
    with pytest.raises(InvalidRequestError):
        pictures.describe(sent(b"bad"), None).result(SECONDS)
