"""Language models that score by the logits of two answers, compared with transformers' logits."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Encoding, Tokenizer, models, pre_tokenizers
from torch import Tensor

from engine_server import LLM, EngineArgs, InvalidRequestError, PoolingParams
from engine_server.engine.input.text_pairs import PairTemplate
from engine_server.engine.input.tokenizer import Truncation

pytestmark = pytest.mark.transformers

TINY = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "initializer_range": 0.5,
}  # fmt: skip
WORDS = [
    "<pad>",
    "no",
    "yes",
    "judge",
    "query",
    "document",
    ":",
    "rope",
    "cat",
    "ring",
    "runs",
    "clear",
    "sits",
    "find",
]
NO, YES = 1, 2
TEMPLATE = (
    "judge {{ messages | selectattr('role', 'eq', 'system') | map(attribute='content') | first | default('find') }} "
    "query : {{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }} "
    "document : {{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }}"
    "{% if add_generation_prompt %} :{% endif %}"
)
PROMPTS = [[5, 6, 7, 8, 9], [11], [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 3, 4, 5, 6, 7, 8, 9]]
PACKAGE = "sentence_transformers"


def save(
    folder: Path, kind: str = "Qwen3ForCausalLM", template: str | None = TEMPLATE, **settings: object
) -> Path:
    """Save a tiny random language model with a tokenizer of words."""
    torch.manual_seed(0)
    model = getattr(transformers, kind)
    options = {"vocab_size": len(WORDS), "pad_token_id": 0, "tie_word_embeddings": False, **TINY, **settings}
    model(model.config_class(**options)).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


def add_logit_score(folder: Path, **settings: object) -> None:
    """Save what sentence-transformers does for a cross-encoder on a language model."""
    types = ["base.modules.transformer.Transformer", "cross_encoder.modules.logit_score.LogitScore"]
    paths = ["", "1_LogitScore"]
    entries = [{"idx": n, "path": paths[n], "type": f"{PACKAGE}.{types[n]}"} for n in range(2)]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "1_LogitScore").mkdir()
    (folder / "1_LogitScore/config.json").write_text(json.dumps(settings))


def logits(folder: Path, prompts: list[list[int]] = PROMPTS) -> Tensor:
    """Return the logits after each prompt, [prompts, vocabulary], by transformers."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.set_attn_implementation("eager")  # the default of some releases ignores a softcap
    with torch.no_grad():
        return torch.stack([model(torch.tensor([prompt])).logits[0, -1] for prompt in prompts])


def an_llm(folder: Path, **options: object) -> LLM:
    settings: dict[str, Any] = {"dtype": "float32", "max_model_len": 64, "num_gpu_blocks_override": 12}
    return LLM(str(folder), **settings | options)


def scores(llm: LLM, **params: object) -> Tensor:
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    outputs = llm.encode(prompts, PoolingParams(**params), pooling_task="score", use_tqdm=False)
    return torch.tensor([output.outputs.score for output in outputs])


def same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "settings", "options"),
    [
        ("Qwen3ForCausalLM", {"tie_word_embeddings": True}, {"max_num_batched_tokens": 12}),
        ("Qwen3ForCausalLM", {}, {}),
        ("Gemma2ForCausalLM", {"final_logit_softcapping": 3.0, "query_pre_attn_scalar": 8}, {}),
        ("Qwen3ForCausalLM", {"tie_word_embeddings": True}, {"quantization": "int8", "quantize_head": True}),
    ],
)
def test_score_is_the_difference_of_the_logits_of_both_answers(
    tmp_path: Path, kind: str, settings: dict[str, Any], options: dict[str, Any]
) -> None:
    folder = save(tmp_path, kind, **settings)
    add_logit_score(folder, true_token_id=YES, false_token_id=NO)
    llm, whole = an_llm(folder, **options), logits(folder)
    expected = whole[:, YES] - whole[:, NO]
    close = {"rtol": 0.2, "atol": 0.5} if "quantization" in options else {"rtol": 1e-4, "atol": 1e-4}
    assert llm.model_config.supported_tasks == ("classify", "encode", "score")
    torch.testing.assert_close(scores(llm, use_activation=False), expected, **close)
    torch.testing.assert_close(scores(llm), torch.sigmoid(expected), **close)
    for level in (1, 2):
        llm.sleep(level)
        llm.wake_up()
        torch.testing.assert_close(scores(llm, use_activation=False), expected, **close)


