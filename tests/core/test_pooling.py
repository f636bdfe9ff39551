"""Pooling models, compared with transformers and sentence-transformers."""

import asyncio
import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers
from tiers import tiered
from torch import Tensor

from engine_server import (
    LLM,
    AsyncEngineArgs,
    AsyncLLM,
    EmbeddingRequestOutput,
    InvalidRequestError,
    PoolingParams,
    SamplingParams,
)
from engine_server.core.engine_core import EngineCore

pytestmark = pytest.mark.transformers

TINY = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 80, "initializer_range": 0.5, "pad_token_id": 1, "cls_token_id": 2, "sep_token_id": 3,
    "bos_token_id": 2, "eos_token_id": 3,
}  # fmt: skip
DISTILBERT = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}
MODERNBERT = {"local_attention": 8, "global_attn_every_n_layers": 2, "classifier_pooling": "mean"}
LAST_TOKEN, MEAN = {"pooling_mode": "lasttoken"}, {"pooling_mode_mean_tokens": True}
PROMPTS = [[5, 6, 7, 8, 9], [11], [31, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46], list(range(20, 60))]
MULTI_LABEL = ("RobertaForSequenceClassification", {"problem_type": "multi_label_classification"})
REGRESSION = ("DistilBertForSequenceClassification", {**DISTILBERT, "problem_type": "regression"})
QWEN3 = ("Qwen3ForSequenceClassification", {"num_key_value_heads": 2, "head_dim": 8})
REFERENCE = json.loads(Path(__file__).with_name("minilm.json").read_text())

Make = Callable[..., Path]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Return a function that saves a tiny random model of a class, optionally with pooling settings."""

    def write(kind: str, pooling: dict | None = None, **settings: object) -> Path:
        torch.manual_seed(0)
        folder = tmp_path_factory.mktemp("tiny")
        model = getattr(transformers, kind)
        model(model.config_class(**{**TINY, **settings})).save_pretrained(folder)
        if pooling:
            modules = [{"type": f"st.models.{name}", "path": name} for name in ("Transformer", "Pooling")]
            (folder / "modules.json").write_text(json.dumps(modules))
            (folder / "Pooling").mkdir()
            (folder / "Pooling/config.json").write_text(json.dumps(pooling))
        return folder

    return write


def an_llm(folder: Path, **options: object) -> LLM:
    settings = {
        "dtype": "float32",
        "max_model_len": 64,
        "skip_tokenizer_init": True,
        "num_gpu_blocks_override": 12,
    }
    return LLM(str(folder), **{**settings, **options})


def as_prompts(prompts: list[list[int]] = PROMPTS) -> list[dict]:
    return [{"prompt_token_ids": prompt} for prompt in prompts]


def states(folder: Path) -> list[Tensor]:
    """Return hidden states [tokens, hidden] of each prompt, computed alone by transformers."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        return [model(torch.tensor([prompt])).last_hidden_state[0] for prompt in PROMPTS]


def logits(folder: Path, **options: Tensor) -> list[Tensor]:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        return [model(torch.tensor([prompt])).logits[0] for prompt in PROMPTS]


def same(ours: list, theirs: list[Tensor]) -> None:
    for own, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(torch.as_tensor(own), their, rtol=1e-4, atol=1e-4)


def embeddings(outputs: list[EmbeddingRequestOutput]) -> list[list[float]]:
    return [output.outputs.embedding for output in outputs]


