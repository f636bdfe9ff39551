"""Settings of speculative decoding."""

from typing import Annotated, Any, Literal, Self, get_args

import msgspec

from engine_server.config.model import ModelConfig

Method = Literal["ngram", "draft_model", "eagle3", "mtp"]
METHODS: tuple[Method, ...] = get_args(Method)
# Methods with a model of their own, and its name.
WITH_MODEL: dict[Method, str] = {"draft_model": "draft model", "eagle3": "EAGLE-3 head"}
# Fields that are no settings.
RESOLVED = ("draft_model_config", "head_path")
LookupLength = Annotated[int, msgspec.Meta(ge=1, le=64)]


class SpeculativeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The source of draft tokens that the model verifies, with vLLM's names. Raises ValueError."""

    # ngram: copied from the request's own tokens; draft_model: from a smaller model; eagle3, mtp: from a head on the
    # model's hidden states, which has files of its own (eagle3) or is among the model's (mtp).
    method: Method
    # Path or URI of the draft model or head; None for ngram and mtp.
    model: str | None = None
    # The most drafts of a request in a step. A cost model chooses how many there are.
    num_speculative_tokens: Annotated[int, msgspec.Meta(ge=1, le=16)] = 8
    # Tokens at the end of the text that must have occurred before (ngram).
    prompt_lookup_min: LookupLength = 3
    prompt_lookup_max: LookupLength = 5
    # Settings of the draft model, once it is resolved.
    draft_model_config: ModelConfig | None = None
    # Local folder of the EAGLE-3 head, once it is resolved.
    head_path: str | None = None

    def __post_init__(self) -> None:
        if self.method not in WITH_MODEL and self.model is not None:
            raise ValueError(f"model is {self.model!r}; method {self.method} takes none")
        if self.method in WITH_MODEL and not self.model:
            raise ValueError(
                f"method {self.method} needs model, the path or URI of the {WITH_MODEL[self.method]}"
            )
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError(
                f"prompt_lookup_min is {self.prompt_lookup_min}; it must not exceed prompt_lookup_max, "
                f"{self.prompt_lookup_max}"
            )

    @property
    def has_head(self) -> bool:
        """True if a head on the model's hidden states drafts."""
        return self.method in ("eagle3", "mtp")

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Self:
        """Read settings as vLLM does, and infer those that are not given. Raises ValueError.

        The model "ngram" is the method of that name, any other without a method is a draft model, and a bound of the
        lookup alone is also the other bound.
        """
        given = {name: value for name, value in settings.items() if value is not None}
        try:
            allowed = [name for name in cls.__struct_fields__ if name not in RESOLVED]
            if unknown := given.keys() - set(allowed):
                raise ValueError(f"unknown {', '.join(sorted(unknown))}; allowed: {', '.join(allowed)}")
            if given.get("model") == "ngram" and given.get("method", "ngram") == "ngram":
                del given["model"]
                given["method"] = "ngram"
            if "method" not in given and "model" not in given:
                raise ValueError(f"neither method nor model is given; method takes {', '.join(METHODS)}")
            given.setdefault("method", "draft_model")
            if given["method"] not in METHODS:
                raise ValueError(f"method is {given['method']!r}; allowed: {', '.join(METHODS)}")
            lookup = {"prompt_lookup_min", "prompt_lookup_max"} & given.keys()
            if lookup and given["method"] != "ngram":
                raise ValueError(
                    f"{min(lookup)} is given; method {given['method']} has no lookup, only ngram"
                )
            if len(lookup) == 1:
                bound = given[lookup.pop()]
                given |= {"prompt_lookup_min": bound, "prompt_lookup_max": bound}
            return msgspec.convert(given, cls)
        except ValueError as error:
            raise ValueError(f"speculative_config is {settings!r}: {error}") from None
