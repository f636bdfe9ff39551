"""The operator's settings of the APIs that generate text, which are also flags of the command line."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from engine_server.engine.arguments.fields import argument
from engine_server.engine.arguments.flags import json_object

# The key of a field's metadata that says whether streams depend on it.
IN_STREAMS = "in_streams"


class LoraModule(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's form of an adapter that is served from the start on."""

    name: str
    path: str
    base_model_name: str | None = None


def setting(default: Any, text: str, *, in_streams: bool, **options: Any) -> Any:
    """Return a field that is a flag, as `argument` does.

    in_streams: with another value the same request makes another prompt or other events, and neither the fingerprint
    of the model nor the layout of its answers is another.
    """
    flag = argument(default, text, **options)
    return field(default=default, metadata={**flag.metadata, IN_STREAMS: in_streams})


@dataclass(frozen=True, kw_only=True)
class ApiSettings:
    """Settings of answers."""

    chat_template: str | None = setting(
        None,
        "file with a chat template in place of the model's own, or the template's text, which has a brace",
        metavar="FILE",
        in_streams=False,
    )
    response_template: str | None = setting(
        None,
        "file with transformers' response_template, JSON or YAML, in place of the format that is found for the model",
        metavar="FILE",
        in_streams=False,
    )
    trust_request_chat_template: bool = setting(
        False,
        "take a chat template from a request: clients then run templates of their own in the server",
        in_streams=False,
    )
    default_chat_template_kwargs: dict[str, Any] | None = setting(
        None,
        'variables for the chat template that requests may override, as {"enable_thinking": false}',
        type=json_object,
        metavar="JSON",
        in_streams=True,
    )
    unsupported_media: Literal["refuse", "omit"] | None = setting(
        None,
        "images, sounds and files that a model of text can't take: refuse them, or replace them by notes "
        "(default: refuse those of the user's newest turn, and replace all others)",
        in_streams=False,
    )
    strict_tools: bool = setting(
        False,
        "refuse requests with tools of types that are not known, in place of leaving the tools out",
        in_streams=False,
    )
    strict_schemas: bool = setting(
        False,
        "refuse schemas with parts that can't be enforced, in place of ignoring these parts",
        in_streams=False,
    )
    enable_tokenizer_info_endpoint: bool = setting(
        False, "publish the tokenizer's settings and chat template at /tokenizer_info", in_streams=False
    )
    enable_prompt_tokens_details: bool = setting(
        True, "report cached prompt tokens in an answer's usage", in_streams=True
    )
    enable_force_include_usage: bool = setting(
        False, "give the usage in every chunk of a stream and at its end, asked for or not", in_streams=True
    )
    sse_keep_alive_interval: float = setting(
        15.0,
        "seconds without a byte after which a stream gets a comment",
        metavar="SECONDS",
        in_streams=False,
    )
    lora_modules: list[str] | None = setting(
        None,
        "LoRA adapters to serve from the start on, as NAME=URI: a folder, or what `fairlead fetch` takes; may be "
        "repeated. vLLM's JSON with name and path is taken too. Takes --enable-lora",
        metavar="NAME=URI",
        in_streams=False,
    )
    prompt_adapters: list[str] | None = setting(
        None,
        "prompt adapters to serve from the start on, in the form of --lora-modules. Takes --enable-prompt-adapter",
        metavar="NAME=URI",
        in_streams=False,
    )
    adapters_file: Path | None = setting(
        None,
        'file with adapters to load before the server is ready, as {"adapters": [{"name": ..., "uri": ...}]}; one '
        "that fails doesn't end the start. Enables LoRA and prompt adapters, unless flags say otherwise",
        metavar="FILE",
        in_streams=False,
    )
    return_tokens_as_token_ids: bool = setting(
        False, "name tokens token_id:NUMBER in log-probabilities, unless a request sets it", in_streams=True
    )

    @classmethod
    def of(cls, options: object) -> Self:
        """Make settings from the namespace of a parser that has a flag for each field."""
        return cls(**{item.name: getattr(options, item.name) for item in fields(cls)})

    def of_streams(self) -> dict[str, Any]:
        """Return the settings that streams depend on, by name."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.metadata[IN_STREAMS]}

    def adapters(self) -> dict[str, str]:
        """Return the URIs of `lora_modules` and `prompt_adapters` by name. Raises ValueError."""
        found: dict[str, str] = {}
        for flag in ("lora_modules", "prompt_adapters"):
            for text in getattr(self, flag) or ():
                name, uri = name_and_uri(text)
                if not (name and uri):
                    raise ValueError(f"{flag} has {text!r}; it takes NAME=URI, or JSON with name and path")
                if name in found:
                    raise ValueError(f"{flag} has {name!r}, which names another adapter already")
                found[name] = uri
        return found

    def read_chat_template(self) -> str | None:
        """Return the text of the chat template; None for the model's own template. Raises ValueError."""
        if self.chat_template is None or "{" in self.chat_template:
            return self.chat_template
        try:
            return Path(self.chat_template).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"chat_template can't be read: {error}") from None


def name_and_uri(text: str) -> tuple[str, str]:
    """Return name and URI of NAME=URI, or of vLLM's JSON, whose base_model_name says nothing here; "" if missing."""
    if not text.startswith("{"):
        name, _, uri = text.partition("=")
        return name, uri
    try:
        module = msgspec.json.decode(text, type=LoraModule)
    except msgspec.MsgspecError:
        return "", ""
    return module.name, module.path
