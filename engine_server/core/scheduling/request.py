"""The state of a request in the core: its tokens and a few counters, from which the rest is derived."""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from torch import Tensor

from engine_server.requests.messages import AddRequest, RawTensor, TokenLogprobsArray
from engine_server.requests.pooling_params import PoolingParams
from engine_server.requests.sampling_params import SamplingParams


@dataclass(slots=True, eq=False)
class Request:
    request_id: str
    token_ids: list[int]  # the prompt, then the output
    num_prompt: int
    params: SamplingParams
    max_tokens: int
    computed: int = 0  # tokens whose K and V are in the cache
    confirmed: int = 0  # of `computed`, those from which a token has come since
    num_unknown: int = 0  # tokens at the end that are on their way from the device
    row: int | None = None  # its row of the block table, while it runs
    rope_regime: int = 0  # what its keys depend on besides its tokens, where a rope is stretched
    scheduled: float | None = None  # when it first ran
    priority: int = 0  # the lower runs first
    queue_position: tuple[int, int] = (0, 0)  # in the order in which requests run: priority, then arrival
    deadline: float | None = None  # on the monotonic clock
    cache_salt: str | None = None
    hashes: list[bytes] = field(default_factory=list)  # of its full blocks, as far as they were needed
    # Of the prompt's full blocks, as far as they were needed: shared by the choices of one prompt.
    prompt_hashes: list[bytes] = field(default_factory=list)
    num_cached: int = 0  # prompt tokens that were cached when it first ran
    choice_index: int = 0  # its number among the n completions of one prompt
    num_retries: int = 0  # steps for which there was too little memory
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
            priority=message.priority,
            deadline=message.deadline,
            cache_salt=message.cache_salt,
            choice_index=message.child,
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
        """Return how many tokens the next forward must cover: 1 in decode."""
        return len(self.token_ids) - self.computed

    def hash_blocks(self, count: int, block_size: int) -> None:
        """Extend `hashes` to at least `count` blocks. Each block of a prompt is hashed once for all its choices."""
        self.hashes += self.prompt_hashes[len(self.hashes) : count]
        for index in range(len(self.hashes), count):
            parent = self.hashes[-1] if index else self._root()
            self.hashes.append(
                block_hash(parent, self.token_ids[index * block_size : (index + 1) * block_size])
            )

            if (index + 1) * block_size <= self.num_prompt:
                self.prompt_hashes.append(self.hashes[index])

    def forget_hashes(self) -> None:
        """Drop the hashes, which depend on the rope's regime, so that they are computed again."""
        self.hashes, self.prompt_hashes = [], []

    def share_hashes(self, other: "Request") -> None:
        """Share the prompt's hashes with another request if it is a choice of the same prompt."""
        if self._has_prompt_of(other):
            self.prompt_hashes = other.prompt_hashes

    def _has_prompt_of(self, other: "Request") -> bool:
        count, embeds, others = self.num_prompt, self.prompt_embeds, other.prompt_embeds
        return (
            count == other.num_prompt
            and self.cache_salt == other.cache_salt
            and self.rope_regime == other.rope_regime
            and self.token_ids[:count] == other.token_ids[:count]
            and (embeds is others or (embeds is not None and others is not None and embeds.equal(others)))
        )

    def _root(self) -> bytes:
        """Hash what must be equal besides the tokens for two requests to share blocks."""
        embeds = None if self.prompt_embeds is None else RawTensor.of(self.prompt_embeds)
        return hashlib.sha256(msgspec.msgpack.encode((self.cache_salt, self.rope_regime, embeds))).digest()


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Hash a block's tokens and, through `parent`, all tokens before them; equal in every process."""
    return hashlib.sha256(parent + struct.pack(f"<{len(token_ids)}I", *token_ids)).digest()
