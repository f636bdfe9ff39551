"""llama.cpp's server for a GGUF file, by the package xllamacpp, which no requirement of this project has."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import xllamacpp  # type: ignore[import-not-found]

CONTEXT = 4096


class LlamaCpp:
    """A server, until the process ends."""

    def __init__(self, file: Path) -> None:
        params = xllamacpp.CommonParams()
        params.model.path = str(file)
        params.n_ctx = CONTEXT
        params.n_parallel = 1
        params.warmup = False
        params.port = 0
        params.cpuparams.n_threads = 1
        params.verbosity = 0
        self._server = xllamacpp.Server(params)
        self._address = self._server.listening_address

    def ids(self, text: str, add_special: bool = True) -> list[int]:
        body = {"content": text, "add_special": add_special, "parse_special": True}
        found: list[int] = self._post("/tokenize", body)["tokens"]
        return found

    def complete(self, prompt: list[int], count: int, shown: int) -> dict[str, Any]:
        """Return the answer with the log-probabilities of the likeliest tokens at each of its greedy tokens."""
        body = {"prompt": prompt, "n_predict": count, "n_probs": shown, "temperature": 0, "ignore_eos": True}
        answer: dict[str, Any] = self._post("/completion", body | {"cache_prompt": False})
        return answer

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self._address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)
