"""The account of one key: what the key allows, and what requests with it have used at all routers."""

from collections.abc import Iterator
from itertools import chain, islice
from typing import Protocol

import msgspec

from engine_server.contract.base.ranges import Amount, Count, Total
from engine_server.contract.wire.engine_report import ReportedUsage
from engine_server.router import errors
from engine_server.router.callers.keys import ALL_OF_NAMESPACE, KeyEntry
from engine_server.router.callers.limits import Debt, Window
from engine_server.router.routing.directory import Directory, Route

# Any request may end, which makes a place free and replaces its estimate.
REQUEST_END_SECONDS = 1.0


class Caller(Protocol):
    """The sender of a request."""

    @property
    def name(self) -> str:
        """The name of its key; empty where none is asked for."""
        ...

    @property
    def priority(self) -> int:
        """Held requests of a higher priority are sent first."""
        ...

    @property
    def cache_scope(self) -> str:
        """The name of the scope in which its prompts are cached; empty where no key is asked for."""
        ...

    def may_use(self, route: Route, directory: Directory) -> bool:
        """Return True if it may send requests to this deployment."""
        ...

    def models(self, directory: Directory) -> Iterator[str]:
        """Yield the names to list of the models that it may use, in order."""
        ...

    def admit(self, now: float, estimated_tokens: int) -> None:
        """Count a request that begins at the time `now` (perf_counter). Raises RequestError (429) beyond a limit."""
        ...

    def settle(self, now: float, usage: ReportedUsage, estimated_tokens: int) -> None:
        """Count the end of a request that was admitted, and its tokens in place of those that were estimated."""
        ...


class Anyone:
    """The sender of a request to a router that asks for no keys."""

    name = ""
    priority = 0
    cache_scope = ""

    def may_use(self, route: Route, directory: Directory) -> bool:
        return True

    def models(self, directory: Directory) -> Iterator[str]:
        return directory.listed()

    def admit(self, now: float, estimated_tokens: int) -> None:
        pass

    def settle(self, now: float, usage: ReportedUsage, estimated_tokens: int) -> None:
        pass


ANYONE = Anyone()


def usable_route(model: str, caller: Caller, directory: Directory) -> Route:
    """Return the route that a model name means. Raises RequestError if there is none that the caller may use."""
    route = directory.resolve(model)
    if route is None:
        raise errors.unknown_model(model, listed_models(caller, directory))
    if not caller.may_use(route, directory):
        raise errors.model_not_allowed(model, listed_models(caller, directory))
    return route


def listed_models(caller: Caller, directory: Directory) -> list[str]:
    """Return the names of the models that the caller may use, and one of those that are too many for an error."""
    return list(islice(caller.models(directory), errors.MAX_LISTED_MODELS + 1))


class Counts(msgspec.Struct, frozen=True):
    """The use of one key, as one router tells the others."""

    # Counted by this router alone, since its start.
    requests: Total
    tokens: Total
    # In flight at this router.
    in_flight: Count
    # All that this router knows of, from all routers.
    requests_last_minute: Total
    tokens_owed: Amount
    # Estimated for the requests in flight at this router.
    tokens_estimated: Total

    @property
    def tokens_counted(self) -> int:
        """All that this router has added to what is owed since its start."""
        return self.tokens + self.tokens_estimated


class Account:
    """One key with its limits and its use."""

    def __init__(self, entry: KeyEntry) -> None:
        # Of all routers.
        self._window = Window()
        self._debt = Debt(entry.tokens_per_minute)
        # Counted by this router alone, since its start.
        self.requests = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.in_flight = 0
        # Estimated for those in flight, and owed.
        self.tokens_estimated = 0
        # In flight at other routers, when they were last asked.
        self.in_flight_elsewhere = 0
        self.change(entry)

    def change(self, entry: KeyEntry) -> None:
        """Apply a changed entry; what was used stays counted."""
        self.entry = entry
        self.name = entry.name
        self.priority = entry.priority
        self.cache_scope = entry.cache_scope or entry.name
        self._debt.per_minute = entry.tokens_per_minute
        self._all_models = entry.models is None
        models = entry.models or ()
        self._namespaces = frozenset(
            model.removesuffix(ALL_OF_NAMESPACE) for model in models if model.endswith(ALL_OF_NAMESPACE)
        )
        self._names = tuple(model for model in models if not model.endswith(ALL_OF_NAMESPACE))

    def may_use(self, route: Route, directory: Directory) -> bool:
        """Return True if one of the key's models means this deployment, under whatever name it is asked for."""
        if self._all_models:
            return True
        for name in self._names:
            if directory.resolve(name) is route:
                return True
        return route.deployment.key.namespace in self._namespaces

    def models(self, directory: Directory) -> Iterator[str]:
        """Yield the names of its own models alone: those of others may be many."""
        if self._all_models:
            return directory.listed()
        routes = [route for name in self._names if (route := directory.resolve(name)) is not None]
        routes += chain.from_iterable(map(directory.of_namespace, self._namespaces))
        return iter(sorted({name for route in routes for name in directory.names(route)}))

    def admit(self, now: float, estimated_tokens: int = 0) -> None:
        limits = self.entry
        per_minute = limits.requests_per_minute
        if per_minute is not None and self._window.total(now) >= per_minute:
            wait = self._window.seconds_until_below(per_minute, now)
            raise errors.rate_limited(f"{self.name!r} may send {per_minute} requests per minute", wait)
        if limits.tokens_per_minute is not None and (wait := self._debt.seconds_until_repaid(now)):
            if self._debt.owed(now) - self.tokens_estimated < limits.tokens_per_minute:
                wait = min(wait, REQUEST_END_SECONDS)  # a request in flight may have used fewer
            raise errors.rate_limited(
                f"{self.name!r} may use {limits.tokens_per_minute} tokens per minute", wait
            )
        concurrency = limits.concurrency
        if concurrency is not None and self.in_flight + self.in_flight_elsewhere >= concurrency:
            message = f"{self.name!r} may have {concurrency} requests in flight"
            raise errors.rate_limited(message, REQUEST_END_SECONDS)
        self.requests += 1
        self.in_flight += 1
        self.tokens_estimated += estimated_tokens
        self._debt.add(now, estimated_tokens)
        self._window.add(now, 1)

    def settle(self, now: float, usage: ReportedUsage, estimated_tokens: int = 0) -> None:
        self.in_flight -= 1
        self.tokens_estimated -= estimated_tokens
        self.prompt_tokens += usage.prompt_tokens
        self.completion_tokens += usage.completion_tokens
        self._debt.add(now, usage.prompt_tokens + usage.completion_tokens - estimated_tokens)

    # Between routers

    def counts(self, now: float) -> Counts:
        """Return the use of the key, for the other routers."""
        return Counts(
            self.requests,
            self.prompt_tokens + self.completion_tokens,
            self.in_flight,
            self._window.total(now),
            self._debt.owed(now),
            self.tokens_estimated,
        )

    def add_elsewhere(self, now: float, requests: int, tokens: float) -> None:
        """Count requests and tokens of another router."""
        self._window.add(now, requests)
        self._debt.add(now, tokens)
