"""Structured outputs with a real tokenizer, by a random model, and in the thorough tier by a real one."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from tiers import tiered
from tiny_models import TINY
from transformers import LlamaConfig, LlamaForCausalLM

from engine_server import EngineArgs, InvalidRequestError, LLMEngine, SamplingParams, StructuredOutputsParams

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "pets": {"type": "array", "items": {"enum": ["cat", "dog"]}, "maxItems": 2},
    },
    "required": ["name", "age", "pets"],
    "additionalProperties": False,
}
SMALL = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
OPEN = {name: value for name, value in SMALL.items() if name != "additionalProperties"}
TAGS = json.dumps(
    {
        "type": "structural_tag",
        "format": {
            "type": "tags_with_separator",
            "separator": "\n",
            "at_least_one": True,
            "stop_after_first": True,
            "tags": [
                {
                    "type": "tag",
                    "begin": f"<call={name}>",
                    "content": {"type": "json_schema", "json_schema": SMALL},
                    "end": "</call>",
                }
                for name in ("weather", "time")
            ],
        },
    }
)
PROMPT = "Describe a person in JSON: "


@pytest.fixture(scope="module", params=tiered(["random", "real"], "random"))
def engine(
    request: pytest.FixtureRequest, smollm2: Path, tmp_path_factory: pytest.TempPathFactory
) -> LLMEngine:
    if request.param == "real":
        return request.getfixturevalue("engine")
    folder = tmp_path_factory.mktemp("random")
    torch.manual_seed(0)
    sizes = TINY | {"vocab_size": 49152, "max_position_embeddings": 1024}
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(folder)
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(folder), tokenizer=str(smollm2), dtype="float32", num_gpu_blocks_override=512,
            disable_log_stats=True,
        )
    )  # fmt: skip


def is_json_of(schema: dict[str, Any]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        jsonschema.validate(json.loads(text), schema)
        return True

    return check


def matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


def is_call(text: str) -> bool:
    found = re.fullmatch(r"<call=(weather|time)>(.*)</call>", text, re.DOTALL)
    assert found
    return is_json_of(SMALL)(found[2])


KINDS: dict[str, tuple[dict[str, Any], Callable[[str], bool]]] = {
    "json": ({"json": SCHEMA}, is_json_of(SCHEMA)),
    "json as text without whitespace": (
        {"json": json.dumps(SMALL), "disable_any_whitespace": True},
        matches(r'\{"city":"[^ ].*"\}|\{"city":""\}|\{"city":".*"\}'),
    ),
    "no further properties": (
        {"json": OPEN, "disable_additional_properties": True},
        is_json_of(SMALL),
    ),
    "regex": ({"regex": r"[A-Z][a-z]{2,8} [0-9]{1,3}"}, matches(r"[A-Z][a-z]{2,8} [0-9]{1,3}")),
    "choice": ({"choice": ["red", "green", "blue sky"]}, matches("red|green|blue sky")),
    "Lark": ({"grammar": 'start: "a" /[0-9]{2}/ ("b" | "c")'}, matches("a[0-9]{2}[bc]")),
    "GBNF": ({"grammar": 'root ::= ("x" [0-9])? "y"'}, matches("(x[0-9])?y")),
    "structural tag": ({"structural_tag": TAGS}, is_call),
}


def params(structured: dict[str, Any], **options: Any) -> SamplingParams:
    return SamplingParams(
        **{
            "temperature": 1.0,
            "max_tokens": 400,
            "seed": 1,
            "structured_outputs": StructuredOutputsParams(**structured),
            **options,
        }
    )


# The thorough tier has more seeds, and the kind of the several choices below.
SEEDS = pytest.mark.parametrize("seeds", tiered([range(1), range(1, 8)], range(1), ids=str))


@SEEDS
@pytest.mark.parametrize(
    "kind", tiered(KINDS, "regex", "choice", "Lark", "structural tag", more=KINDS.keys() - {"json"})
)
def test_output_of_every_seed_matches_the_grammar(engine: LLMEngine, finish, kind: str, seeds: range) -> None:
    structured, check = KINDS[kind]
    for seed in seeds:
        engine.add_request(str(seed), PROMPT, params(structured, seed=seed))
    for output in finish(engine).values():
        [completion] = output.outputs
        assert completion.finish_reason == "stop" and completion.stop_reason is None
        assert check(completion.text), completion.text


def test_any_json_object_is_valid_when_it_ends(engine: LLMEngine, finish) -> None:
    ends = dict.fromkeys(engine.get_tokenizer().convert_tokens_to_ids(['"', "}"]), 12.0)  # it ends soon
    for seed in range(3):
        options = {"seed": seed, "max_tokens": 100, "logit_bias": ends}
        engine.add_request(str(seed), PROMPT, params({"json_object": True}, **options))
    ended = [one.outputs[0] for one in finish(engine).values() if one.outputs[0].finish_reason == "stop"]
    assert ended
    assert all(isinstance(json.loads(one.text), dict) for one in ended)


def test_each_of_several_choices_follows_the_grammar_by_itself(engine: LLMEngine, finish) -> None:
    structured, check = KINDS["json"]
    engine.add_request("r", PROMPT, params(structured, n=2))
    texts = [one.text for one in finish(engine)["r"].outputs]
    assert len(set(texts)) > 1
    assert all(check(text) for text in texts)


@pytest.mark.parametrize(
    "options", [{"min_tokens": 50}, {"ignore_eos": True}, {"bad_words": ["green", "red"]}]
)
def test_request_ends_where_the_grammar_ends(engine: LLMEngine, finish, options: dict[str, Any]) -> None:
    engine.add_request("r", "A color: ", params({"choice": ["red", "green"]}, **options))
    [completion] = finish(engine)["r"].outputs
    assert completion.finish_reason == "stop"
    assert completion.text in ("red", "green")
    if "bad_words" in options:
        assert len(completion.token_ids) > 2, "the words are spelled with other tokens"


def test_grammar_and_allowed_tokens_both_apply(engine: LLMEngine, finish) -> None:
    digits = engine.get_tokenizer().convert_tokens_to_ids(list("0123"))
    allowed = params({"regex": "[1-9]{5}"}, allowed_token_ids=digits)
    engine.add_request("r", "A number: ", allowed)
    [completion] = finish(engine)["r"].outputs
    assert re.fullmatch("[1-3]{5}", completion.text) and completion.finish_reason == "stop"


def test_request_without_an_allowed_token_fails_and_the_others_continue(engine: LLMEngine, finish) -> None:
    engine.add_request("dead end", "A color: ", params({"choice": ["red"]}, allowed_token_ids=[9000]))
    engine.add_request("other", "A color: ", params({"choice": ["red"]}))
    outputs = finish(engine)
    assert outputs["dead end"].outputs[0].finish_reason == "error"
    assert outputs["dead end"].outputs[0].stop_reason == "no token is left to choose from"
    assert outputs["other"].outputs[0].text == "red"


def test_stop_string_ends_the_text_within_the_grammar(engine: LLMEngine, finish) -> None:
    engine.add_request("r", "Numbers: ", params({"regex": "(1, ){3}2, (1, )*"}, stop=["2"]))
    [completion] = finish(engine)["r"].outputs
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("1, 1, 1, ", "stop", "2")


def test_grammar_starts_after_the_reasoning(engine: LLMEngine, finish) -> None:
    line_end = engine.get_tokenizer().convert_tokens_to_ids("Ċ")
    structured = {"choice": ["red", "green"], "starts_after": [line_end]}
    free = params(structured, max_tokens=900, logit_bias={line_end: 6.0})
    engine.add_request("r", "Let me think about colors", free)
    [completion] = finish(engine)["r"].outputs
    # Other tokens of the reasoning may have line ends in them.
    reasoning, _, answer = completion.text.rpartition("\n")
    assert len(reasoning) > 0 and answer in ("red", "green")
    assert completion.finish_reason == "stop"


def test_bad_grammar_is_refused_before_anything_is_queued(engine: LLMEngine) -> None:
    with pytest.raises(InvalidRequestError, match="look-around") as raised:
        engine.add_request("r", "x", params({"regex": "(?=a)"}))
    assert raised.value.parameter == "structured_outputs"
    with pytest.raises(InvalidRequestError, match="bytes in a schema or grammar; at most"):
        engine.add_request("r", "x", params({"json": {"enum": [f"value {n:06}" for n in range(20_000)]}}))
    assert not engine.has_unfinished_requests()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no grammar"),
        ({"regex": "a", "choice": ["a"]}, "regex and choice"),
        ({"json_object": False}, "no grammar"),
        ({"choice": []}, "choice is"),
        ({"choice": "red"}, "choice is"),
        ({"json": 7}, "json is 7"),
        ({"regex": "a", "disable_any_whitespace": True}, "not with regex"),
        ({"json": {}, "disable_any_whitespace": True, "whitespace_pattern": " "}, "give one of them"),
        ({"regex": "a", "starts_after": ["x"]}, "starts_after"),
    ],
)
def test_contradictory_parameters_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        StructuredOutputsParams(**options)