@pytest.mark.more
async def test_minilm_embeddings_equal_sentence_transformers() -> None:
    """Send all prompts together, to a core process."""
    args = AsyncEngineArgs(model=REFERENCE["model"], dtype="float32", disable_log_stats=True)
    engine = AsyncLLM.from_engine_args(args)

    async def embed(number: int, sentence: str) -> list[float]:
        stream = engine.encode(sentence, PoolingParams(truncate_prompt_tokens=-1), number)
        (output,) = [output async for output in stream]
        assert isinstance(output, EmbeddingRequestOutput) and output.finished
        assert (output.request_id, output.finish_reason) == (str(number), "stop")
        return output.outputs.embedding

    try:
        vectors = await asyncio.gather(*(embed(*each) for each in enumerate(REFERENCE["sentences"])))
        assert len(vectors) == 12
        same(vectors, [torch.tensor(vector) for vector in REFERENCE["embeddings"]])
        with pytest.raises(
            InvalidRequestError, match="maximum context length is 256 tokens; the prompt has 482"
        ):
            await anext(engine.encode(REFERENCE["sentences"][-1], PoolingParams(), "long"))
        with pytest.raises(
            InvalidRequestError, match="Generation API is not supported by this model: it pools"
        ):
            await anext(engine.generate("text", SamplingParams(), "text"))
        stream = await engine.add_request("gone", "text", PoolingParams())
        await engine.abort("gone")
        output = await stream.get()
        assert (output.finished, output.finish_reason, output.outputs.embedding) == (True, "abort", [])
    finally:
        engine.shutdown()


@pytest.mark.parametrize(
    ("kind", "settings"),
    tiered(
        [
            ("BertModel", {}),
            ("RobertaForMaskedLM", {}),
            ("XLMRobertaModel", {}),
            ("DistilBertModel", DISTILBERT),
            ("ElectraModel", {"embedding_size": 16}),
            ("AlbertModel", {"embedding_size": 16}),
            ("ModernBertModel", MODERNBERT),
            ("MPNetModel", {"classifier_pooling": "mean"}),
        ],
        ("BertModel", {}),  # the plain one, one with windows, and one with relative positions
        more=[("ModernBertModel", MODERNBERT), ("MPNetModel", {"classifier_pooling": "mean"})],
    ),
)
def test_encoder_embeddings_equal_transformers(make: Make, kind: str, settings: dict) -> None:
    folder = make(kind, **settings)
    llm = an_llm(folder, enable_prompt_embeds=True)
    assert llm.llm_engine.config.cache_config.num_gpu_blocks == 0
    whole = states(folder)
    pooled = [state.mean(0) if "mean" in settings.values() else state[0] for state in whole]
    same(
        embeddings(llm.embed(as_prompts(), use_tqdm=False)), [F.normalize(vector, dim=0) for vector in pooled]
    )
    raw = PoolingParams(normalize=False)
    same(embeddings(llm.embed(as_prompts(), pooling_params=raw, use_tqdm=False)), pooled)
    same([output.outputs.data for output in llm.encode(as_prompts(), use_tqdm=False)], whole)
    assert llm.llm_engine.step() == []
    assert EngineCore(llm.llm_engine.config, lambda *_: None).step() == []


@pytest.mark.more
@pytest.mark.parametrize(
    ("kind", "pooling"),
    tiered(
        product(["Qwen3Model", "LlamaForCausalLM"], [LAST_TOKEN, MEAN]),
        ("LlamaForCausalLM", MEAN),
        more=[("Qwen3Model", LAST_TOKEN)],
    ),
)
def test_decoder_embeddings_are_equal_in_chunks_and_after_preemption(
    make: Make, finish, kind: str, pooling: dict
) -> None:
    folder = make(kind, pooling, num_key_value_heads=2, head_dim=8)
    llm = an_llm(folder, max_num_batched_tokens=12)
    whole = states(folder)
    expected = [state[-1] if "pooling_mode" in pooling else state.mean(0) for state in whole]
    for _ in range(2):  # the second run finds nothing in a cache
        same(embeddings(llm.embed(as_prompts(), use_tqdm=False)), expected)
        same([output.outputs.data for output in llm.encode(as_prompts(), use_tqdm=False)], whole)
    engine = llm.llm_engine
    for number, prompt in enumerate(as_prompts()):
        engine.add_request(str(number), prompt, PoolingParams())
    early = {output.request_id: output for _ in range(2) for output in engine.step()}
    assert [one.computed for one in engine.debug_state().requests if one.computed] == [7]  # of 40
    llm.sleep()
    llm.wake_up()
    outputs = early | finish(engine)
    same(embeddings([outputs[str(number)] for number in range(len(PROMPTS))]), expected)
    assert engine.debug_state().scheduler.num_used_blocks == 0


