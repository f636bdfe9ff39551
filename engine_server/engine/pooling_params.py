"""What a request wants of a pooling model."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self, get_args

import msgspec

from engine_server.engine.config import PoolingConfig
from engine_server.engine.errors import InvalidRequestError
from engine_server.engine.sampling_params import RequestOutputKind

PoolingTask = Literal["embed", "classify", "score", "encode"]


class PoolingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Pooling parameters, with vLLM's names.

    task: "embed" (one vector), "classify" (a score for each label), "score" (of a model with one label) or
        "encode" (every token's hidden state); None: what the model is made for.
    dimensions: only the first so many numbers of an embedding, where the model was trained for that.
    normalize: make embeddings of length 1; None: as the model's own files say.
    use_activation: scores through the model's activation, not raw; None: yes.
    truncate_prompt_tokens: cut a longer prompt to so many tokens, or to the context for -1; None: refuse it.
    timeout: seconds from arrival.

    Raises InvalidRequestError, which names the parameter.
    """

    task: PoolingTask | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
    truncate_prompt_tokens: int | None = None
    timeout: float | None = None
    output_kind: ClassVar[RequestOutputKind] = RequestOutputKind.FINAL_ONLY

    def __post_init__(self) -> None:
        for name, kinds, fits, wanted in CHECKS:
            value: Any = getattr(self, name)
            if value is not None and not (type(value) in kinds and fits(value)):
                raise InvalidRequestError(f"{name} is {value!r}; it takes {wanted}", name)

    def resolve(self, config: PoolingConfig) -> Self:
        """With every default that `config`'s model has. Raises InvalidRequestError for what it can't do."""
        embeds = config.num_labels is None
        tasks = ["embed" if embeds else "classify", "encode", *(["score"] if config.num_labels == 1 else [])]
        task = self.task or tasks[0]
        if task not in tasks:
            raise InvalidRequestError(f"task is {task!r}; this model can {', '.join(tasks)}", "task")
        if self.dimensions is not None and self.dimensions not in config.dimensions:
            raise InvalidRequestError(
                f"dimensions is {self.dimensions}; the model wasn't trained for embeddings of that length",
                "dimensions",
            )
        return msgspec.structs.replace(
            self,
            task=task,
            normalize=config.normalize if self.normalize is None else self.normalize,
            use_activation=self.use_activation is not False,
        )


CHECKS: tuple[tuple[str, tuple[type, ...], Callable[[Any], bool], str], ...] = (
    ("task", (str,), get_args(PoolingTask).__contains__, f"one of {', '.join(get_args(PoolingTask))}"),
    ("dimensions", (int,), lambda value: value > 0, "an integer of at least 1"),
    ("normalize", (bool,), lambda value: True, "True or False"),
    ("use_activation", (bool,), lambda value: True, "True or False"),
    ("truncate_prompt_tokens", (int,), lambda value: value == -1 or value > 0, "a positive integer, or -1"),
    ("timeout", (int, float), lambda value: value > 0, "a number above 0"),
)
