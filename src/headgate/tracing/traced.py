"""The agent's parts with a span around their methods.   caller ──► `Traced` ──► the part itself

Used only if traces are wanted: without them nothing is in between, and nothing is evaluated. No
check passes through here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar, cast

from headgate.base.ports import (
    AuditEntry,
    Clock,
    Fact,
    PeerLink,
    PolicySink,
    Probe,
    SharedLog,
    Span,
    Store,
    Tracer,
)
from headgate.changes.exchanged import Offer
from headgate.check.board import Board
from headgate.check.demand import Demands
from headgate.check.sampler import Sampler
from headgate.metrics.model import MetricSpec
from headgate.shard.model import Pull

T = TypeVar("T")
Facts = dict[str, Fact]
Opens = Callable[[Tracer, str, Facts], AbstractContextManager[Span]]


def step(tracer: Tracer, name: str, facts: Facts) -> AbstractContextManager[Span]:
    return tracer.step(name, facts)


def turn(tracer: Tracer, name: str, facts: Facts) -> AbstractContextManager[Span]:
    return tracer.turn(name, facts)


class TracedMethod(NamedTuple):
    """One method: the name of its span, and the facts of a call."""

    name: str
    facts: Callable[..., Facts] = lambda *args, **kwargs: {}
    opens: Opens = step


class Traced:
    """The part `inner`, with spans around some of its methods; all else is the part's own."""

    def __init__(
        self,
        inner: object,
        tracer: Tracer,
        watched: Mapping[str, TracedMethod],
        **parts: object,
    ) -> None:
        """`parts`: attributes that are traced themselves."""
        self._inner = inner
        vars(self).update(parts)
        for method, how in watched.items():
            setattr(self, method, _around(getattr(inner, method), tracer, how))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _around(
    method: Callable[..., Awaitable[T]], tracer: Tracer, how: TracedMethod
) -> Callable[..., Awaitable[T]]:
    async def called(*args: Any, **kwargs: Any) -> T:
        with how.opens(tracer, how.name, how.facts(*args, **kwargs)):
            return await method(*args, **kwargs)

    return called


# --- the facts of a call ---------------------------------------------------------------------


def _commit(
    compares: Any, puts: Any, *, audit: Sequence[AuditEntry] = (), must_fit: bool = False
) -> Facts:
    """Who changed what: not to what, which may be long, or a statement's text."""
    facts: Facts = {"headgate.puts": len(puts)}
    for first in audit[:1]:
        facts["headgate.change.who"] = first.who
        facts["headgate.change.action"] = first.action
        facts["headgate.change.target"] = first.target
    return facts


def _rows(rows: Any) -> Facts:
    return {"headgate.rows": len(rows)}


STORE: Mapping[str, TracedMethod] = {
    "commit": TracedMethod("store commit", _commit),
    "put_report": TracedMethod("store put_report"),
}
HISTORY: Mapping[str, TracedMethod] = {
    "add_tallies": TracedMethod("store add_tallies", _rows),
    "add_metric_minutes": TracedMethod("store add_metric_minutes", _rows),
    "add_budget_minutes": TracedMethod("store add_budget_minutes", _rows),
    "forget_before": TracedMethod("store forget_before"),
}
"""Together: every method that writes."""


def traced_store(store: Store, tracer: Tracer) -> Store:
    history = Traced(store.history, tracer, HISTORY)
    return cast(Store, Traced(store, tracer, STORE, history=history))


def traced_shared_log(store: SharedLog, tracer: Tracer) -> SharedLog:
    def commit(compares: Any, puts: Any, **more: Any) -> Facts:
        return {"headgate.store": store.name, "headgate.puts": len(puts)}

    return cast(SharedLog, Traced(store, tracer, {"commit": TracedMethod("fleet commit", commit)}))


def traced_link(link: PeerLink, tracer: Tracer) -> PeerLink:
    url: Facts = {"headgate.peer": link.url}

    def pull(ask: Pull, *, timeout_s: float) -> Facts:
        return {**url, "headgate.shard": ask.shard, "headgate.database": ask.database}

    def wake(shard: str, database: str, *, timeout_s: float) -> Facts:
        return {**url, "headgate.shard": shard, "headgate.database": database}

    def exchange(offer: Offer, *, timeout_s: float) -> Facts:
        return {**url, "headgate.shard": offer.shard, "headgate.changes": len(offer.entries)}

    def ask(method: str, target: str, *rest: Any, **more: Any) -> Facts:
        # Without what comes after `?`, which names the client.
        return {**url, "http.request.method": method, "url.path": target.partition("?")[0]}

    watched = {
        "pull": TracedMethod("shard pull", pull, turn),
        "wake": TracedMethod("shard wake", wake, turn),
        "exchange": TracedMethod("shard exchange", exchange, turn),
        "ask": TracedMethod("peer request", ask),
    }
    return cast(PeerLink, Traced(link, tracer, watched))


def traced_sink(sink: PolicySink, database: str, tracer: Tracer) -> PolicySink:
    where: Facts = {"headgate.database": database, "headgate.where": sink.describe()}

    def publish(policy: Any, revision: int) -> Facts:
        return {**where, "headgate.revision": revision, "headgate.budgets": len(policy.budgets)}

    return cast(
        PolicySink, Traced(sink, tracer, {"publish": TracedMethod("policy publish", publish)})
    )


class TracedSampler(Sampler):
    """Each reading a span of its own: the request that set a metric is long over."""

    def __init__(self, board: Board, clock: Clock, demands: Demands, tracer: Tracer) -> None:
        super().__init__(board, clock, demands)
        self._tracer = tracer

    def start(self, database: str, spec: MetricSpec, probe: Probe) -> None:
        facts: Facts = {"headgate.database": database, "headgate.metric": spec.name}
        watched = {"read": TracedMethod("probe", lambda: facts, turn)}
        super().start(database, spec, cast(Probe, Traced(probe, self._tracer, watched)))
