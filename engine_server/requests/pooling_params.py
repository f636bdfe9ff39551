"""What a request wants of a pooling model."""

from typing import Annotated, ClassVar, Literal, Self

import msgspec
from msgspec import Meta

from engine_server.config import PoolingConfig
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.sampling_params import MOST, Count, RequestOutputKind, check_fields

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
    dimensions: Count | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=MOST)] | None = None
    timeout: Annotated[float, Meta(gt=0)] | None = None
    output_kind: ClassVar[RequestOutputKind] = RequestOutputKind.FINAL_ONLY

    def __post_init__(self) -> None:
        check_fields(self)
        if self.truncate_prompt_tokens == 0:
            raise InvalidRequestError(
                "truncate_prompt_tokens is 0; no token would be left", "truncate_prompt_tokens"
            )

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
