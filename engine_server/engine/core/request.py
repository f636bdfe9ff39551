"""A request as the scheduler sees it: a few counters, everything else derived."""

from dataclasses import dataclass

from engine_server.engine.messages import AddRequest
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
    scheduled: float | None = None  # when it first ran

    @classmethod
    def from_message(cls, message: AddRequest) -> "Request":
        prompt = message.prompt_token_ids
        return cls(message.request_id, prompt, len(prompt), message.params, message.max_tokens)

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def pending(self) -> int:
        """Tokens that the next forward must cover: 1 in decode."""
        return len(self.token_ids) - self.computed
