"""The test of a release: send a request to a model through the router."""

import json
import os
import sys
import urllib.error
import urllib.request
from typing import Any


def call(path: str, body: dict[str, object] | None = None) -> Any:
    """Return the answer to a GET, or to a POST of `body`. Raises OSError."""
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    content = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(os.environ["ROUTER"] + path, content, headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=float(os.environ["TIMEOUT"])) as answer:  # noqa: S310
        return json.load(answer)


def main() -> str | None:
    """Return an error, if there is one."""
    try:
        models = [model["id"] for model in call("/v1/models")["data"]]
        model = os.environ.get("MODEL") or next(iter(models), None)
        if model is None:
            return "the router lists no model: create an LLMDeployment first"
        answer = call("/v1/completions", {"model": model, "prompt": "The sea is", "max_tokens": 8})
    except urllib.error.HTTPError as error:
        return f"{error.url}: {error.code} {error.read().decode(errors='replace')}"
    except OSError as error:
        return f"{os.environ['ROUTER']}: {error}"
    print(f"{model} answered: {answer['choices'][0]['text']!r}")
    return None


if __name__ == "__main__":
    sys.exit(main())
