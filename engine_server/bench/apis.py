"""The APIs of OpenAI that a load can use."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Api(Protocol):
    """An API that answers a conversation with streamed text."""

    path: str

    def prompt(self, turns: Sequence[str]) -> dict[str, Any]:
        """Return the request's field with the conversation so far: texts and their answers in turn, a text at last."""

    def text(self, choice: Mapping[str, Any]) -> str:
        """Return the text that a streamed choice adds to the conversation."""

    def reasoning(self, choice: Mapping[str, Any]) -> str:
        """Return the reasoning that a streamed choice adds; it is no part of the conversation."""


class Completions:
    """Continuation of one text."""

    path = "/v1/completions"

    def prompt(self, turns: Sequence[str]) -> dict[str, Any]:
        # An answer is appended as it is, so that the prompt begins with tokens that the server has cached.
        spaced = [turn if index % 2 or not index else f" {turn}" for index, turn in enumerate(turns)]
        return {"prompt": "".join(spaced)}

    def text(self, choice: Mapping[str, Any]) -> str:
        return choice.get("text") or ""

    def reasoning(self, choice: Mapping[str, Any]) -> str:
        return ""


class Chat:
    """Messages of a user and an assistant."""

    path = "/v1/chat/completions"

    def prompt(self, turns: Sequence[str]) -> dict[str, Any]:
        roles = ("user", "assistant")
        return {"messages": [{"role": roles[index % 2], "content": turn} for index, turn in enumerate(turns)]}

    def text(self, choice: Mapping[str, Any]) -> str:
        return (choice.get("delta") or {}).get("content") or ""

    def reasoning(self, choice: Mapping[str, Any]) -> str:
        delta = choice.get("delta") or {}
        return delta.get("reasoning") or delta.get("reasoning_content") or ""


APIS: Mapping[str, Api] = {"completions": Completions(), "chat": Chat()}
