"""Forms: a second grammar that the first reaches by @form."""

import pytest
from small_tokenizers import byte_level, vocabulary_of

from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.structured_outputs import StructuredOutputsParams
from engine_server.structured.compiler import Compiler
from engine_server.structured.description import grammar_text
from engine_server.structured.errors import GrammarError

TOKENIZER = byte_level()
COMPILER = Compiler(vocabulary_of(TOKENIZER))
# Either a call or the form, with rules whose names a form may have too.
CALLS = 'start: call | @form\ncall: "<call>" value\nvalue: NUMBER\nNUMBER: /[0-9]+/'
FORMS = {
    "schema": ({"json": {"type": "object", "required": ["a"]}}, '{"a": 1}', "{}"),
    "any object": ({"json_object": True}, "{}", "1"),
    "regex": ({"regex": "[a-c]{2}"}, "ab", "a1"),
    "choice": ({"choice": ["yes", "no @main"]}, "no @main", "maybe"),
    "equal rule names": (
        {"grammar": 'start: call\ncall: value "!"\nvalue: NUMBER\nNUMBER: "two"'}, "two!", "2!"
    ),
    "GBNF": ({"grammar": 'root ::= "x" [0-9]'}, "x1", "x"),
    "texts with an @": ({"grammar": 'start: "@main" /@form\\/?/ // @main\n# @main'}, "@main@form", "@main"),
    "structural tag": (
        {
            "structural_tag": '{"type": "structural_tag", "format": {"type": "tag", "begin": "<t>", "end": "</t>", '
            '"content": {"type": "json_schema", "json_schema": {"type": "integer"}}}}'
        },
        "<t>1</t>",
        "1",
    ),
}  # fmt: skip


def accepts(params: StructuredOutputsParams, text: str) -> bool:
    """Return True if the text may be generated and may end there."""
    matcher = COMPILER.compile(grammar_text(params, {})).deep_copy()
    token_ids = TOKENIZER.encode(text).ids
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


@pytest.mark.parametrize("name", FORMS)
def test_answer_is_a_text_of_the_grammar_or_of_the_form(name: str) -> None:
    form, accepted, refused = FORMS[name]
    params = StructuredOutputsParams(grammar=CALLS, form=StructuredOutputsParams(**form))

    assert accepts(params, accepted)
    assert not accepts(params, refused)
    assert accepts(params, "<call>12")
    assert not accepts(params, "<call>two")


@pytest.mark.parametrize("reference", ["@main", "@form", "@start", "@0"])
@pytest.mark.parametrize("as_form", [True, False], ids=["as a form", "alone"])
def test_grammar_that_refers_to_another_one_is_refused(reference: str, as_form: bool) -> None:
    own = StructuredOutputsParams(grammar=f'start: "q" {reference}\nmain: "b"')
    params = StructuredOutputsParams(grammar=CALLS, form=own) if as_form else own
    with pytest.raises(GrammarError, match=f"refers to another one, '{reference}', which does not exist"):
        grammar_text(params, {})


def test_form_needs_a_grammar_that_refers_to_it() -> None:
    with pytest.raises(InvalidRequestError, match="form takes effect with grammar, not with json_object"):
        StructuredOutputsParams(json_object=True, form=StructuredOutputsParams(regex="a"))
