"""The router of this checkout and that of another one in alternating pairs, beside pairs of equal builds.

    python -m benchmarks.router.pairs CHECKOUT [--pairs 7] [--seconds 2]

The loads are those of `python -m benchmarks.router`. Each pair has processes of its own, which get the same load one
after the other; the first of one pair is the second of the next. The pairs of equal builds run between the others: what
they differ by is the machine's doing, and no smaller difference of the builds can be seen. Both routers run in this
interpreter. Needs nginx and wrk; takes 3 minutes for each second of `--seconds`.
"""

import argparse
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate, combinations_with_replacement
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from benchmarks.checkout import checkout
from benchmarks.record import save
from benchmarks.router.engines import immediate_engines, streaming_engines
from benchmarks.router.load import CHUNKS, STREAM_CONNECTIONS, WHOLE_CONNECTIONS, Measure, measure, script
from benchmarks.router.running import running
from benchmarks.router.sides import fairlead

# Of an interval's ends together.
ERROR = 0.05
# Fewer differences have no interval with this error.
LEAST_PAIRS = 6
# The interval of equal builds, for a result that counts.
LARGEST_EQUAL = 0.03


class Pair(NamedTuple):
    """One load on two routers, one after the other."""

    before: Measure
    after: Measure

    @property
    def difference(self) -> float:
        """The change of the rate, as a share."""
        return self.after.rate / self.before.rate - 1

    @property
    def cpu_difference(self) -> float:
        """The change of the CPU time of a request, as a share."""
        return self.after.cpu_us / self.before.cpu_us - 1


# By load: the pairs of both builds, and those of equal builds.
Results = dict[str, tuple[list[Pair], list[Pair]]]


def compare(flags: argparse.Namespace, folder: Path) -> Results:
    """Measure all pairs at all loads."""
    results: Results = defaultdict(lambda: ([], []))
    names = ("this", "equal 1", "equal 2")
    begin = [fairlead("other", checkout=flags.checkout), *(fairlead(name) for name in names)]
    kinds = (
        ("requests", immediate_engines, WHOLE_CONNECTIONS),
        ("streams", partial(streaming_engines, CHUNKS), STREAM_CONNECTIONS),
    )
    for number in range(flags.pairs):
        print(f"pair {number + 1} of {flags.pairs}", file=sys.stderr)
        order = (0, 1, 2, 3) if number % 2 == 0 else (1, 0, 3, 2)
        for kind, engines, all_connections in kinds:
            with running(engines, begin, folder) as sides:
                scripts = [script(side, folder, streamed=kind == "streams") for side in sides]
                for connections in all_connections:
                    taken = {
                        place: measure(sides[place], scripts[place], connections, flags.seconds)
                        for place in order
                    }
                    builds, equal = results[f"{kind}, {connections}"]
                    builds.append(Pair(taken[0], taken[1]))
                    equal.append(Pair(taken[2], taken[3]))
    return dict(results)


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the 95 % confidence interval of the median, by Wilcoxon's signed ranks.

    They are the k-th from either end among the means of all two differences, and of each with itself, where k is the
    number of the smallest sums of ranks that are too unlikely together: three for seven differences.
    """
    means = sorted(mean(two) for two in combinations_with_replacement(differences, 2))
    # The number of sets of the ranks 1 to n by their sum.
    sets = [1] + [0] * len(means)
    for rank in range(1, len(differences) + 1):
        for total in range(len(means), rank - 1, -1):
            sets[total] += sets[total - rank]
    likely = [total / 2 ** len(differences) for total in accumulate(sets)]
    unlikely = sum(likelihood <= ERROR / 2 for likelihood in likely)
    return means[unlikely - 1], means[-unlikely]


def table(results: Results) -> str:
    """Return the figures as a Markdown table."""
    rows = [
        "| load | other /s | this /s | difference | from | to | of CPU time | equal builds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for load, (pairs, equal) in results.items():
        rates = (median(one.before.rate for one in pairs), median(one.after.rate for one in pairs))
        changes = [one.difference for one in pairs]
        low, high = interval([one.difference for one in equal])
        doubt = "" if max(-low, high) <= LARGEST_EQUAL else ", too far apart"
        cells = [
            load,
            *(f"{rate:,.0f}" for rate in rates),
            *(f"{share:+.1%}" for share in (median(changes), *interval(changes))),
            f"{median(one.cpu_difference for one in pairs):+.1%}",
            f"{low:+.1%} to {high:+.1%}{doubt}",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the router with that of another checkout.")
    parser.add_argument("checkout", type=checkout, help="the folder of the other checkout")
    parser.add_argument("--pairs", type=int, default=7, help="of each load (%(default)s)")
    parser.add_argument("--seconds", type=int, default=2, help="of each run (%(default)s)")
    flags = parser.parse_args()
    if shutil.which("wrk") is None:
        parser.error("wrk is not installed (apt-get install wrk nginx)")
    if flags.pairs < LEAST_PAIRS:
        parser.error(f"an interval needs {LEAST_PAIRS} pairs")
    with tempfile.TemporaryDirectory() as name:
        results = compare(flags, Path(name))
    failed = sum(one.failed for both in results.values() for pairs in both for pair in pairs for one in pair)
    print(table(results), f"{failed} requests failed", sep="\n\n")
    print(f"saved {save('router.pairs', {'settings': settings(flags), 'loads': as_json(results)})}")
    return 0


def settings(flags: argparse.Namespace) -> Mapping[str, object]:
    return {"pairs": flags.pairs, "seconds": flags.seconds, "chunks": CHUNKS, "checkout": str(flags.checkout)}


def as_json(results: Results) -> dict[str, dict[str, list[dict[str, dict[str, float]]]]]:
    return {
        load: {
            name: [{side: m._asdict() for side, m in pair._asdict().items()} for pair in pairs]
            for name, pairs in zip(("builds", "equal"), both, strict=True)
        }
        for load, both in results.items()
    }


if __name__ == "__main__":
    sys.exit(main())
