"""A request as the scheduler sees it: a few counters, everything else derived."""

from dataclasses import dataclass, field

from torch import Tensor

from engine_server.engine.messages import AddRequest, TokenLogprobsArray
from engine_server.engine.pooling_params import PoolingParams
from engine_server.engine.sampling_params import SamplingParams


@dataclass(slots=True, eq=False)
class Request:
    request_id: str
    token_ids: list[int]  # the prompt, then the output
    num_prompt: int
    params: SamplingParams
    max_tokens: int
    computed: int = 0  # tokens whose K and V are in the cache
    row: int | None = None  # its row of the block table, while it runs
    regime: int = 0  # what its keys depend on besides its tokens, where a rope is stretched
    scheduled: float | None = None  # when it first ran
    child: int = 0  # its number among the n completions of one prompt
    num_resumed: int = 0  # output tokens that it came with
    prompt_logprobs: list[TokenLogprobsArray] | None = None  # while they are collected
    pooling: PoolingParams | None = None
    pooled: list[Tensor] = field(default_factory=list)  # what the pooler keeps of each chunk
    token_type_ids: list[int] | None = None
    prompt_embeds: Tensor | None = None  # [prompt tokens, hidden]

    @classmethod
    def from_message(cls, message: AddRequest) -> "Request":
        return cls(
            message.request_id,
            list(message.prompt_token_ids),  # it grows, and in one process others may hold what came
            len(message.prompt_token_ids) - message.num_resumed,
            message.params,
            message.max_tokens,
            child=message.child,
            num_resumed=message.num_resumed,
            prompt_logprobs=None if message.params.prompt_logprobs is None else [],
            pooling=message.pooling,
            token_type_ids=message.token_type_ids,
            prompt_embeds=message.prompt_embeds.tensor() if message.prompt_embeds else None,
        )

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def pending(self) -> int:
        """Tokens that the next forward must cover: 1 in decode."""
        return len(self.token_ids) - self.computed
