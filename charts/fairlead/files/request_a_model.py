"""The test of a release: ask the router for its models, and send a request to one of them."""

import json
import os
import sys
import urllib.error
import urllib.request
from typing import Any

TEXT = "The sea is"
# Tried in this order, until one is for what the model can do.
REQUESTS: dict[str, dict[str, object]] = {
    "/v1/completions": {"prompt": TEXT, "max_tokens": 8},
    "/v1/embeddings": {"input": TEXT},
    "/classify": {"input": TEXT},
}


def call(path: str, body: dict[str, object] | None = None) -> Any:
    """Return the answer to a GET, or to a POST of `body`. Raises OSError."""
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    content = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(os.environ["ROUTER"] + path, content, headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=float(os.environ["TIMEOUT"])) as answer:  # noqa: S310
        return json.load(answer)


def ask(model: str) -> str | None:
    """Print the model's answer, or return an error. Raises OSError."""
    for path, body in REQUESTS.items():
        try:
            answer = call(path, {"model": model, **body})
        except urllib.error.HTTPError as error:
            refusal = error.read().decode(errors="replace")
            if not is_for_other_models(error.code, refusal):
                return f"{error.url}: {error.code} {refusal}"
        else:
            print(f"{model} answered at {path}: {json.dumps(answer)[:300]}")
            return None
    return f"{model} takes none of {', '.join(REQUESTS)}"


def is_for_other_models(status: int, refusal: str) -> bool:
    """Return True for the engine's refusal of an endpoint that its model is not for."""
    try:
        error = json.loads(refusal)["error"]
        return status == 400 and (error["code"], error["param"]) == ("unsupported_value", "model")
    except (ValueError, LookupError, TypeError):
        return False


def main() -> str | None:
    """Return an error, if there is one."""
    try:
        models = [model["id"] for model in call("/v1/models")["data"]]
        model = os.environ.get("MODEL") or next(iter(models), None)
        if model is None:
            print("the router answers, and lists no model yet")
            return None
        return ask(model)
    except urllib.error.HTTPError as error:
        return f"{error.url}: {error.code} {error.read().decode(errors='replace')}"
    except OSError as error:
        return f"{os.environ['ROUTER']}: {error}"


if __name__ == "__main__":
    sys.exit(main())
