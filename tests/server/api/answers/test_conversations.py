"""Conversations of ten answers with calls, which agents of several makes hold on templates with rules of their own."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import agents
import anthropic
import openai
import pytest
from local_server import LocalServer, serving
from pydantic import BaseModel
from server.conversation.derivation.published_templates import templates
from server.conversation.histories import ALTERNATING
from thinking_models import write_template

ROUNDS = 5
INSTRUCTIONS, LATER = "Be brief.", "Use colours."
TURNS = """{% if tools %}<|im_start|>tools
{{ tools | tojson }}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
SYSTEM_FIRST = """{% for m in messages if m.role == 'system' and not loop.first %}
{{- raise_exception('System message must be at the beginning.') }}{% endfor %}"""


@dataclass(frozen=True)
class Model:
    """A chat template, and how its model writes the answers of a round."""

    template: str
    # With THOUGHT, TEXT and COLOUR.
    call: str
    answer: str


THOUGHT = "<think>\nTHOUGHT\n</think>\n\nTEXT"
CALL = '\n<tool_call>\n{"name": "paint", "arguments": {"colour": "COLOUR"}}\n</tool_call>'
ANALYSIS = "<|channel|>analysis<|message|>THOUGHT<|end|><|start|>assistant"
CHANNELS = (
    f"{ANALYSIS}<|channel|>commentary<|message|>TEXT<|end|><|start|>assistant"
    '<|channel|>commentary to=functions.paint <|constrain|>json<|message|>{"colour": "COLOUR"}<|call|>',
    f"{ANALYSIS}<|channel|>final<|message|>TEXT<|return|>",
)
MODELS: dict[str, Callable[[], Model]] = {
    "alternating turns": lambda: Model(ALTERNATING + TURNS, THOUGHT + CALL, THOUGHT),
    "system first": lambda: Model(SYSTEM_FIRST + TURNS, THOUGHT + CALL, THOUGHT),
    "gpt-oss": lambda: Model(templates()["trl/gptoss"].text, *CHANNELS),
}


@pytest.fixture(scope="module", params=MODELS)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, models: dict[str, str]
) -> Iterator[tuple[LocalServer, Model]]:
    model = MODELS[request.param]()
    flag = write_template(tmp_path_factory.mktemp("conversation"), model.template)
    with serving(flag, "--max-model-len=4096", model=models["tokens"], names=["smollm2"]) as server:
        yield server, model


@contextmanager
def answering(server: LocalServer, texts: Sequence[str]) -> Iterator[None]:
    """Answer one request after the other."""
    tokens = iter([server.tokens(text) for text in texts])
    scripted = server.core.scripted
    before, scripted.script = scripted.script, lambda request: next(tokens)
    try:
        yield
    finally:
        scripted.script = before


def answers_of(model: Model, number: int) -> list[str]:
    """Return the two answers of a round: a call with a thought and text, and the end."""
    parts = {"THOUGHT": f"Hm {number}.", "TEXT": f"I paint {number}.", "COLOUR": f"red {number}"}
    ends = {"THOUGHT": f"So {number}.", "TEXT": f"Painted {number}."}
    texts = []
    for text, values in ((model.call, parts), (model.answer, ends)):
        for name, value in values.items():
            text = text.replace(name, value)
        texts.append(text)
    return texts


def paint(colour: str) -> str:
    """Paint."""
    return f"dry {colour}"


