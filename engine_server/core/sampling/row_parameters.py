"""The sampling parameters of running requests, by their row of the block table."""

import numpy as np
import numpy.typing as npt

from engine_server.core.scheduling.batch import Batch, output_indexes
from engine_server.modeling.kernels.sampling_parameters import PARAMETERS
from engine_server.requests.sampling_params import SamplingParams

Records = npt.NDArray[np.void]


class RowParameters:
    """Parameters that are written when a request gets its row, and cleared when it leaves it."""

    def __init__(self, num_rows: int) -> None:
        self._records: Records = np.zeros(num_rows, PARAMETERS)
        # The numbers of log-probabilities that requests asked for, by row.
        self._logprobs: dict[int, int] = {}

    def open(self, row: int, params: SamplingParams, choice_index: int) -> None:
        """Write a request's parameters."""
        filters = (params.temperature, params.min_p, params.top_p, max(params.top_k, 0))
        seed = (params.seed or 0) % (1 << 64)
        self._records[row] = (*((0, 1, 1, 0) if params.greedy else filters), seed, choice_index, 0)
        if params.logprobs is not None:
            self._logprobs[row] = params.logprobs

    def close(self, row: int) -> None:
        """Clear a row. A step that was launched before may still sample from it, greedily."""
        self._records[row] = 0
        self._logprobs.pop(row, None)

    def records(self, parts: Batch) -> Records:
        """Return the PARAMETERS of each part, [n], with the index of the token that it samples."""
        records = self._records.take([part.row for part in parts])  # faster than an index by a list
        records["index"] = output_indexes(parts)
        return records

    def drawn(self, parts: Batch) -> list[int]:
        """Return the indexes of the parts that draw at random."""
        temperatures = self._records["temperature"]
        return [index for index, part in enumerate(parts) if temperatures[part.row]]

    def logprobs(self, parts: Batch) -> dict[int, int]:
        """Return the numbers of log-probabilities that requests asked for, by the index of the part."""
        if not self._logprobs:
            return {}
        counts = self._logprobs
        return {index: counts[part.row] for index, part in enumerate(parts) if part.row in counts}
