"""Models with layers after pooling, compared with the formulas of sentence-transformers' modules."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from tiers import tiered
from torch import Tensor, nn

from engine_server import LLM, EngineArgs, InvalidRequestError, PoolingParams

pytestmark = pytest.mark.transformers

HIDDEN, WIDE, SHORT = 32, 48, 16
TINY = {
    "vocab_size": 96, "hidden_size": HIDDEN, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 80, "initializer_range": 0.5, "pad_token_id": 1,
}  # fmt: skip
# As EmbeddingGemma, which attends in both directions, in some layers within a window.
GEMMA = {
    "num_key_value_heads": 2, "head_dim": 8, "use_bidirectional_attention": True, "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
QWEN3 = {"num_key_value_heads": 2, "head_dim": 8}
PROMPTS = [[5, 6, 7, 8, 9], [11], list(range(20, 60))]
TANH, IDENTITY = "torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"
PACKAGE = "sentence_transformers.models"

# Class name of each module and its settings.
Modules = list[tuple[str, dict[str, Any]]]


def dense(
    given: int, wanted: int, activation: str = IDENTITY, **settings: object
) -> tuple[str, dict[str, Any]]:
    return "Dense", {
        "in_features": given,
        "out_features": wanted,
        "bias": True,
        "activation_function": activation,
        **settings,
    }


POOLING = ("Pooling", {"pooling_mode": "mean"})
NORMALIZE: tuple[str, dict[str, Any]] = ("Normalize", {})


def weights(settings: dict[str, Any]) -> dict[str, Tensor]:
    """Return random weights of a Dense module."""
    given, wanted = settings["in_features"], settings["out_features"]
    tensors = {"linear.weight": torch.randn(wanted, given) / given**0.5}
    if settings["bias"]:
        tensors["linear.bias"] = torch.randn(wanted)
    if settings.get("use_residual") and given != wanted:
        tensors["residual.weight"] = torch.randn(wanted, given) / given**0.5
    return tensors


def save(
    folder: Path, kind: str, modules: Modules, dtype: torch.dtype = torch.float32, **settings: object
) -> Path:
    """Save a tiny random model and its modules, as sentence-transformers does."""
    torch.manual_seed(0)
    model = getattr(transformers, kind)
    model(model.config_class(**{**TINY, **settings})).to(dtype).save_pretrained(folder)
    entries = [{"idx": 0, "name": "0", "path": "", "type": f"{PACKAGE}.Transformer"}]
    for index, (name, own) in enumerate(modules, 1):
        path = f"{index}_{name}"
        entries.append({"idx": index, "name": str(index), "path": path, "type": f"{PACKAGE}.{name}"})
        (folder / path).mkdir()
        (folder / path / "config.json").write_text(json.dumps(own))
        if name == "Dense":
            save_file(weights(own), folder / path / "model.safetensors")
    (folder / "modules.json").write_text(json.dumps(entries))
    return folder


def read_weights(folder: Path, index: int) -> dict[str, Tensor]:
    return load_file(folder / f"{index}_Dense" / "model.safetensors")


def means(folder: Path) -> list[Tensor]:
    """Return the mean of each prompt's hidden states, by transformers."""
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return [model(torch.tensor([prompt])).last_hidden_state[0].mean(0) for prompt in PROMPTS]


def an_llm(folder: Path, **options: object) -> LLM:
    settings = {
        "dtype": "float32",
        "max_model_len": 64,
        "skip_tokenizer_init": True,
        "num_gpu_blocks_override": 12,
    }
    return LLM(str(folder), **{**settings, **options})


def embed(llm: LLM, **params: object) -> Tensor:
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    outputs = llm.embed(prompts, pooling_params=PoolingParams(**params), use_tqdm=False)
    return torch.tensor([output.outputs.embedding for output in outputs])


def same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "settings", "options"),
    [
        pytest.param("BertModel", {}, {}, marks=pytest.mark.more),
        pytest.param("Gemma3TextModel", GEMMA, {}, marks=pytest.mark.more),
        ("Qwen3Model", QWEN3, {"max_num_batched_tokens": 12}),
    ],
)
def test_layers_after_pooling_equal_those_of_sentence_transformers(
    tmp_path: Path, kind: str, settings: dict[str, Any], options: dict[str, Any]
) -> None:
    modules = [POOLING, dense(HIDDEN, WIDE), dense(WIDE, SHORT, TANH, bias=False), NORMALIZE]
    folder = save(tmp_path, kind, modules, **settings)
    first, second = read_weights(folder, 2), read_weights(folder, 3)
    whole = torch.stack(means(folder)) @ first["linear.weight"].T + first["linear.bias"]
    expected = torch.tanh(whole @ second["linear.weight"].T)

    llm = an_llm(folder, **options)

    same(embed(llm), F.normalize(expected))
    same(embed(llm, normalize=False), expected)
    for level in (1, 2):  # the layers are restored with the weights
        llm.sleep(level)
        llm.wake_up()
        same(embed(llm), F.normalize(expected))


