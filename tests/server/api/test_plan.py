"""The plan of an answer is made once: parameters are never changed after they were made, and a plan is a value."""

import ast
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from server.conversation.recorded_answers import TOOLS, our_layout

import engine_server.server
from engine_server.contract.wire.router_head import RouterHead
from engine_server.requests.sampling_params import SamplingParams
from engine_server.requests.structured_outputs import StructuredOutputsParams
from engine_server.requests.submission import Origin
from engine_server.server.api.plan_answer import plan_answer
from engine_server.server.generation.answer_start import AnswerStart
from engine_server.server.generation.plan import AnswerIdentity, AnswerRequest
from engine_server.server.generation.prompts import PreparedPrompt, TextSource
from engine_server.server.generation.request_context import RequestContext, ServedModel
from engine_server.server.generation.tool_use import AnswerStyle, ToolUse
from engine_server.server.loaded_model import LoadedModel

SOURCE = Path(engine_server.server.__file__).parent
OPEN = PreparedPrompt({"prompt_token_ids": [1]}, AnswerStart("<|im_start|>assistant\n<think>\n"))
CLOSED = PreparedPrompt({"prompt_token_ids": [2]}, AnswerStart("<think>\nEasy.\n</think>\n\n"))


def assigned_parameters(tree: ast.AST) -> list[int]:
    """Return the lines that assign to an attribute of something called `params`."""
    lines = []
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            owner = target.value if isinstance(target, ast.Attribute) else None
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if name.endswith("params"):
                lines.append(node.lineno)
    return lines


@pytest.mark.parametrize("line", ["params.seed = 1", "self.params.seed = 1", "one.sampling_params.n += 1"])
def test_assignment_to_parameters_is_found(line: str) -> None:
    assert assigned_parameters(ast.parse(line)) == [1]


def test_no_module_of_the_server_assigns_to_parameters() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 50
    found = {
        str(file.relative_to(SOURCE)): assigned_parameters(ast.parse(file.read_text())) for file in files
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


def request(style: AnswerStyle | None, **parameters: Any) -> AnswerRequest:
    return AnswerRequest(
        identity=AnswerIdentity("answer", 0, "m", "hash"),
        engine_id="answer",
        source=TextSource(texts=[], most_tokens=None),
        params=SamplingParams(**parameters),
        style=style,
        context=RequestContext(ServedModel("m", "hash", 9), RouterHead(), None, Origin()),
        fields={},
    )


def model(name: str = "hermes") -> LoadedModel:
    """A model of which only the layout counts, whose marks are tokens."""
    nothing = dict.fromkeys(LoadedModel.__dataclass_fields__)
    return cast(Any, LoadedModel)(**nothing | {"layout": our_layout(name, tokens=True), "token_bytes": ()})


@pytest.mark.parametrize("prompts", [(OPEN, CLOSED), (CLOSED, OPEN)])
@pytest.mark.parametrize(
    ("style", "parameters"),
    [
        (AnswerStyle(), {"structured_outputs": StructuredOutputsParams(json_object=True)}),
        (AnswerStyle(ToolUse(TOOLS, "required")), {}),
    ],
    ids=["form of the text", "demanded call"],
)
def test_each_prompts_grammar_begins_after_its_own_reasoning(
    style: AnswerStyle, parameters: dict[str, Any], prompts: Any
) -> None:
    plan = plan_answer(model(), request(style, **parameters), prompts)
    reasoning = [planned.params.reasoning for planned in plan.prompts]
    assert [one is not None and one.inside for one in reasoning] == [prompt is OPEN for prompt in prompts]
    assert all(planned.params.structured_outputs for planned in plan.prompts)


def test_a_plan_leaves_its_arguments_as_they_are() -> None:
    asked = request(AnswerStyle(), structured_outputs=StructuredOutputsParams(json_object=True))
    before = msgspec.structs.replace(asked.params)
    first, second = (plan_answer(model(), asked, [OPEN]) for _ in range(2))
    assert asked.params == before
    assert first.prompts[0].params == second.prompts[0].params
