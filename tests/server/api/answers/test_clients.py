"""The official client's typed answers, with tools and an output type in one request, as agents send them."""

from typing import Literal

import openai
import pytest
from local_server import LocalServer
from pydantic import BaseModel

QUESTION = "Which colour is the sky?"
CALL = '<tool_call>\n{"name": "Paint", "arguments": {"colour": "red"}}\n</tool_call>'
FORM = '{"colour": "red"}'


class Colour(BaseModel):
    """An output type."""

    colour: Literal["red", "blue"]


class Paint(BaseModel):
    """A tool."""

    colour: Literal["red", "blue"]


@pytest.mark.parametrize("called", [False, True])
def test_chat_parses_calls_and_output_type(thinking: LocalServer, called: bool) -> None:
    with thinking.client() as client, thinking.saying(f"<think>Hm.</think>\n{CALL if called else FORM}"):
        with client.chat.completions.stream(
            model="smollm2",
            messages=[{"role": "user", "content": QUESTION}],
            tools=[openai.pydantic_function_tool(Paint)],
            response_format=Colour,
        ) as streamed:
            message = streamed.get_final_completion().choices[0].message
        whole = client.chat.completions.parse(
            model="smollm2",
            messages=[{"role": "user", "content": QUESTION}],
            tools=[openai.pydantic_function_tool(Paint)],
            response_format=Colour,
        )
    for one in (message, whole.choices[0].message):
        if called:
            assert one.tool_calls is not None
            assert one.tool_calls[0].function.parsed_arguments == Paint(colour="red")
        else:
            assert one.parsed == Colour(colour="red")


@pytest.mark.parametrize("called", [False, True])
def test_responses_parse_calls_and_output_type(thinking: LocalServer, called: bool) -> None:
    with thinking.client() as client, thinking.saying(f"<think>Hm.</think>\n{CALL if called else FORM}"):
        response = client.responses.parse(
            model="smollm2",
            input=QUESTION,
            tools=[openai.pydantic_function_tool(Paint)["function"] | {"type": "function"}],  # type: ignore[list-item]
            text_format=Colour,
        )
    if called:
        (call,) = [item for item in response.output if item.type == "function_call"]
        assert call.parsed_arguments in (Paint(colour="red"), {"colour": "red"})
    else:
        assert response.output_parsed == Colour(colour="red")
