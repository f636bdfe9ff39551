"""The numbers of pooling outputs as JSON."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine_server.config.pooling import DenseModule
from engine_server.contract.base.bounds import ANSWER_BYTES
from engine_server.contract.wire.errors import ErrorCode
from engine_server.requests.outputs import (
    ClassificationOutput,
    EmbeddingOutput,
    PoolingOutput,
    ScoringOutput,
)
from engine_server.server.generation.threads import run_by_size
from engine_server.server.http.built_answer import reserve
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.requests.outputs import PoolingRequestOutput
    from engine_server.requests.pooling_params import PoolingParams
    from engine_server.server.api.pooling.encode import Batch
    from engine_server.server.api.pooling.request import EncodingFormat
    from engine_server.server.loaded_model import LoadedModel

Numbers = NDArray[np.float32]
# Of a number in an answer, at most, with what separates it from the next.
LIST_BYTES, BASE64_BYTES = 24, 6


async def encode_numbers(
    outputs: Sequence[PoolingRequestOutput[Any]], encoding_format: EncodingFormat
) -> list[msgspec.Raw]:
    """Return each output's numbers as JSON; many of them are encoded in a thread, so that other requests go on."""
    arrays = [to_array(output.outputs) for output in outputs]
    size = sum(array.size for array in arrays)
    encode = to_base64 if encoding_format == "base64" else to_list
    return await run_by_size(size, lambda: [msgspec.Raw(encode(array)) for array in arrays])


def reserve_answer(
    model: LoadedModel, params: PoolingParams, batch: Batch, encoding_format: EncodingFormat | None
) -> None:
    """Take memory for the numbers of an answer, before they are computed.

    Raises ApiError 400 for too many in one answer, 503 where there is no room for them now.
    """
    sizes = [one.out_features for one in model.pooling.modules if isinstance(one, DenseModule)]
    size = params.dimensions or max([model.engine.model_config.hidden_size, *sizes[-1:]])
    rows = batch.num_tokens if params.task == "encode" else len(batch.prompts)
    num_bytes = rows * size * (BASE64_BYTES if encoding_format == "base64" else LIST_BYTES)
    if error := ANSWER_BYTES.exceeded(num_bytes):
        message = f"{error}; the answer has {rows:,} rows of {size:,} numbers"
        raise ApiError(ErrorCode.INVALID_VALUE, message, param="input")
    reserve(num_bytes)


def to_array(outputs: object) -> Numbers:
    match outputs:
        case PoolingOutput():
            states: Numbers = outputs.data.numpy()
            return states
        case EmbeddingOutput():
            return np.array(outputs.embedding, np.float32)
        case ClassificationOutput():
            return np.array(outputs.probs, np.float32)
        case ScoringOutput():
            return np.array([outputs.score], np.float32)
    raise TypeError(f"{type(outputs).__name__} is no pooling output")


def to_base64(array: Numbers) -> bytes:
    """Return a JSON string: float32, little endian, row by row."""
    return b'"' + base64.b64encode(array.astype("<f4").tobytes()) + b'"'


def to_list(array: Numbers) -> bytes:
    """Return a JSON list, of lists for two dimensions. Rows are encoded one by one, since an encoding holds the GIL."""
    if array.ndim == 1:
        return msgspec.json.encode(array.tolist())
    return b"[" + b",".join(map(to_list, array)) + b"]"
