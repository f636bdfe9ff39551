"""Streamed answers of OpenAI's APIs, joined to the form of whole ones."""

import json
from typing import Any


def events(body: bytes) -> list[dict[str, Any]]:
    """Return the events of a complete stream, without the last one, [DONE]."""
    *lines, done, end = body.decode().split("\n\n")
    assert (done, end) == ("data: [DONE]", ""), body
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the whole answer that chunks make up; lists and texts are concatenated, other fields are replaced."""
    answer: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for part in chunk.pop("choices"):
            delta = part.pop("delta", None)
            if delta is not None:
                part["message"] = delta
            merge(choices.setdefault(part["index"], {}), part)
        answer |= {name: value for name, value in chunk.items() if value is not None}
    answer["choices"] = [choices[index] for index in sorted(choices)]
    return answer


def merge(whole: dict[str, Any], part: dict[str, Any]) -> None:
    for name, value in part.items():
        before = whole.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            merge(before, value)
        elif isinstance(value, str | list) and isinstance(before, str | list) and name != "role":
            whole[name] = before + value
        elif value is not None or name not in whole:
            whole[name] = value


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer without the fields that differ between two equal requests, and those that a stream lacks."""
    skipped = ("id", "created", "object", "prompt_logprobs")
    # Null in a whole answer that isn't asked for them.
    token_ids = ("prompt_token_ids", "token_ids")

    def compared(fields: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value
            for name, value in fields.items()
            if name not in skipped and not (name in token_ids and value is None)
        }

    answer = compared(answer)
    if "usage" in answer:  # the second prompt is cached
        counts = answer["usage"].items()
        answer["usage"] = {name: count for name, count in counts if name != "prompt_tokens_details"}
    answer["choices"] = [compared(choice) for choice in answer["choices"]]
    return answer
