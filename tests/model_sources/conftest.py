"""Small wheels in a folder that pip uses as its index, and a GGUF model that converts quickly."""

import shutil
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest

from engine_server.model_sources import package
from engine_server.model_sources.progress import Progress

HIDDEN, HEADS, LAYERS, CONTEXT = 32, 2, 2, 64
EXPERTS, CHOSEN, INNER = 4, 2, 64
# Types of quantised tensors, by their names.
TYPES = {
    "token_embd": "Q8_0",
    "attn_q": "Q4_0",
    "attn_k": "Q4_1",
    "attn_v": "Q5_0",
    "attn_output": "Q5_1",
    "ffn_gate": "Q4_0",
    "ffn_up": "Q4_0",
    "ffn_down": "F16",
}
TEMPLATE = "{% for message in messages %}<s>{{ message['content'] }}</s>{% endfor %}"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("FAIRLEAD_CACHE", str(folder))
    return folder


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that builds a wheel of the given files, the only ones that pip finds."""
    shelf = tmp_path / "wheels"
    shelf.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))

    def make(name: str, **files: bytes | Path) -> Path:
        return _wheel(shelf, name, files)

    return make


@pytest.fixture
def without_pip(wheel: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Download wheels by a copy, where pip's part is not the subject: it takes half a second."""

    def copy(command: list[str], progress: Progress) -> tuple[int, list[str]]:
        (folder,) = (word.removeprefix("--dest=") for word in command if word.startswith("--dest="))
        for path in (tmp_path / "wheels").glob(f"{command[-1]}-*.whl"):
            shutil.copy(path, folder)
        return 0, []

    monkeypatch.setattr(package, "_run_pip", copy)


def _wheel(shelf: Path, name: str, files: dict[str, bytes | Path]) -> Path:
    module = name.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    path = shelf / f"{module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, content in files.items():
            archive.writestr(inside, content if isinstance(content, bytes) else content.read_bytes())
        archive.writestr(f"{module}/__init__.py", "raise RuntimeError('a model is never imported')")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: absent\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of two layers with random weights, over bytes and three special tokens."""
    return save_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", {})


@pytest.fixture(scope="session")
def experts_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 with experts, of which gate and up have the same type in the first layer alone."""
    types = dict.fromkeys(("ffn_gate_exps", "ffn_up_exps", "attn_q"), "Q4_0") | {"ffn_down_exps": "Q8_0"}
    types |= dict.fromkeys(("blk.1.ffn_up_exps", "blk.1.ffn_down_exps"), "Q4_1")
    return save_gguf(tmp_path_factory.mktemp("gguf") / "experts.gguf", types, "qwen3moe")


@pytest.fixture(scope="session")
def quantised_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same llama with weights of each type that gguf can quantise."""
    return save_gguf(tmp_path_factory.mktemp("gguf") / "quantised.gguf", TYPES)


def save_gguf(
    path: Path,
    types: dict[str, str],
    architecture: str = "llama",
    marks: Sequence[str] = (),
    eot: str | None = None,
    eom: str | None = None,
    **split: int,
) -> Path:
    """Write the model.

    split: settings by which gguf's writer splits it.
    types: those of quantised tensors, by the tensors' names with or without numbers. marks: more special tokens, of
    which `eot` and `eom` are named as the ends of a turn and of a message.
    """
    writer = gguf.GGUFWriter(path, architecture, **split)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(2 * HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    specials = ["<unk>", "<s>", "</s>"]
    tokens = [*specials, *_byte_letters(), "ĠĠ", *marks]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    special = {*specials, *marks}
    writer.add_token_types(
        [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens]
    )
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if eot is not None:
        writer.add_eot_token_id(tokens.index(eot))
    if eom is not None:
        writer.add_eom_token_id(tokens.index(eom))
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    random = np.random.default_rng(0)
    half = HIDDEN // HEADS
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (len(tokens), HIDDEN), "output_norm": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_q": (HIDDEN, HIDDEN),
            f"blk.{layer}.attn_k": (half, HIDDEN),
            f"blk.{layer}.attn_v": (half, HIDDEN),
            f"blk.{layer}.attn_output": (HIDDEN, HIDDEN),
            f"blk.{layer}.attn_norm": (HIDDEN,),
            f"blk.{layer}.ffn_norm": (HIDDEN,),
        }
        shapes |= _experts(layer) if architecture == "qwen3moe" else _mlp(layer)
    if architecture == "qwen3moe":
        writer.add_expert_count(EXPERTS)
        writer.add_expert_used_count(CHOSEN)
        writer.add_expert_feed_forward_length(INNER)
        writer.add_key_length(HIDDEN // HEADS)
        writer.add_value_length(HIDDEN // HEADS)
    for name, shape in shapes.items():
        values = random.standard_normal(shape, dtype=np.float32)
        kind = gguf.GGMLQuantizationType[types.get(name, types.get(name.rpartition(".")[2], "F32"))]
        writer.add_tensor(f"{name}.weight", gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def save_split(path: Path, count: int) -> list[Path]:
    """Write the llama as `count` files; return them."""
    tensors = 2 + LAYERS * 9
    save_gguf(path, {}, split_max_tensors=-(-tensors // count))
    return sorted(path.parent.glob(f"{path.stem}-*-of-{count:05d}.gguf"))


def _mlp(layer: int) -> dict[str, tuple[int, ...]]:
    return {
        f"blk.{layer}.ffn_gate": (2 * HIDDEN, HIDDEN),
        f"blk.{layer}.ffn_up": (2 * HIDDEN, HIDDEN),
        f"blk.{layer}.ffn_down": (HIDDEN, 2 * HIDDEN),
    }


def _experts(layer: int) -> dict[str, tuple[int, ...]]:
    return {
        f"blk.{layer}.attn_q_norm": (HIDDEN // HEADS,),
        f"blk.{layer}.attn_k_norm": (HIDDEN // HEADS,),
        f"blk.{layer}.ffn_gate_inp": (EXPERTS, HIDDEN),
        f"blk.{layer}.ffn_gate_exps": (EXPERTS, INNER, HIDDEN),
        f"blk.{layer}.ffn_up_exps": (EXPERTS, INNER, HIDDEN),
        f"blk.{layer}.ffn_down_exps": (EXPERTS, HIDDEN, INNER),
    }


def _byte_letters() -> list[str]:
    """Return the letters that stand for bytes in a byte-level vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + index) for index in range(len(others))]