@pytest.mark.parametrize("size", [HIDDEN, SHORT])
def test_residual_adds_the_input_or_its_projection(tmp_path: Path, size: int) -> None:
    folder = save(tmp_path, "BertModel", [POOLING, dense(HIDDEN, size, use_residual=True)])
    own, vectors = read_weights(folder, 2), torch.stack(means(folder))
    added = vectors @ own["residual.weight"].T if size != HIDDEN else vectors
    same(embed(an_llm(folder)), vectors @ own["linear.weight"].T + own["linear.bias"] + added)


@pytest.mark.more
def test_normalization_before_a_layer_is_kept(tmp_path: Path) -> None:
    folder = save(tmp_path, "BertModel", [POOLING, NORMALIZE, dense(HIDDEN, SHORT)])
    own = read_weights(folder, 3)
    expected = F.normalize(torch.stack(means(folder))) @ own["linear.weight"].T + own["linear.bias"]
    same(embed(an_llm(folder)), expected)
    same(embed(an_llm(folder), normalize=True), F.normalize(expected))


ACTIVATIONS = [
    ("GELU", F.gelu),
    ("ReLU", F.relu),
    ("SiLU", F.silu),
    ("Sigmoid", torch.sigmoid),
    ("LeakyReLU", F.leaky_relu),
]


@pytest.mark.parametrize(
    ("name", "function"),
    tiered(ACTIVATIONS, ACTIVATIONS[0], more=ACTIVATIONS),
)
def test_activation_is_the_one_that_the_module_names(
    tmp_path: Path, name: str, function: Callable[[Tensor], Tensor]
) -> None:
    activation = f"torch.nn.modules.activation.{name}"
    folder = save(tmp_path, "BertModel", [POOLING, dense(HIDDEN, SHORT, activation)])
    own = read_weights(folder, 2)
    same(
        embed(an_llm(folder)),
        function(torch.stack(means(folder)) @ own["linear.weight"].T + own["linear.bias"]),
    )


def test_embeddings_are_cut_after_the_layers_and_then_normalized(tmp_path: Path) -> None:
    modules = [POOLING, dense(HIDDEN, WIDE), NORMALIZE]
    folder = save(tmp_path, "BertModel", modules, is_matryoshka=True)
    own = read_weights(folder, 2)
    expected = torch.stack(means(folder)) @ own["linear.weight"].T + own["linear.bias"]
    llm = an_llm(folder)
    same(embed(llm, dimensions=8), F.normalize(expected[:, :8]))
    same(embed(llm, dimensions=WIDE), F.normalize(expected))  # longer than the hidden states
    with pytest.raises(InvalidRequestError, match=f"dimensions is {WIDE + 1}"):
        embed(llm, dimensions=WIDE + 1)


@pytest.mark.parametrize(
    "settings",
    [{}, {"pooling_mode": None}, {"word_embedding_dimension": HIDDEN, "pooling_mode_cls_token": False}],
)
def test_pooling_that_names_no_mode_takes_the_mean(tmp_path: Path, settings: dict[str, Any]) -> None:
    folder = save(tmp_path, "BertModel", [("Pooling", settings)])
    same(embed(an_llm(folder)), torch.stack(means(folder)))


def test_truncate_dim_is_the_default_length(tmp_path: Path) -> None:
    folder = save(tmp_path, "BertModel", [POOLING, NORMALIZE], matryoshka_dimensions=[8, 16])
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"truncate_dim": 8}))
    vectors, llm = torch.stack(means(folder)), an_llm(folder)
    same(embed(llm), F.normalize(vectors[:, :8]))
    same(embed(llm, dimensions=16), F.normalize(vectors[:, :16]))


