"""The accounts of all keys, balanced with those of the other routers.

Each router counts what it admitted since its start, and adds what the others counted since it last asked them. A limit
is therefore exceeded by no more than what the others admitted since then.
"""

from collections.abc import Iterable
from secrets import token_hex

import msgspec

from engine_server.contract.base.ranges import Seconds, Word
from engine_server.router.callers.account import Account, Counts
from engine_server.router.callers.keys import KeyEntry

# Requests in flight at a router that does not answer are no longer counted after this time.
SILENT_SECONDS = 5.0
# A router that comes back within this time goes on where it was.
FORGOTTEN_SECONDS = 600.0


class UsageReport(msgspec.Struct, frozen=True):
    """The use of all keys, as one router tells the others; the names of keys are no secrets."""

    # Drawn at the start of the process.
    router: Word
    # Seconds since the start.
    age: Seconds
    # By name. Keys without any use are left out.
    keys: dict[str, Counts]


class Peer(msgspec.Struct):
    """Another router, as it answered last."""

    answered: float
    keys: dict[str, Counts]


class Ledger:
    """The accounts by the names of their keys."""

    def __init__(self, now: float) -> None:
        """Begin at the time `now`; all times are in seconds on the clock of the caller (perf_counter)."""
        self._router = token_hex(8)
        self._started = now
        self._peers: dict[str, Peer] = {}
        self.accounts: dict[str, Account] = {}

    def put(self, entries: Iterable[KeyEntry]) -> None:
        """Have an account for each of these keys. Those that exist keep what is counted; others are removed."""
        known, self.accounts = self.accounts, {}
        for entry in entries:
            account = known.get(entry.name)
            if account is None:
                account = Account(entry)
            else:
                account.change(entry)
            self.accounts[entry.name] = account

    def report(self, now: float) -> UsageReport:
        """Return what the other routers need to know."""
        all_counts = {name: account.counts(now) for name, account in self.accounts.items()}
        used = {name: counts for name, counts in all_counts.items() if counts != NOTHING}
        return UsageReport(self._router, now - self._started, used)

    def balance(self, reports: Iterable[UsageReport], now: float) -> None:
        """Add what other routers counted since they last reported. A report of this router itself is ignored."""
        for report in reports:
            if report.router == self._router:
                continue
            before = self._peers.get(report.router)
            for name, counts in report.keys.items():
                if account := self.accounts.get(name):
                    if before is None:
                        self._take_over(account, counts, now, younger=report.age <= now - self._started)
                    else:
                        earlier = before.keys.get(name, NOTHING)
                        requests = counts.requests - earlier.requests
                        tokens = counts.tokens_counted - earlier.tokens_counted
                        account.add_elsewhere(now, requests, tokens)
            self._peers[report.router] = Peer(now, report.keys)
        self._count_in_flight(now)

    def _take_over(self, account: Account, counts: Counts, now: float, *, younger: bool) -> None:
        """Add what a router that was not known before counted in the last minute."""
        if younger:  # all that it counted since its start is new here
            requests = min(counts.requests, counts.requests_last_minute)
            tokens = min(counts.tokens_counted, counts.tokens_owed)
        else:  # this router has just started: the other one knows the sum of all others
            here = account.counts(now)
            elsewhere = max(0, here.requests_last_minute - here.requests)
            requests = max(0, counts.requests_last_minute - elsewhere)
            tokens = max(0.0, counts.tokens_owed - max(0.0, here.tokens_owed - here.tokens_counted))
        account.add_elsewhere(now, requests, tokens)

    def _count_in_flight(self, now: float) -> None:
        self._peers = {
            name: peer for name, peer in self._peers.items() if now - peer.answered < FORGOTTEN_SECONDS
        }
        answering = [peer for peer in self._peers.values() if now - peer.answered < SILENT_SECONDS]
        for name, account in self.accounts.items():
            account.in_flight_elsewhere = sum(peer.keys.get(name, NOTHING).in_flight for peer in answering)


NOTHING = Counts(
    requests=0, tokens=0, in_flight=0, requests_last_minute=0, tokens_owed=0.0, tokens_estimated=0
)
