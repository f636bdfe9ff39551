"""Requests that show what a model does, as curl commands."""

import json
import shlex
from typing import Any, NamedTuple

import aiohttp

# Variable of the key in a printed command.
KEY = "KEY"
QUESTION = "What is the capital of France? Answer in one sentence."
TEXTS = ["Paris is the capital of France.", "Bread is made of flour."]
# For an answer that only shows that there is one.
SHORT = {"max_tokens": 1}


class Sample(NamedTuple):
    """A request: its path, and its body without the model's name."""

    path: str
    body: dict[str, Any]
    # True for an API that streams.
    generates: bool = False

    def curl(self, url: str, model: str, needs_key: bool, stream: bool = False) -> str:
        """Return the command that sends the request to the router at `url`."""
        body = {"model": model, **self.body, **({"stream": True} if stream else {})}
        key = f' -H "Authorization: Bearer ${KEY}"' if needs_key else ""
        header = "-H 'Content-Type: application/json'"
        return f"curl -s{'N' * stream} {url}{self.path} {header}{key} -d {shlex.quote(json.dumps(body))}"


# Greedy: sampled answers of a small model may go on for a minute.
CHAT = Sample(
    "/v1/chat/completions",
    {"temperature": 0, "messages": [{"role": "user", "content": QUESTION}]},
    generates=True,
)
SAMPLES = (
    CHAT,
    Sample(
        "/v1/completions",
        {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 16},
        generates=True,
    ),
    Sample("/v1/embeddings", {"input": TEXTS[0]}),
    Sample("/v1/rerank", {"query": "What is the capital of France?", "documents": TEXTS}),
    Sample("/classify", {"input": TEXTS[0]}),
)


async def accepted(session: aiohttp.ClientSession, model: str) -> Sample:
    """Return the first sample that an engine accepts; that of a chat if it accepts none."""
    for sample in SAMPLES:
        body = {"model": model, **sample.body, **(SHORT if sample.generates else {})}
        try:
            async with session.post(sample.path, json=body) as response:
                if response.status == 200:
                    return sample
        except TimeoutError:  # it is computing
            return sample
        except aiohttp.ClientError:  # it has ended
            return CHAT
    return CHAT
