"""The number of drafts for each request that makes a step yield the most tokens per second."""

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from engine_server.core.draft_state.acceptance import Acceptance

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# The largest share of the time that drafts may take which are expected to yield less than they cost.
TRIAL_SHARE = 0.01
# Seconds of debts that may be paid before any drafts have saved time, and the most that are saved for later ones.
ADVANCE, MOST_SAVED = 1.0, 10.0
# Number of steps whose median is the host's time for a step.
HOST_STEPS = 15


def seconds_by_rows(measured: Mapping[int, float], most_rows: int) -> Floats:
    """Return the seconds of 0 to `most_rows` rows from those measured for some numbers of rows, 1 among them.

    Between and after those the seconds are linear; more rows never take less time.
    """
    points = sorted({0: 0.0, **measured}.items())
    rows = np.array([number for number, _ in points])
    seconds = np.maximum.accumulate([duration for _, duration in points])
    slope = (seconds[-1] - seconds[-2]) / (rows[-1] - rows[-2])
    every = np.arange(most_rows + 1)
    result: Floats = np.interp(every, rows, seconds) + slope * np.maximum(every - rows[-1], 0)
    return result


def best_lengths(
    probability: Floats,
    limits: Integers,
    rows: int,
    step_seconds: Floats,
    draft_seconds: Floats,
    host_seconds: float = 0.0,
) -> Integers:
    """Return how many drafts each of n requests should have [n] for the most expected tokens per second.

    The i-th draft of a request with acceptance probability p yields a token with probability p^i, adds a row to the
    step, and is made in one batch with the i-th drafts of the other requests. The likeliest drafts are taken, as many
    as pay: optimal where all drafts cost the same, as without a draft model. The host works before a step with drafts,
    whose requests' latest tokens must be known, and during any other.

    probability [n]; limits [n]: the most drafts of each request; rows: of the step without drafts; step_seconds
    [most rows + 1]; draft_seconds [at least n + 1]: of a batch of a draft for each of some requests; host_seconds: of
    the host's work on a step, 0 if steps don't overlap at all.
    """
    lengths = np.zeros_like(limits)
    room = len(step_seconds) - 1 - rows
    deepest = limits.max(initial=0)
    if room <= 0 or deepest <= 0:
        return lengths
    order = np.argsort(-probability, kind="stable")
    allowed = limits[order] >= np.arange(1, deepest + 1)[:, None]  # [i, request]
    values = np.broadcast_to(probability[order], allowed.shape).cumprod(axis=0)
    count = min(int(allowed.sum()), room)
    ranked = np.where(allowed, -values, 1.0).argsort(axis=None, kind="stable")[:count]

    # Within a batch of i-th drafts too, likelier ones come first.
    batch_sizes = allowed.cumsum(axis=1).ravel()[ranked]
    drafting = np.diff(draft_seconds)[batch_sizes - 1].cumsum()
    tokens = len(limits) + values.ravel()[ranked].cumsum()
    rates = tokens / (host_seconds + step_seconds[rows + 1 : rows + 1 + count] + drafting)
    best = int(rates.argmax())
    if rates[best] > len(limits) / max(host_seconds, step_seconds[rows]):
        lengths[order] = np.bincount(ranked[: best + 1] % len(limits), minlength=len(limits))
    return lengths


def saved_seconds(
    probability: Floats,
    lengths: Integers,
    rows: int,
    step_seconds: Floats,
    draft_seconds: Floats,
    host_seconds: float = 0.0,
) -> float:
    """Return the time that a step's drafts save: that of its expected tokens without drafts, less its own.

    lengths [n]: the drafts of each request; the others: as in `best_lengths`.
    """
    deepest = lengths.max(initial=0)
    if not deepest:
        return 0.0
    depths = np.arange(1, deepest + 1)[:, None]
    made = lengths >= depths  # [i, request]
    tokens = len(lengths) + float((made * probability**depths).sum())
    seconds = host_seconds + step_seconds[rows + lengths.sum()] + draft_seconds[made.sum(axis=1)].sum()
    usual = max(host_seconds, step_seconds[rows])
    return float(tokens / len(lengths) * usual - seconds)