@pytest.mark.thorough
def test_ranks_that_share_a_model_embed_as_one(make: Make) -> None:
    folder = make("Qwen3Model", num_key_value_heads=2, head_dim=8)
    llm = an_llm(folder, tensor_parallel_size=2, device="cpu")
    for _ in range(3):  # a rank that fails in a step is found in the next
        outputs = llm.embed(as_prompts(), use_tqdm=False)
        same(embeddings(outputs), [F.normalize(state[-1], dim=0) for state in states(folder)])


def test_decoder_embeds_with_runner_pooling(make: Make) -> None:
    folder = make("LlamaForCausalLM", num_key_value_heads=2)
    outputs = an_llm(folder, runner="pooling").embed(as_prompts(), use_tqdm=False)
    same(embeddings(outputs), [F.normalize(state[-1], dim=0) for state in states(folder)])


@pytest.mark.parametrize(
    ("kind", "settings"),
    tiered(
        [
            ("BertForSequenceClassification", {}),
            MULTI_LABEL,
            REGRESSION,
            ("XLMRobertaForSequenceClassification", {}),
            ("ElectraForSequenceClassification", {"embedding_size": 16}),
            ("ModernBertForSequenceClassification", MODERNBERT),
            ("MPNetForSequenceClassification", {}),
            QWEN3,
            ("LlamaForSequenceClassification", {"num_key_value_heads": 2, "pad_token_id": None}),
        ],
        ("BertForSequenceClassification", {}),
        QWEN3,
        more=[MULTI_LABEL, REGRESSION],
    ),
)
def test_classifier_scores_equal_transformers(make: Make, kind: str, settings: dict) -> None:
    folder = make(kind, num_labels=3, **settings)
    llm = an_llm(folder)
    activation = {
        None: torch.nn.Softmax(-1),
        "multi_label_classification": torch.sigmoid,
        "regression": lambda x: x,
    }
    expected = logits(folder)
    same(
        [output.outputs.probs for output in llm.classify(as_prompts(), use_tqdm=False)],
        [activation[settings.get("problem_type")](scores) for scores in expected],
    )
    raw = llm.classify(as_prompts(), pooling_params=PoolingParams(use_activation=False), use_tqdm=False)
    same([output.outputs.probs for output in raw], expected)
    for level in (1, 2):  # the head is restored with the weights
        llm.sleep(level)
        llm.wake_up()
        again = llm.classify(as_prompts(), pooling_params=PoolingParams(use_activation=False), use_tqdm=False)
        same([output.outputs.probs for output in again], expected)
    for task in ("embed", "score"):
        with pytest.raises(InvalidRequestError, match="API is not supported by this model; it can classify"):
            llm.encode(as_prompts(), pooling_task=task)


@pytest.mark.parametrize(
    ("files", "scores"),
    [
        ({}, lambda x: x),
        ({"config_sentence_transformers.json": "{}"}, torch.sigmoid),
        (
            {"modules.json": '[{"type": "sentence_transformers.models.Transformer", "path": ""}]'},
            torch.sigmoid,
        ),
        (
            {"config_sentence_transformers.json": '{"activation_fn": "torch.nn.modules.linear.Identity"}'},
            lambda x: x,
        ),
    ],
    ids=["no files", "settings", "modules", "named"],
)
def test_scores_of_a_cross_encoder_follow_the_library_that_wrote_its_files(
    make: Make, files: dict[str, str], scores: Callable[[Tensor], Tensor]
) -> None:
    folder = make("BertForSequenceClassification", num_labels=1, problem_type="regression")
    for name, content in files.items():
        (folder / name).write_text(content)
    llm = an_llm(folder)
    expected = logits(folder)

    scored = llm.encode(as_prompts(), pooling_task="score", use_tqdm=False)
    same([[output.outputs.score] for output in scored], [scores(each) for each in expected])
    same([output.outputs.probs for output in llm.classify(as_prompts(), use_tqdm=False)], expected)