def test_head_computes_the_two_rows_alone(tmp_path: Path) -> None:
    folder = save(tmp_path)
    add_logit_score(folder, true_token_id=YES, false_token_id=NO)
    llm = an_llm(folder)
    head = llm.llm_engine._core.executor.first.model.get_output_embeddings()
    assert head(torch.randn(3, TINY["hidden_size"])).shape == (3, 2)


def test_one_answer_scores_by_its_logit(tmp_path: Path) -> None:
    folder = save(tmp_path)
    add_logit_score(folder, true_token_id=YES, false_token_id=None)
    settings = {"activation_fn": "torch.nn.modules.linear.Identity"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    same(scores(an_llm(folder)), logits(folder)[:, YES])


def test_answers_are_named_by_the_config_or_by_the_argument(tmp_path: Path) -> None:
    whole = logits(save(tmp_path / "argument"))
    same(
        scores(an_llm(tmp_path / "argument", score_tokens=["no", "yes"]), use_activation=False),
        whole[:, YES] - whole[:, NO],
    )
    save(tmp_path / "config", classifier_from_token=["no", "yes"])
    llm = an_llm(tmp_path / "config")
    same(scores(llm, use_activation=False), whole[:, YES] - whole[:, NO])
    llm = an_llm(tmp_path / "config", score_tokens=["cat"])
    same(scores(llm, use_activation=False), whole[:, WORDS.index("cat")])


def test_flag_takes_words_separated_by_commas() -> None:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    args = EngineArgs.from_cli_args(parser.parse_args(["model", "--score-tokens", "no,yes"]))
    assert args.score_tokens == ["no", "yes"]
    with pytest.raises(SystemExit):
        parser.parse_args(["model", "--score-tokens", "no,"])


def test_model_generates_without_score_tokens_and_by_runner(tmp_path: Path) -> None:
    folder = save(tmp_path)
    assert EngineArgs(model=str(folder)).create_engine_config().model_config.pooling is None
    add_logit_score(folder, true_token_id=YES, false_token_id=NO)
    args = EngineArgs(model=str(folder), runner="generate")
    assert args.create_engine_config().model_config.pooling is None


def test_pairs_are_rendered_by_the_template_with_the_instruction(tmp_path: Path) -> None:
    folder = save(tmp_path)
    add_logit_score(folder, true_token_id=YES, false_token_id=NO)
    settings = {
        "processing_kwargs": {"chat_template": {"add_generation_prompt": True, "restore_suffix": True}}
    }
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    llm = an_llm(folder)

    def score_of(text: str) -> float:
        whole = logits(folder, [[WORDS.index(word) for word in text.split()]])[0]
        return torch.sigmoid(whole[YES] - whole[NO]).item()

    def given(**options: Any) -> list[float]:
        outputs = llm.score("rope runs", ["cat sits", "ring runs clear"], use_tqdm=False, **options)
        return [output.outputs.score for output in outputs]

    rendered = "judge {} query : rope runs document : {} :"
    assert given() == pytest.approx(
        [score_of(rendered.format("find", text)) for text in ("cat sits", "ring runs clear")], abs=1e-5
    )
    assert given(instruction="clear") == pytest.approx(
        [score_of(rendered.format("clear", text)) for text in ("cat sits", "ring runs clear")], abs=1e-5
    )
    settings = {"prompts": {"ropes": "rope"}, "default_prompt_name": "ropes"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    llm = an_llm(folder)
    assert given()[0] == pytest.approx(score_of(rendered.format("rope", "cat sits")), abs=1e-5)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"longest": 12}, "judge find query : rope runs clear document : cat sits :"),
        ({"longest": 10}, "judge find query : rope runs clear document : :"),
        ({"longest": 9}, "judge find query : rope runs document : :"),
        ({"longest": 12, "side": "left"}, "judge find query : rope runs clear document : sits clear :"),
        ({"longest_first": 1, "longest_second": 2}, "judge find query : rope document : cat sits :"),
        ({"longest": 40}, "judge find query : rope runs clear document : cat sits clear :"),
    ],
)
def test_document_and_then_query_are_cut_and_the_template_stays_whole(
    tmp_path: Path, limits: dict[str, Any], words: str
) -> None:
    save(tmp_path)
    template = PairTemplate(
        transformers.AutoTokenizer.from_pretrained(tmp_path), {"add_generation_prompt": True}, None
    )
    (prompt,) = template.prompts([("rope runs clear", "cat sits clear")], Truncation(**limits))
    assert [WORDS[token] for token in prompt["prompt_token_ids"]] == words.split()