def hold_by_chat(server: LocalServer, model: Model) -> None:
    function = {
        "name": "paint",
        "parameters": {"type": "object", "properties": {"colour": {"type": "string"}}},
    }
    messages: list[Any] = [{"role": "system", "content": INSTRUCTIONS}]
    with server.client() as client:
        for number in range(ROUNDS):
            messages.append({"role": "user", "content": f"Round {number}."})
            if number == 2:
                messages.append({"role": "system", "content": LATER})
            with answering(server, answers_of(model, number)):
                for _ in range(2):
                    answer = client.chat.completions.create(
                        model="smollm2",
                        messages=messages,
                        tools=[{"type": "function", "function": function}],  # type: ignore[list-item]
                    )
                    message = answer.choices[0].message
                    messages.append(message.model_dump(exclude_none=True))
                    for call in message.tool_calls or ():
                        result = paint(**json.loads(call.function.arguments))  # type: ignore[union-attr]
                        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def hold_by_messages(server: LocalServer, model: Model) -> None:
    tool = {
        "name": "paint",
        "input_schema": {"type": "object", "properties": {"colour": {"type": "string"}}},
    }
    messages: list[Any] = []
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        for number in range(ROUNDS):
            messages.append({"role": "user", "content": f"Round {number}."})
            if number == 2:
                messages.append({"role": "system", "content": LATER})
            with answering(server, answers_of(model, number)):
                for _ in range(2):
                    answer = client.messages.create(
                        model="smollm2", max_tokens=400, system=INSTRUCTIONS, messages=messages, tools=[tool]
                    )
                    messages.append({"role": "assistant", "content": answer.content})
                    results = [
                        {"type": "tool_result", "tool_use_id": block.id, "content": paint(**block.input)}
                        for block in answer.content
                        if block.type == "tool_use"
                    ]
                    if results:
                        messages.append({"role": "user", "content": results})


def hold_by_agents(api: type[agents.Model]) -> Callable[[LocalServer, Model], None]:
    def hold(server: LocalServer, model: Model) -> None:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none")
        agent = agents.Agent(
            name="Painter",
            instructions=INSTRUCTIONS,
            model=api("smollm2", client),  # type: ignore[call-arg]
            tools=[agents.function_tool(paint)],
        )
        items: list[Any] = []
        for number in range(ROUNDS):
            items.append({"role": "user", "content": f"Round {number}."})
            if number == 2:
                items.append({"role": "system", "content": LATER})
            with answering(server, answers_of(model, number)):
                result = agents.Runner.run_sync(agent, items)
            assert result.final_output == f"Painted {number}."
            items = result.to_input_list()

    return hold


HOLD = {
    "openai": hold_by_chat,
    "anthropic": hold_by_messages,
    "Agents SDK by chat": hold_by_agents(agents.OpenAIChatCompletionsModel),
    "Agents SDK by responses": hold_by_agents(agents.OpenAIResponsesModel),
}


@pytest.fixture(autouse=True)
def no_tracing() -> None:
    agents.set_tracing_disabled(True)


@pytest.mark.parametrize("client", HOLD)
def test_agent_holds_a_conversation(served: tuple[LocalServer, Model], client: str) -> None:
    server, model = served
    HOLD[client](server, model)
    prompt = server.host.model.tokenizer.decode(server.core.requests[-1].token_ids())  # type: ignore[union-attr]
    last = ROUNDS - 1
    wanted = [f"Round {number}." for number in range(ROUNDS)] + [INSTRUCTIONS, LATER]
    for number in range(ROUNDS):
        wanted += [f"I paint {number}.", f'"red {number}"', f"dry red {number}"]
        wanted += [f"Painted {number}."] if number < last else []
    places = {text: prompt.find(text) for text in wanted}
    assert min(places.values()) >= 0, [text for text, place in places.items() if place < 0]
    assert all(prompt.count(text) == 1 for text in wanted)


class Colour(BaseModel):
    """An output type."""

    colour: Literal["red", "blue"]


@pytest.mark.parametrize("api", [agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel])
def test_agent_with_an_output_type_calls_a_tool_first(
    served: tuple[LocalServer, Model], api: type[agents.Model]
) -> None:
    server, model = served
    client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none")
    agent = agents.Agent(
        name="Painter",
        model=api("smollm2", client),  # type: ignore[call-arg]
        tools=[agents.function_tool(paint)],
        output_type=Colour,
    )
    call, _ = answers_of(model, 0)
    with answering(
        server, [call.replace("I paint 0.", ""), model.answer.replace("TEXT", '{"colour": "red"}')]
    ):
        result = agents.Runner.run_sync(agent, "Paint.")
    assert result.final_output == Colour(colour="red")
