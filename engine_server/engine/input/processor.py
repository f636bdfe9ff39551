"""Conversion of a caller's prompt and parameters to a checked request for the core.

Every error that can be detected before the request runs is raised here.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec

from engine_server.config import ModelConfig
from engine_server.contract.base.quoting import quote
from engine_server.engine.input.admission import check_arrival_time, check_params
from engine_server.engine.input.media_input import MediaInput
from engine_server.engine.input.media_marks import MediaMarks
from engine_server.engine.input.prompt_fields import PromptFields, parse_prompt
from engine_server.engine.input.prompt_times import PromptTimes
from engine_server.engine.input.segment_cache import SegmentCache, Sharers
from engine_server.engine.input.segments import segmented
from engine_server.engine.input.text_length import LONG_TEXT, TokenSpan, least_tokens, token_span
from engine_server.engine.input.tokenizer import Truncation, backend_of, encode_texts
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.messages import AddRequest
from engine_server.requests.pooling_params import PoolingParams, prompt_before
from engine_server.requests.prompts import EncodedText
from engine_server.requests.sampling_params import SamplingParams
from engine_server.requests.token_bytes import all_below, pack

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


# What clients look for in the error of a prompt that is too long.
SHORTER = "Please reduce the length of the prompt"


class Processor:
    """Validation and tokenization of requests. Methods raise InvalidRequestError for requests that can't be served."""

    def __init__(self, config: ModelConfig, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.times = PromptTimes()
        cache = SegmentCache(config.tokenizer_cache_bytes)
        # None: no tokens of texts are kept.
        self._segments = segmented(tokenizer, config.tokenizer, cache) if tokenizer and cache.limit else None
        # None: prompts have no pictures. It is set once the core has started.
        self.media: MediaInput | None = None
        self._seeds = random.Random(config.seed)

    def process(
        self,
        prompt: object,
        params: SamplingParams | PoolingParams,
        arrival_time: float | None = None,
        num_virtual: int = 0,
        scope: str | None = None,
    ) -> tuple[AddRequest, list[int], str | None]:
        """Return the core's message without the ids of its requests, its tokens, and the prompt's text if known.

        prompt: any of the forms of PromptType. arrival_time: seconds of the monotonic clock; None: now.
        num_virtual: number of a prompt adapter's virtual tokens before the prompt. scope: the caller's.
        """
        arrival = check_arrival_time(arrival_time)
        pooling = None
        if self.config.pooling is not None:
            pooling = check_params(params, PoolingParams).resolve(self.config.pooling)
            params = self._shell(pooling)
        params = check_params(params, SamplingParams)
        fields = parse_prompt(prompt, self.config.prompt_embeds_size)
        if fields.embeds is not None and (
            params.truncate_prompt_tokens or params.prompt_logprobs is not None
        ):
            raise InvalidRequestError("prompt_embeds has no tokens to cut off or to report", "prompt_embeds")
        if fields.pictures:
            self._check_pictures(fields, params, num_virtual)
        if pooling is not None:
            self._put_prompt(fields, pooling)
            self._cut(fields, params.truncate_prompt_tokens)
        sharers = Sharers(scope, fields.cache_salt)
        token_ids = self._prompt_token_ids(fields, params.truncate_prompt_tokens, num_virtual, sharers)
        room = self._room(token_ids, num_virtual, num_placeholders(fields))
        all_token_ids = token_ids + fields.resume_token_ids
        self._check_resumed(fields.resume_token_ids, params, room)
        self._check_token_types(fields, len(token_ids))
        if params.stop_strings and self.tokenizer is None:
            raise InvalidRequestError(
                "stop strings need a tokenizer, which the engine was made without", "stop"
            )
        self._check_vocabulary(params)
        if params.structured_outputs is not None:
            params.structured_outputs.check_size()
        params = msgspec.structs.replace(
            params,
            seed=self._seeds.getrandbits(64) if params.seed is None else params.seed,
            bad_words_token_ids=self._bad_words(params),
            logprobs=self._num_logprobs("logprobs", params.logprobs),
            prompt_logprobs=self._num_logprobs("prompt_logprobs", params.prompt_logprobs),
        )
        request = AddRequest(
            request_ids=[],
            packed_token_ids=pack(all_token_ids),
            params=params,
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            arrival=arrival,
            num_resumed=len(fields.resume_token_ids),
            cache_salt=fields.cache_salt,
            cache_scope=scope,
            pooling=pooling,
            token_type_ids=fields.token_type_ids,
            spans=[fields.embeds] if fields.embeds else [],
        )
        return request, all_token_ids, fields.text

    def tokens(
        self, prompt: object, keep: int | None = None, num_virtual: int = 0
    ) -> tuple[str | None, list[int]]:
        """Return the prompt's text if known, and the last `keep` of its tokens (-1: as many as fit)."""
        fields = parse_prompt(prompt, None)
        if fields.pictures:
            raise InvalidRequestError("a beam search takes no pictures", "prompt")
        token_ids = self._prompt_token_ids(fields, keep, num_virtual)
        self._room(token_ids, num_virtual)
        return fields.text, token_ids

    def _shell(self, pooling: PoolingParams) -> SamplingParams:
        """Return the sampling parameters of a pooling request, which samples nothing."""
        keep = pooling.truncate_prompt_tokens
        return SamplingParams(
            max_tokens=None,
            detokenize=False,
            output_kind=pooling.output_kind,
            truncate_prompt_tokens=self.config.max_model_len if keep == -1 else keep,
        )

    def _put_prompt(self, fields: PromptFields, params: PoolingParams) -> None:
        """Put the model's prompt before a text; tokens have theirs already."""
        assert self.config.pooling is not None
        if fields.token_ids is None:
            before = prompt_before(self.config.pooling, params.prompt_name)
            fields.text = self.config.pooling.as_read(before + (fields.text or ""))
        elif params.prompt_name is not None:
            raise InvalidRequestError(
                "prompt_name is put before a text; the prompt is given as tokens", "prompt_name"
            )

    def _cut(self, fields: PromptFields, keep: int | None) -> None:
        """Tokenize a text to at most `keep` tokens, with the special tokens around them."""
        if keep is None or self.tokenizer is None or fields.token_ids is not None:
            return
        (fields.token_ids,) = encode_texts(self.tokenizer, [fields.text or ""], Truncation(keep))

    def _prompt_token_ids(
        self, fields: PromptFields, keep: int | None, num_virtual: int = 0, sharers: Sharers | None = None
    ) -> list[int]:
        """Return the last `keep` token ids of a prompt, inside the vocabulary."""
        token_ids = fields.token_ids
        if token_ids is None:
            limit = self.config.max_model_len if keep is None else None
            token_ids = self.encode_text(fields.text or "", limit, sharers=sharers)
        if keep == -1:
            keep = self.config.max_model_len - num_virtual - 1
        if keep is not None:
            token_ids = token_ids[max(0, len(token_ids) - keep) :]
        if fields.token_ids is not None:
            # Before each token is checked, of which there may be millions.
            self._room(token_ids, num_virtual, num_placeholders(fields))
            self._check_token_ids(token_ids, "prompt")
            self._check_placeholders(token_ids, fields)
        return token_ids

    def _check_pictures(self, fields: PromptFields, params: SamplingParams, num_virtual: int) -> None:
        """Raise InvalidRequestError for pictures in a prompt that can't have any."""
        if self.media is None or self.config.pooling is not None:
            raise InvalidRequestError("the prompt has pictures; the model takes text alone", "prompt")
        if num_virtual:
            raise InvalidRequestError("a prompt adapter takes no pictures", "prompt_adapter_request")
        if params.truncate_prompt_tokens is not None:
            raise InvalidRequestError(
                "truncate_prompt_tokens can't cut a prompt with pictures", "truncate_prompt_tokens"
            )

    def _check_placeholders(self, token_ids: list[int], fields: PromptFields) -> None:
        """Raise InvalidRequestError for tokens that stand for pictures which the prompt doesn't have."""
        if self.media is None or fields.embeds is not None:
            return
        if token_ids.count(self.media.image_token_id) != num_placeholders(fields):
            raise InvalidRequestError(
                f"the prompt has token {self.media.image_token_id}, which stands for a picture; send the picture in "
                "a conversation",
                "prompt",
            )

    def encode_text(
        self, text: str, limit: int | None, add_special_tokens: bool = True, sharers: Sharers | None = None
    ) -> list[int]:
        """Do as `encode` for a text that people wrote, in which no token stands for a picture."""
        if self.media is None:
            return self.encode(text, limit, add_special_tokens, sharers)
        marks = self.media.new_marks()
        return self.encode_marked(marks.text(text), marks, limit, add_special_tokens, sharers)

    def encode_marked(
        self,
        text: str,
        marks: MediaMarks,
        limit: int | None,
        add_special_tokens: bool,
        sharers: Sharers | None = None,
    ) -> list[int]:
        """Do as `encode` for a text with marks, which become plain text."""
        if self.media is None:
            return self.encode(text, limit, add_special_tokens, sharers)
        text = self.media.with_image_tokens(text)
        pieces = marks.pieces(text)
        if len(pieces) == 1:
            return self.encode(text, limit, add_special_tokens, sharers)
        if limit is not None:
            self.check_length("".join(pieces), limit)
        return self.media.encode_pieces(pieces, add_special_tokens)

    def encode(
        self,
        text: str,
        limit: int | None,
        add_special_tokens: bool = True,
        sharers: Sharers | None = None,
    ) -> EncodedText:
        """Return the tokens of a text. Raises InvalidRequestError for a long one with more than `limit` tokens.

        None: any number. Any thread may call this; no list is made at once of tokens that are too many, since others
        wait for it.

        sharers: who may find what is tokenized here; None: nobody, and nothing is found.
        """
        if self.tokenizer is None:
            raise InvalidRequestError("the engine has no tokenizer; give prompt_token_ids", "prompt")
        if limit is not None:
            self.check_length(text, limit)
        begun = perf_counter()
        if (
            self._segments is not None
            and sharers is not None
            and not (add_special_tokens and self._adds_tokens)
        ):
            ids, num_found = self._segments.encode(text, sharers)
            self._check_count(text, len(ids), limit)
            self.times.add_tokenized(perf_counter() - begun, len(text), num_found)
            return ids
        (encoding,) = backend_of(self.tokenizer).encode_batch_fast(
            [text], add_special_tokens=add_special_tokens
        )
        self._check_count(text, len(encoding), limit)
        self.times.add_tokenized(perf_counter() - begun, len(text), 0)
        return EncodedText(encoding.ids)

    @cached_property
    def _adds_tokens(self) -> bool:
        """True if the tokenizer adds special tokens to a text."""
        return self.tokenizer is not None and backend_of(self.tokenizer).num_special_tokens_to_add(False) > 0

    def _check_count(self, text: str, count: int, limit: int | None) -> None:
        if limit is not None and len(text) > LONG_TEXT and count > limit:
            raise InvalidRequestError(
                f"{self._limit(limit)}; the prompt has {count} tokens. {SHORTER}", "prompt"
            )

    def check_length(self, text: str, limit: int) -> None:
        """Raise InvalidRequestError for a long text of which a part decides that it has more than `limit` tokens."""
        if len(text) <= LONG_TEXT or self.tokenizer is None:
            return
        least = self._least_tokens(text, limit)
        if least > limit:
            raise InvalidRequestError(
                f"{self._limit(limit)}; the prompt has {len(text)} characters, at least {least} tokens. {SHORTER}",
                "prompt",
            )

    def _limit(self, limit: int) -> str:
        if limit <= self.config.max_model_len:
            return f"the model's maximum context length is {limit} tokens"
        return f"at most {limit} tokens can be counted"

    def _least_tokens(self, text: str, limit: int) -> int:
        """Return the number of tokens that a text has at least; it need not be exact if it is not above the limit."""
        assert self.tokenizer is not None
        span = self._token_span
        by_length = span.least_tokens(text) if span is not None else 0
        if by_length > limit:
            return by_length
        return least_tokens(backend_of(self.tokenizer), text, limit, span is not None) or 0

    @cached_property
    def _token_span(self) -> TokenSpan | None:
        return token_span(backend_of(self.tokenizer)) if self.tokenizer is not None else None

    def _room(self, token_ids: list[int], num_virtual: int = 0, num_placeholders: int = 0) -> int:
        """Return how many tokens may follow the prompt, at least one; a pooling model needs none."""
        if not token_ids:
            raise InvalidRequestError(
                "the decoder prompt cannot be empty; it takes at least one token. Either prompt or prompt_embeds must "
                "be provided and non-empty.",
                "prompt",
            )
        pools = self.config.pooling is not None
        room = self.config.max_model_len - num_virtual - len(token_ids) + pools
        if room < 1:
            virtual = f", after {num_virtual} virtual tokens of its adapter" if num_virtual else ""
            if num_placeholders:
                virtual += (
                    f", {num_placeholders} of them for pictures, which --mm-processor-kwargs makes smaller"
                )
            raise InvalidRequestError(
                f"the model's maximum context length is {self.config.max_model_len} tokens; the prompt has "
                f"{len(token_ids)} tokens{virtual}{'' if pools else ', and at least one follows'}. {SHORTER}",
                "prompt",
            )
        return room

    def _check_resumed(self, resumed: list[int], params: SamplingParams, room: int) -> None:
        if resumed and params.num_children > 1:
            raise InvalidRequestError("resume_token_ids continues one completion; n must be 1", "n")
        if len(resumed) > room:
            raise InvalidRequestError(
                f"resume_token_ids has {len(resumed)} tokens; {room} fit after the prompt",
                "resume_token_ids",
            )
        self._check_token_ids(resumed, "resume_token_ids")

    def _check_token_types(self, fields: PromptFields, count: int) -> None:
        """Check token_type_ids of a model that has them; other models ignore them."""
        kinds = self.config.pooling.num_token_types if self.config.pooling else 0
        if not kinds:
            fields.token_type_ids = None
        types = fields.token_type_ids
        if types is not None and not (len(types) == count and min(types) >= 0 and max(types) < kinds):
            raise InvalidRequestError(
                f"token_type_ids takes an integer from 0 to {kinds - 1} for each token", "token_type_ids"
            )

    def _check_vocabulary(self, params: SamplingParams) -> None:
        self._check_token_ids(params.stop_token_ids or (), "stop_token_ids")
        self._check_token_ids(params.mark_token_ids or (), "mark_token_ids")
        self._check_token_ids(params.allowed_token_ids or (), "allowed_token_ids")
        self._check_token_ids(params.logit_bias or (), "logit_bias")
        if params.structured_outputs is not None:
            self._check_token_ids(params.structured_outputs.starts_after or (), "starts_after")
        if params.reasoning is not None:
            self._check_token_ids(params.reasoning.token_ids, "reasoning")
        for token_ids in params.bad_words_token_ids or ():
            self._check_token_ids(token_ids, "bad_words_token_ids")
        for path in params.logits_processors or ():
            if path not in self.config.logits_processors:
                raise InvalidRequestError(
                    f"logits_processors has {quote(path)}; the engine was started with "
                    f"{', '.join(self.config.logits_processors) or 'none'}",
                    "logits_processors",
                )

    def _check_token_ids(self, token_ids: Collection[int], name: str) -> None:
        size = self.config.vocab_size
        if all_below(size, token_ids):
            return
        wrong = next(token for token in token_ids if not 0 <= token < size)
        raise InvalidRequestError(
            f"{name} has token {wrong}; tokens are integers from 0 to {size - 1}, others are out of vocabulary, whose "
            f"size is {size}",
            name,
        )

    def _num_logprobs(self, name: str, count: int | None) -> int | None:
        """Return how many log-probabilities to report; -1 is the whole vocabulary."""
        if count is None:
            return None
        size, limit = self.config.vocab_size, self.config.max_logprobs
        wanted = size if count == -1 else min(count, size)
        if limit != -1 and wanted > limit:
            raise InvalidRequestError(
                f"{name} is {count}, {wanted} tokens; the engine was started with max_logprobs {limit}", name
            )
        return wanted

    def _bad_words(self, params: SamplingParams) -> list[list[int]] | None:
        """Return the tokens of each bad word, at the start of a word and inside one, and those that are given."""
        given = params.bad_words_token_ids
        if not params.bad_words:
            return given
        if self.tokenizer is None:
            raise InvalidRequestError("the engine has no tokenizer; give bad_words_token_ids", "bad_words")
        texts = [prefix + word.lstrip() for word in params.bad_words for prefix in ("", " ")]
        encoded = (self.tokenizer.encode(text, add_special_tokens=False) for text in texts)
        return [*(given or ()), *(token_ids for token_ids in encoded if token_ids)]


def num_placeholders(fields: PromptFields) -> int:
    """Return the number of tokens that stand for rows of pictures."""
    return sum(run.length for picture in fields.pictures for run in picture.runs)
