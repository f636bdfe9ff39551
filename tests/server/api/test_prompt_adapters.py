"""Prompt adapters over HTTP: served by name beside LoRA adapters, loaded and unloaded in the same way."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from adapters import greedy, save_lora, save_prompt
from served_adapters import COMPLETIONS, PROMPT, Tuned, body, load, put, serving, states, tokens, unload
from transformers import LlamaForCausalLM
from waiting import until

CONTEXT = 64
COUNTS = {"soft": 5, "tuned": 20, "other": 7}


@pytest.fixture(scope="module")
def tuned(tiny_writer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tuned]:
    """Adapters from flags and a file, which alone enables both kinds."""
    folder = tmp_path_factory.mktemp("adapters")
    model = LlamaForCausalLM.from_pretrained(tiny_writer)
    lora = save_lora(model, folder / "lora", 0, target_modules=["q_proj", "v_proj"])
    folders, expected = (
        {"lora": lora},
        {"": greedy(model, None, PROMPT, 8), "lora": greedy(model, lora, PROMPT, 8)},
    )
    for seed, (name, count) in enumerate(COUNTS.items()):
        kind = "P_TUNING" if name == "tuned" else "PROMPT_TUNING"
        folders[name] = save_prompt(model, folder / name, seed, kind, count)
        expected[name] = greedy(model, None, PROMPT, 8, prompt_adapter=folders[name])
    assert len(set(map(tuple, expected.values()))) == len(expected)
    wanted = [{"name": "tuned", "uri": str(folders["tuned"])}, {"name": "broken", "uri": "/nowhere"}]
    (folder / "adapters.json").write_text(json.dumps({"adapters": wanted}))
    flags = (
        f"--max-model-len={CONTEXT}", "--max-prompt-adapters=2", "--max-prompt-adapter-token=30",
        f"--adapters-file={folder / 'adapters.json'}", f"--lora-modules=lora={lora}",
        f"--prompt-adapters=soft={folders['soft']}",
    )  # fmt: skip
    with serving(tiny_writer, folders, expected, *flags) as served:
        yield served


def test_adapters_of_both_kinds_answer_by_their_names(tuned: Tuned) -> None:
    for name in ("soft", "lora", "tuned", "soft"):
        assert tokens(tuned, name) == tuned.expected[name]
    assert tokens(tuned, "base") == tuned.expected[""]


def test_adapters_are_listed_with_their_parent_and_context(tuned: Tuned) -> None:
    cards = {card["id"]: card for card in tuned.api.get("/v1/models").json["data"]}
    assert cards.keys() == {"base", "lora", "soft", "tuned"}
    soft = cards["soft"]
    assert (soft["parent"], soft["root"]) == ("base", str(tuned.folders["soft"]))
    assert (cards["lora"]["max_model_len"], soft["max_model_len"]) == (CONTEXT, CONTEXT - COUNTS["soft"])


def test_virtual_tokens_are_neither_in_the_usage_nor_in_the_prompt(tuned: Tuned) -> None:
    fields = {"echo": True, "logprobs": 1, "prompt": "the adapter"}
    plain, adapted = (tuned.api.post(COMPLETIONS, body(model, **fields)).json for model in ("base", "tuned"))
    assert plain["usage"] == adapted["usage"]
    choices = plain["choices"][0], adapted["choices"][0]
    assert [choice["text"].startswith("the adapter") for choice in choices] == [True, True]
    assert len(choices[0]["logprobs"]["tokens"]) == len(choices[1]["logprobs"]["tokens"])
    assert (
        choices[1]["logprobs"]["text_offset"][0] == 0 and choices[1]["logprobs"]["token_logprobs"][0] is None
    )


def test_virtual_tokens_count_against_the_context(tuned: Tuned) -> None:
    long = tuned.api.request("POST", COMPLETIONS, body("tuned", prompt=[3] * 44))
    assert long.status == 400 and "44 tokens, after 20 virtual tokens of its adapter" in long.error["message"]
    cut = tuned.api.post(COMPLETIONS, body("tuned", prompt=[3] * 60, truncate_prompt_tokens=-1)).json
    assert cut["usage"]["prompt_tokens"] == 43 and cut["usage"]["completion_tokens"] == 1


def test_adapters_answer_beam_searches_and_streams(tuned: Tuned) -> None:
    fields = {"use_beam_search": True, "n": 2, "prompt": PROMPT, "max_tokens": 4}
    plain, adapted = (
        tuned.api.post(COMPLETIONS, {"model": model, **fields}).json for model in ("base", "soft")
    )
    assert plain["choices"][0]["text"] != adapted["choices"][0]["text"]
    stream = tuned.api.client().completions.create(
        model="soft", prompt=PROMPT, max_tokens=8, temperature=0, stream=True,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )  # fmt: skip
    assert [token for chunk in stream for token in chunk.choices[0].token_ids] == tuned.expected["soft"]


def test_adapter_is_loaded_replaced_and_unloaded(tuned: Tuned, tmp_path: Path) -> None:
    assert load(tuned, "new", tuned.folders["other"]).status == 200
    assert tokens(tuned, "new") == tuned.expected["other"]
    assert load(tuned, "new", tuned.folders["lora"], load_inplace=True).status == 200
    assert tokens(tuned, "new") == tuned.expected["lora"]
    assert load(tuned, "new", tuned.folders["soft"], load_inplace=True).status == 200
    assert tokens(tuned, "new") == tuned.expected["soft"]
    assert unload(tuned, "new").status == 200
    assert tuned.api.request("POST", COMPLETIONS, body("new")).status == 404


def test_a_wanted_set_has_adapters_of_both_kinds(tuned: Tuned) -> None:
    assert put(tuned, a=tuned.folders["other"], b=tuned.folders["lora"]).status == 200
    until(lambda: all(one["state"] == "ready" for one in states(tuned).values()))
    assert (tokens(tuned, "a"), tokens(tuned, "b")) == (tuned.expected["other"], tuned.expected["lora"])
    assert put(tuned, tuned=tuned.folders["tuned"]).status == 200  # as at the start
    until(lambda: all(one["state"] == "ready" for one in states(tuned).values()))
    until(lambda: tuned.api.get("/v1/models/b").status == 404)


def test_adapters_of_the_file_are_loaded_before_the_server_is_ready_except_those_that_fail(
    tuned: Tuned,
) -> None:
    tuned.api.wait_for_line("the adapter broken can't be served: /nowhere: no folder")
    assert tuned.at_start == {"tuned": "ready", "broken": "failed"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"peft_type": "PREFIX_TUNING"}, "peft_type is 'PREFIX_TUNING'; LORA is supported, and PROMPT_TUNING"),
        ({"num_virtual_tokens": "5"}, "num_virtual_tokens is '5'"),
        ({"num_virtual_tokens": 31}, "is 31; max_prompt_adapter_token of the engine is 30"),
        ({"num_virtual_tokens": 6}, "prompt_embeddings has the shape [5, 32], and 6 tokens of the model [6, 32]"),
    ],
)  # fmt: skip
def test_wrong_adapters_are_refused(
    tuned: Tuned, tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    soft = tuned.folders["soft"]
    (tmp_path / "adapter_model.safetensors").write_bytes((soft / "adapter_model.safetensors").read_bytes())
    config = json.loads((soft / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | settings))
    refused = load(tuned, "wrong", tmp_path)
    assert refused.status == 400 and words in refused.error["message"]
    assert tuned.api.get("/v1/models/wrong").status == 404
