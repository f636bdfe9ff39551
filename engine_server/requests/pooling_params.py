"""Parameters of a request to a pooling model."""

from typing import ClassVar, Literal, Self, cast, get_args

import msgspec

from engine_server.config import PoolingConfig
from engine_server.contract.base.quoting import quote
from engine_server.requests import validation as valid
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.sampling_params import RequestOutputKind, truncation

PoolingTask = Literal["embed", "classify", "score", "encode"]
TASKS: tuple[PoolingTask, ...] = get_args(PoolingTask)
# vLLM's names of the tasks, by which its clients tell errors.
API_NAMES = {
    "embed": "Embedding",
    "classify": "Classification",
    "score": "Score",
    "encode": "Pooling",
    "generate": "Generation",
}


def unsupported(*tasks: str) -> str:
    """Return the beginning of the error for a model that can do none of these tasks."""
    return f"{' or '.join(API_NAMES[task] for task in tasks)} API is not supported by this model"


class PoolingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Pooling parameters, with vLLM's names.

    task: "embed" (one vector), "classify" (a score for each label), "score" (of a model with one label) or
        "encode" (every token's hidden state); None: the model's own task.
    dimensions: length to which an embedding is cut, if the model was trained for that length.
    use_activation: apply the model's activation to scores, and normalization to embeddings; None: True for
        scores, and the setting of the model's files for embeddings.
    normalize: the older name of use_activation for embeddings, which it overrides.
    truncate_prompt_tokens: length in tokens to which a longer prompt is cut, -1: the context; None: refuse it.
    timeout: seconds from arrival.
    prompt_name: one of the model's prompts, which is put before a text to embed; None: the model's default.

    Raises InvalidRequestError, which names the parameter.
    """

    task: PoolingTask | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
    truncate_prompt_tokens: int | None = None
    timeout: float | None = None
    prompt_name: str | None = None
    output_kind: ClassVar[RequestOutputKind] = RequestOutputKind.FINAL_ONLY

    def __post_init__(self) -> None:
        if self.task is not None:
            if not isinstance(self.task, str) or self.task not in TASKS:
                valid.refuse_value("task", self.task, f"one of {', '.join(TASKS)}")
            self.task = TASKS[TASKS.index(self.task)]
        if self.dimensions is not None:
            self.dimensions = valid.integer("dimensions", self.dimensions, 1, valid.MAX_INT32)
        if self.normalize is not None:
            self.normalize = valid.flag("normalize", self.normalize)
        if self.use_activation is not None:
            self.use_activation = valid.flag("use_activation", self.use_activation)
        if self.timeout is not None:
            self.timeout = valid.number("timeout", self.timeout, 0, bound="exclusive")
        if self.prompt_name is not None:
            self.prompt_name = valid.text("prompt_name", self.prompt_name)
        self.truncate_prompt_tokens = truncation(self.truncate_prompt_tokens)

    def resolve(self, config: PoolingConfig) -> Self:
        """Return a copy with every default of the model filled in. Raises InvalidRequestError if the model can't."""
        task = cast(PoolingTask, self.task or config.tasks[0])
        if task not in config.tasks:
            raise InvalidRequestError(f"{unsupported(task)}; it can {', '.join(config.tasks)}", "task")
        prompt_before(config, self.prompt_name)
        if self.dimensions is not None and self.dimensions not in config.dimensions:
            raise InvalidRequestError(
                f"dimensions is {self.dimensions}; the model wasn't trained for embeddings of that length",
                "dimensions",
            )
        normalize = config.normalize
        if self.use_activation is not None:
            normalize = self.use_activation
        if self.normalize is not None:
            normalize = self.normalize
        return msgspec.structs.replace(
            self,
            task=task,
            dimensions=self.dimensions or config.default_dimensions,
            normalize=normalize,
            use_activation=self.use_activation is not False,
        )


def prompt_before(config: PoolingConfig, name: str | None) -> str:
    """Return the model's prompt of this name, or its default for None. Raises InvalidRequestError for an unknown name.

    The text is put before each text to embed; it is empty if the model has no default.
    """
    if name is None:
        name = config.default_prompt
    if name is None:
        return ""
    if name not in config.prompts:
        known = f"takes one of {', '.join(config.prompts)}" if config.prompts else "has no prompts"
        raise InvalidRequestError(f"prompt_name is {quote(name)}; the model {known}", "prompt_name")
    return config.prompts[name]