class DraftAllocation:
    """The numbers of drafts of a step's requests.

    A request whose drafts don't pay gets one now and then, so that its estimate can rise again: the one that has had
    none for longest, once the trials' share of the time pays for it.

    A drafter may first have to compute a request's other tokens: its debt. Since nothing tells how many tokens the
    request will yet get, debts are paid from the time that drafts have saved before, of whichever requests.

    Where steps overlap, one with drafts also takes the time of the host, which is the median of the latest steps.
    """

    def __init__(self, step_seconds: Floats, draft_seconds: Floats) -> None:
        """step_seconds, draft_seconds: as in `best_lengths`; the latter zeros if drafts cost nothing."""
        self._step_seconds = step_seconds
        self._draft_seconds = draft_seconds
        self._step = 0
        # Seconds that drafts have saved, less the debts that were paid.
        self._saved = ADVANCE
        # Seconds that trials may take, of at most one.
        self._credit = 0.0
        # True if a trial has been paid for that the next call of `allot` makes.
        self._trial_is_due = False
        # The host's seconds of the latest steps, if steps overlap.
        self._host_seconds: deque[float] = deque([0.0], maxlen=HOST_STEPS)

    def observe_host(self, seconds: float) -> None:
        """Take in the time that the host has worked on a step of an engine whose steps overlap."""
        self._host_seconds.append(seconds)

    def may_pay(
        self, acceptances: Sequence[Acceptance], limits: Sequence[int], rows: int, debts: Sequence[float]
    ) -> bool:
        """Return True if any draft pays or a trial is due, for arguments of `allot` from before the latest tokens."""
        probability = np.array([acceptance.probability for acceptance in acceptances])
        chosen = self._best_lengths(probability, self._affordable(limits, debts), rows)
        if chosen.any():
            return True
        idle = [debt for debt, limit in zip(debts, limits, strict=True) if limit > 0]
        self._trial_is_due = bool(idle) and self._can_try(chosen, rows, min(idle))
        return self._trial_is_due

    def allot(
        self, acceptances: Sequence[Acceptance], limits: Sequence[int], rows: int, debts: Sequence[float]
    ) -> list[int]:
        """Return how many drafts each request gets, at most its limit.

        acceptances: of the requests that decode; rows: of the step without drafts, those of prefills included; debts:
        the seconds that each request's drafts take before the first of them.
        """
        self._step += 1
        probability = np.array([acceptance.probability for acceptance in acceptances])
        chosen = self._best_lengths(probability, self._affordable(limits, debts), rows)
        self._settle(probability, chosen, rows, debts)
        lengths: list[int] = chosen.tolist()
        idle = [i for i, length in enumerate(lengths) if not length and limits[i] > 0]
        if idle:
            tried = min(idle, key=lambda i: (debts[i], acceptances[i].last_step))
            if self._trial_is_due or self._can_try(chosen, rows, debts[tried]):
                lengths[tried] = 1
        self._trial_is_due = False
        for acceptance, length in zip(acceptances, lengths, strict=True):
            if length:
                acceptance.last_step = self._step
        return lengths

    def pays(self, num_requests: int, probability: float) -> bool:
        """Return True if any draft pays in a step of that many decodes, which all accept with this probability."""
        limits = np.ones(num_requests, int)
        return bool(self._best_lengths(limits * probability, limits, num_requests).any())

    def _best_lengths(self, probability: Floats, limits: Integers, rows: int) -> Integers:
        return best_lengths(
            probability, limits, rows, self._step_seconds, self._draft_seconds, median(self._host_seconds)
        )

    def _affordable(self, limits: Sequence[int], debts: Sequence[float]) -> Integers:
        """Return the limits [n] of the requests whose debts can be paid, the smallest first; 0 for the others."""
        order = np.argsort(debts, kind="stable")
        affordable = np.zeros(len(limits), int)
        paid = order[np.cumsum(np.array(debts)[order]) <= max(self._saved, 0.0)]
        affordable[paid] = np.array(limits, int)[paid]
        return affordable

    def _settle(self, probability: Floats, lengths: Integers, rows: int, debts: Sequence[float]) -> None:
        """Pay the debts of the requests that get drafts, and count the time that the drafts save."""
        saved = saved_seconds(
            probability, lengths, rows, self._step_seconds, self._draft_seconds, median(self._host_seconds)
        )
        paid = float(np.array(debts)[lengths > 0].sum())
        self._saved = min(self._saved + saved - paid, MOST_SAVED)

    def _can_try(self, lengths: Integers, rows: int, debt: float) -> bool:
        """Return True, and pay for it, if one more draft is within the trials' share of the time.

        debt: of the request that would get it.
        """
        total = rows + int(lengths.sum())
        if total + 1 >= len(self._step_seconds):
            return False
        drafting = np.count_nonzero(lengths)
        # Without other drafts the step would overlap, and take as long as the longer of host and device.
        hidden = 0.0 if drafting else min(median(self._host_seconds), self._step_seconds[total])
        price = (
            debt
            + hidden
            + self._step_seconds[total + 1]
            - self._step_seconds[total]
            + self._draft_seconds[drafting + 1]
            - self._draft_seconds[drafting]
        )
        self._credit = min(self._credit + TRIAL_SHARE * self._step_seconds[total], price)
        if self._credit < price:
            return False
        self._credit = 0.0
        return True