def test_cross_encoder_uses_token_types_of_both_texts(make: Make) -> None:
    folder = make("BertForSequenceClassification", num_labels=1)
    llm = an_llm(folder)
    kinds = [[0] * 3 + [1] * (len(prompt) - 3) for prompt in PROMPTS[2:]]
    prompts = [
        {"prompt_token_ids": prompt, "token_type_ids": kind}
        for prompt, kind in zip(PROMPTS[2:], kinds, strict=True)
    ]
    outputs = llm.encode([*prompts, *as_prompts()], pooling_task="score", use_tqdm=False)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        pairs = [
            model(torch.tensor([prompt]), token_type_ids=torch.tensor([kind])).logits[0]
            for prompt, kind in zip(PROMPTS[2:], kinds, strict=True)
        ]
    expected = [torch.sigmoid(scores[0]) for scores in [*pairs, *logits(folder)]]
    same([output.outputs.score for output in outputs], expected)
    with pytest.raises(InvalidRequestError, match="from 0 to 1 for each token"):
        llm.encode({"prompt_token_ids": [5, 6], "token_type_ids": [0, 2]}, pooling_task="score")


def test_embeddings_are_cut_to_trained_dimensions_only(make: Make) -> None:
    folder = make("BertModel", matryoshka_dimensions=[8, 16])
    llm = an_llm(folder)
    cut = llm.embed(as_prompts(), pooling_params=PoolingParams(dimensions=8), use_tqdm=False)
    same(embeddings(cut), [F.normalize(state[0, :8], dim=0) for state in states(folder)])
    with pytest.raises(InvalidRequestError, match="dimensions is 7"):
        llm.embed(as_prompts(), pooling_params=PoolingParams(dimensions=7))


def test_request_with_a_nan_or_a_passed_deadline_ends_alone(make: Make) -> None:
    folder = make("BertModel")
    llm = an_llm(folder, enable_prompt_embeds=True)
    bad = {"prompt_embeds": torch.full((3, 32), torch.nan)}
    params = [PoolingParams(), PoolingParams(), PoolingParams(timeout=1e-9)]
    good, failed, late = llm.embed(
        [*as_prompts()[:1], bad, *as_prompts()[:1]], pooling_params=params, use_tqdm=False
    )
    same(embeddings([good]), [F.normalize(states(folder)[0][0], dim=0)])
    assert (failed.finish_reason, failed.stop_reason) == ("error", "the result is not finite")
    assert late.finish_reason == "timeout" and embeddings([failed, late]) == [[], []]


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("DebertaV2Model", {}, "of which 0 call the attention interface"),
        ("AlbertForSequenceClassification", {"settings": {"embedding_size": 16}}, "its own pooling code"),
        ("BertModel", {"max_num_batched_tokens": 63}, "must be at least max_model_len, 64"),
        ("BertModel", {"max_model_len": 81}, "positions end at 80"),
        ("RobertaModel", {"max_model_len": 80}, "positions end at 78"),
        ("BertModel", {"pooling": {"pooling_mode_max_tokens": True}}, "max_tokens isn't supported"),
        ("BertLMHeadModel", {"runner": "generate"}, "attends as a decoder's does"),
        ("BertModel", {"runner": "embed"}, "generate, pooling"),
    ],
)
def test_model_that_would_be_computed_wrongly_is_refused(
    make: Make, kind: str, options: dict, words: str
) -> None:
    folder = make(kind, options.pop("pooling", None), **options.pop("settings", {}))
    with pytest.raises(ValueError, match=words):
        an_llm(folder, **options)


@pytest.mark.parametrize(
    ("name", "value"),
    [("task", "rank"), ("dimensions", 0), ("normalize", 1), ("truncate_prompt_tokens", 0), ("timeout", 0)],
)
def test_invalid_pooling_parameter_is_named_in_the_error(name: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=name) as caught:
        PoolingParams(**{name: value})
    assert caught.value.parameter == name