def test_limit_that_the_template_exceeds_is_refused(tmp_path: Path) -> None:
    save(tmp_path)
    template = PairTemplate(transformers.AutoTokenizer.from_pretrained(tmp_path), {}, None)
    with pytest.raises(InvalidRequestError, match="the model's template alone is 6"):
        template.prompts([("rope", "cat")], Truncation(5))


class Batching:
    """A tokenizer without `encode`, while which no other thread runs. It counts the texts of each batch."""

    def __init__(self, backend: Tokenizer) -> None:
        self.batches: list[int] = []
        self.encode_batch = backend.encode_batch
        self.num_special_tokens_to_add, self.post_process = (
            backend.num_special_tokens_to_add,
            backend.post_process,
        )
        self._backend = backend

    def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> list[Encoding]:
        self.batches.append(len(texts))
        return self._backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)


@pytest.mark.parametrize(
    ("limits", "batches"), [({}, [3]), ({"longest_second": 2}, [3]), ({"longest": 9}, [3, 1, 1])]
)
def test_pairs_are_tokenized_as_a_batch_and_those_that_are_too_long_again(
    tmp_path: Path, limits: dict[str, Any], batches: list[int]
) -> None:
    save(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokenizer._tokenizer = batching = Batching(tokenizer.backend_tokenizer)
    pairs = [("rope", "cat"), ("ring", "rope sits clear"), ("ring", "ring")]
    prompts = PairTemplate(tokenizer, {}, None).prompts(pairs, Truncation(**limits))
    assert [len(prompt["prompt_token_ids"]) for prompt in prompts] == [8, 9 if limits else 10, 8]
    assert batching.batches == batches


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (None, "score tokens need a chat template"),
        (
            "{% for message in messages if message.role == 'user' %}{{ message.content }}{% endfor %}",
            "roles query and",
        ),
        ("{{ messages[0].content }}", "roles query and document"),
        ("{{ raise_exception('only users') }}", "only users"),
    ],
)
def test_template_without_both_texts_is_refused(tmp_path: Path, template: str | None, words: str) -> None:
    folder = save(tmp_path, template=template)
    llm = an_llm(folder, score_tokens=["no", "yes"])
    with pytest.raises(ValueError, match=words):
        llm.score("rope", "cat")


@pytest.mark.parametrize(
    ("settings", "options", "words"),
    [
        ({}, {"score_tokens": ["maybe not", "yes"]}, "score_tokens has 'maybe not', which is 2 tokens"),
        ({}, {"score_tokens": ["no", "yes", "cat"]}, "score_tokens has 3 words"),
        ({}, {"score_tokens": ["no", "yes"], "runner": "generate"}, "by runner, doesn't score"),
        ({"true_token_id": 999, "false_token_id": 0}, {}, "999 as a score token, which its vocabulary lacks"),
        ({"true_token_id": "yes"}, {}, "1_LogitScore/config.json can't be read"),
        ({"false_token_id": 1}, {}, "1_LogitScore/config.json can't be read"),
    ],
)
def test_wrong_score_tokens_are_refused_by_name(
    tmp_path: Path, settings: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    folder = save(tmp_path)
    if settings:
        add_logit_score(folder, **settings)
    with pytest.raises(ValueError, match=words):
        EngineArgs(model=str(folder), **options).create_engine_config()


@pytest.mark.thorough
def test_ranks_that_share_the_vocabulary_score_as_one(tmp_path: Path) -> None:
    folder = save(tmp_path, tie_word_embeddings=True)
    add_logit_score(folder, true_token_id=YES, false_token_id=NO)
    whole, llm = logits(folder), an_llm(folder, tensor_parallel_size=2, device="cpu")
    for _ in range(3):
        same(scores(llm, use_activation=False), whole[:, YES] - whole[:, NO])