@pytest.mark.more
def test_layers_of_a_model_in_bfloat16_compute_in_float32(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", "BertModel", [POOLING, dense(HIDDEN, SHORT)], torch.bfloat16)
    own = read_weights(folder, 2)
    plain = shutil.copytree(folder, tmp_path / "plain")
    (plain / "modules.json").write_text(entries(TRANSFORMER, AVERAGE))
    pooled = embed(an_llm(plain, dtype="bfloat16"))
    expected = pooled @ own["linear.weight"].T + own["linear.bias"]
    torch.testing.assert_close(embed(an_llm(folder, dtype="bfloat16")), expected, rtol=1e-5, atol=1e-5)


def test_random_weights_include_the_layers(tmp_path: Path) -> None:
    folder = save(tmp_path, "BertModel", [POOLING, dense(HIDDEN, SHORT)])
    for file in folder.rglob("*.safetensors"):
        file.unlink()
    first, second = (embed(an_llm(folder, load_format="dummy")) for _ in range(2))
    assert first.shape == (len(PROMPTS), SHORT)
    assert torch.equal(first, second)


def entries(*modules: tuple[str, str]) -> str:
    """Return the content of modules.json. modules: type and path of each."""
    return json.dumps(
        [{"idx": index, "path": path, "type": kind} for index, (kind, path) in enumerate(modules)]
    )


DENSE = f"{PACKAGE}.Dense"
TRANSFORMER = (f"{PACKAGE}.Transformer", "")
AVERAGE = (f"{PACKAGE}.Pooling", "1_Pooling")


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("modules.json", entries(TRANSFORMER, AVERAGE, (DENSE, "../outside")), "modules.json has the path"),
        ("modules.json", entries(TRANSFORMER, AVERAGE, (DENSE, "/etc")), "takes folders in the model's own"),
        ("modules.json", entries(TRANSFORMER, (f"{PACKAGE}.Pooling", "a/../../b")), "takes folders in the model's own"),
        ("modules.json", entries(TRANSFORMER, AVERAGE, ("os.system", "2_Dense")), "has system after Pooling"),
        ("modules.json", entries(TRANSFORMER, AVERAGE, ("pylate.models.Dense", "2_Dense")), "has pylate.models.Dense"),
        ("modules.json", entries(TRANSFORMER, (DENSE, "2_Dense")), "has Dense after the encoder"),
        ("modules.json", entries(TRANSFORMER, AVERAGE, (f"{PACKAGE}.LSTM", "2_Dense")), "Dense and Normalize are"),
        ("modules.json", '{"type": "a"}', "modules.json can't be read"),
        ("modules.json", '[{"type": "a"}]', "modules.json can't be read"),
        ("2_Dense/config.json", json.dumps(dense(HIDDEN, 4, "os.system")[1]), "os.system as activation_function"),
        ("2_Dense/config.json", json.dumps(dense(HIDDEN, 4, "torch.nn.Linear")[1]), "it takes Identity, Tanh"),
        ("2_Dense/config.json", json.dumps(dense(HIDDEN, 4, "torch.hub.Tanh")[1]), "torch.hub.Tanh as"),
        ("2_Dense/config.json", json.dumps(dense(HIDDEN + 1, 4)[1]), "33 in_features and 4 out_features"),
        ("2_Dense/config.json", json.dumps(dense(HIDDEN, 0)[1]), "0 out_features"),
        ("2_Dense/config.json", json.dumps(dense(HIDDEN, 4, bias="yes")[1]), "2_Dense/config.json can't be read"),
        ("2_Dense/config.json", json.dumps(dense(HIDDEN, 4, module_input_name="tokens")[1]), "has module_input"),
        ("2_Dense/config.json", None, "2_Dense/config.json is missing"),
        ("1_Pooling/config.json", None, "1_Pooling/config.json is missing"),
        ("1_Pooling/config.json", '{"pooling_mode": "max"}', "1_Pooling/config.json: pooling by max"),
        ("config_sentence_transformers.json", '{"prompts": {"a": 5}}', "transformers.json can't be read"),
        ("config_sentence_transformers.json", '{"default_prompt_name": "a"}', "'a' as default_prompt_name"),
    ],
)  # fmt: skip
def test_file_that_is_wrong_or_leads_outside_is_refused_by_name(
    tmp_path: Path, file: str, content: str | None, words: str
) -> None:
    folder = save(tmp_path / "model", "BertModel", [POOLING, dense(HIDDEN, SHORT)])
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    with pytest.raises(ValueError, match=words):
        EngineArgs(model=str(folder)).create_engine_config()


@pytest.mark.more
@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"linear.weight": torch.zeros(SHORT, HIDDEN)}, "by its config.json they are"),
        (
            {"linear.weight": torch.zeros(HIDDEN, SHORT), "linear.bias": torch.zeros(SHORT)},
            "tensors of the shapes",
        ),
        (
            {
                "linear.weight": torch.zeros(SHORT, HIDDEN, dtype=torch.int8),
                "linear.bias": torch.zeros(SHORT),
            },
            "has torch.int8 tensors; it takes float32, bfloat16 and float16",
        ),
        (None, "weights of modules are read from safetensors alone"),
    ],
)
def test_weights_that_do_not_fit_their_layer_are_refused_by_name(
    tmp_path: Path, tensors: dict[str, Tensor] | None, words: str
) -> None:
    folder = save(tmp_path, "BertModel", [POOLING, dense(HIDDEN, SHORT)])
    file = folder / "2_Dense/model.safetensors"
    file.unlink()
    if tensors is None:
        torch.save(nn.Linear(HIDDEN, SHORT).state_dict(), file.with_name("pytorch_model.bin"))
    else:
        save_file(tensors, file)
    with pytest.raises(ValueError, match=words):
        an_llm(folder)


def test_pooling_that_leaves_out_prompts_is_refused_if_there_are_any(tmp_path: Path) -> None:
    folder = save(tmp_path, "BertModel", [("Pooling", {"pooling_mode": "mean", "include_prompt": False})])
    EngineArgs(model=str(folder)).create_engine_config()
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "query: "}}))
    with pytest.raises(ValueError, match="include_prompt false"):
        EngineArgs(model=str(folder)).create_engine_config()
