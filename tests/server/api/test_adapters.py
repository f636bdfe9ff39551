"""LoRA adapters over HTTP: served by name from the start on, loaded and unloaded over the admin API."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from adapters import greedy, save_lora
from served_adapters import COMPLETIONS, JSON, PROMPT, Tuned, body, load, put, serving, states, tokens, unload
from transformers import LlamaForCausalLM
from waiting import until

from engine_server.contract.wire import headers


@pytest.fixture(scope="module")
def tuned(tiny_writer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tuned]:
    folder = tmp_path_factory.mktemp("adapters")
    model = LlamaForCausalLM.from_pretrained(tiny_writer)
    folders, expected = {}, {"": greedy(model, None, PROMPT, 8)}
    for seed, name in enumerate(("french", "sql", "other")):
        folders[name] = save_lora(model, folder / name, seed, target_modules=["q_proj", "v_proj", "o_proj"])
        expected[name] = greedy(model, folders[name], PROMPT, 8)
    flags = (
        "--max-model-len=256", "--enable-lora", "--max-loras=2", "--max-lora-rank=8",
        f"--lora-modules=french={folders['french']}",
    )  # fmt: skip
    with serving(tiny_writer, folders, expected, *flags) as served:
        yield served


def test_adapter_of_the_start_answers_by_its_name(tuned: Tuned) -> None:
    assert tokens(tuned, "french") == tuned.expected["french"]
    assert tokens(tuned, "base") == tuned.expected[""]
    answer = tuned.api.client().completions.create(model="french", prompt="a", max_tokens=2)
    assert answer.model == "french"


def test_adapters_are_listed_with_their_parent(tuned: Tuned) -> None:
    cards = {card["id"]: card for card in tuned.api.get("/v1/models").json["data"]}
    assert cards["base"]["parent"] is None
    assert (cards["french"]["parent"], cards["french"]["root"]) == ("base", str(tuned.folders["french"]))
    assert tuned.api.get("/v1/models/french").json["id"] == "french"


def test_adapter_is_loaded_replaced_and_unloaded(tuned: Tuned, tmp_path: Path) -> None:
    assert load(tuned, "sql", tuned.folders["sql"]).status == 200
    assert tokens(tuned, "sql") == tuned.expected["sql"]
    again = load(tuned, "sql", tuned.folders["other"])
    assert again.status == 400 and "loaded already; load_inplace=true" in again.error["message"]
    assert load(tuned, "sql", tuned.folders["other"], load_inplace=True).status == 200
    assert tokens(tuned, "sql") == tuned.expected["other"]
    assert unload(tuned, "sql").status == 200
    assert unload(tuned, "sql").status == 404
    gone = tuned.api.request("POST", COMPLETIONS, body("sql"))
    assert (gone.status, gone.error["code"]) == (404, "model_not_found")
    assert tokens(tuned, "base") == tuned.expected[""]


def test_stream_goes_on_with_the_adapter_that_is_unloaded_meanwhile(tuned: Tuned, tmp_path: Path) -> None:
    folder = shutil.copytree(tuned.folders["sql"], tmp_path / "adapter")
    assert load(tuned, "moving", folder).status == 200
    stream = tuned.api.client().completions.create(
        model="moving", prompt=PROMPT, max_tokens=200, temperature=0, stream=True,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )  # fmt: skip
    found = list(next(stream).choices[0].token_ids)
    assert unload(tuned, "moving").status == 200
    shutil.rmtree(folder)
    for chunk in stream:
        found += chunk.choices[0].token_ids
    assert len(found) == 200 and found[:8] == tuned.expected["sql"]


def test_wrong_adapters_are_refused(tuned: Tuned, tmp_path: Path) -> None:
    for name, folder, words in (
        ("base", tuned.folders["sql"], "is a name of the model itself"),
        ("new", tmp_path / "nowhere", "no folder at"),
        ("new", tmp_path, "there is no adapter_config.json"),
    ):
        refused = load(tuned, name, folder)
        assert refused.status == 400 and words in refused.error["message"]
    shutil.copy(tuned.folders["sql"] / "adapter_config.json", tmp_path)
    refused = load(tuned, "new", tmp_path)
    assert refused.status == 400 and "has no adapter_model.safetensors" in refused.error["message"]
    assert tuned.admin.request("POST", "/v1/load_lora_adapter", {"lora_name": 1}, JSON).status == 400
    assert len(tuned.api.get("/v1/models").json["data"]) == 2


def test_router_names_the_adapter_and_the_answer_its_content(tuned: Tuned) -> None:
    given = {headers.DEPLOYMENT: "base", headers.ADAPTER: "french"}
    assert tokens(tuned, "an alias", **given) == tuned.expected["french"]
    assert tokens(tuned, "an alias", **{headers.DEPLOYMENT: "base"}) == tuned.expected[""]
    prints = [
        tuned.api.request("POST", COMPLETIONS, body("x"), {headers.DEPLOYMENT: "base", **more})
        for more in ({}, {headers.ADAPTER: "french"})
    ]
    assert prints[0].headers[headers.MODEL.lower()] != prints[1].headers[headers.MODEL.lower()]
    assert prints[1].headers[headers.MODEL.lower()] == prints[1].json["system_fingerprint"]
    missing = tuned.api.request("POST", COMPLETIONS, body("x"), given | {headers.ADAPTER: "german"})
    assert (missing.status, missing.error["code"]) == (404, "model_not_found")
    assert "french" not in missing.error["message"]  # which the router's caller may not be allowed to use


def test_refused_continuation_tells_the_fingerprint_of_the_adapter(tuned: Tuned) -> None:
    resume = {"id": "a", "created": 1, "seed": 1, "model": "other", "token_ids": [], "events": 0}
    given = {headers.DEPLOYMENT: "base", headers.ADAPTER: "french"}
    whole = tuned.api.request("POST", COMPLETIONS, body("x"), given)
    refused = tuned.api.request(
        "POST",
        COMPLETIONS,
        body("x", stream=True, fairlead={"resume": resume}),
        given | {headers.RESUME: "1"},
    )
    assert (refused.status, refused.error["code"]) == (409, "model_mismatch")
    assert refused.headers[headers.MODEL.lower()] == whole.headers[headers.MODEL.lower()]


def test_adapters_answer_beam_searches_and_tokenize(tuned: Tuned) -> None:
    fields = {"use_beam_search": True, "n": 2}
    plain, adapted = (
        tuned.api.post(COMPLETIONS, {"model": model, "prompt": PROMPT, "max_tokens": 4, **fields}).json
        for model in ("base", "french")
    )
    assert plain["choices"][0]["text"] != adapted["choices"][0]["text"]
    assert tuned.api.post("/tokenize", {"model": "french", "prompt": "a"}).status == 200


def test_wanted_adapters_are_reached_and_failures_reported(tuned: Tuned, tmp_path: Path) -> None:
    answer = put(tuned, one=tuned.folders["sql"], two=tuned.folders["other"], broken=tmp_path / "nowhere")
    assert answer.status == 200 and [one["name"] for one in answer.json["adapters"]] == [
        "one",
        "two",
        "broken",
    ]
    until(lambda: all(one["state"] != "loading" for one in states(tuned).values()))
    found = states(tuned)
    assert found["broken"]["state"] == "failed" and "no folder at" in found["broken"]["error"]
    assert found["one"]["state"] == "ready" and found["one"]["hash"] != found["two"]["hash"]
    assert tokens(tuned, "one") == tuned.expected["sql"]

    put(tuned, one=tuned.folders["other"], broken=tuned.folders["sql"])
    until(lambda: all(one["state"] == "ready" for one in states(tuned).values()))
    until(lambda: tuned.api.get("/v1/models/two").status == 404)
    assert states(tuned)["one"]["hash"] == found["two"]["hash"]
    assert tokens(tuned, "one") == tuned.expected["other"]
    assert tokens(tuned, "french") == tuned.expected["french"]  # not one of the set

    put(tuned)
    until(lambda: len(tuned.api.get("/v1/models").json["data"]) == 2)
    for wrong in (b"{", b'{"adapters": [{"name": "a"}]}', b'{"adapters": [{"name": "", "uri": "/x"}]}'):
        assert tuned.admin.request("PUT", "/adapters", wrong, JSON).status == 400
