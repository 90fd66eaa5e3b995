"""A check as the bytes of a request. Built once: a retry sends the same bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import quote

from headgate.base.names import (
    Scope,
    parse_database,
    parse_identity,
    parse_metric_ref,
    parse_scope,
)
from headgate.client.http1 import encode_request
from headgate.client.target import Target
from headgate.errors import Fault, InvalidName, InvalidSettings

MAX_COST = 1e9
MAX_CPU_S = 10_000.0


class Debit(NamedTuple):
    """A budget of the database, and the CPU that is charged to it."""

    budget: str
    cpu_s: float


class Question(NamedTuple):
    app: str
    databases: tuple[str, ...]
    request: bytes
    read_only: bool = False
    encode: Callable[[str, str], bytes] | None = None
    """The same request, for another host and about a database of another name."""
    parts: tuple[Question, ...] = ()
    """Of a question about several databases: the same about each of them."""
    like: bytes = b""
    """Set: the request of the same question at its usual cost, by which it is remembered."""

    @property
    def subject(self) -> bytes:
        return self.like or self.request

    def alike(self, usual: Question) -> Question:
        parts = zip(self.parts, usual.parts, strict=True)
        return self._replace(
            like=usual.subject, parts=tuple(mine.alike(theirs) for mine, theirs in parts)
        )

    def put_to(self, target: Target | None) -> Question:
        """The same check at another agent; None: at the client's own."""
        if target is None or self.encode is None:
            return self
        name = target.database or self.databases[0]
        request = self.encode(target.host_header, name)
        databases = self.databases if len(self.databases) > 1 else (name,)
        return self._replace(request=request, databases=databases)

    def __str__(self) -> str:
        return f"{self.app} on {' and '.join(self.databases)}"


class RequestBuilder:
    """Makes the checks of one client for its agents. Has the token, so its repr shows nothing."""

    __slots__ = ("_scope", "_target", "_token", "app", "databases")

    def __init__(
        self,
        app: str,
        databases: tuple[str, ...],
        target: Target,
        token: str | None = None,
        scope: Scope | None = None,
    ) -> None:
        self.app = app
        self.databases = databases
        self._target = target
        self._token = token
        self._scope = scope

    def may_write(self, metrics: Sequence[str], cost: float | None = None) -> Question:
        cost = checked_cost(cost)
        each = tuple(self._about(name, metrics, cost) for name in self.databases)
        return each[0] if len(each) == 1 else self._several(metrics, cost)._replace(parts=each)

    def may_debit(self, metrics: Sequence[str], cost: float | None, debit: Debit) -> Question:
        """Always the agent's to answer; remembered by the budget, whatever it is charged."""
        if len(self.databases) > 1:
            known = ", ".join(self.databases)
            raise _fault("budget", f"is of one database, but this client checks {known}")
        asked = self._about(self.databases[0], metrics, checked_cost(cost), debit)
        usual = self._about(self.databases[0], metrics, None, debit._replace(cpu_s=1.0))
        return asked._replace(like=usual.request)

    def _about(
        self,
        database: str,
        metrics: Sequence[str],
        cost: float | None,
        debit: Debit | None = None,
    ) -> Question:
        selected = f"&metrics={','.join(quote(name) for name in metrics)}" if metrics else ""
        if self._scope is not None:
            selected += f"&scope={self._scope.value}"
        if cost is not None:
            selected += f"&cost={cost!r}"
        if debit is not None:
            selected += f"&budget={quote(debit.budget, safe='')}&cpu_s={debit.cpu_s!r}"
        return self._question(
            (database,), "GET", lambda name: f"/v1/check?{self._who(name)}{selected}"
        )

    def may_read(self, threshold_s: float, metric: str, database: str | None) -> Question:
        if not (math.isfinite(threshold_s) and threshold_s > 0):
            raise _fault("threshold_s", f"must be seconds above 0, not {threshold_s!r}")
        name, ref = self._one_database(database), parse_metric_ref(metric)
        ref = ref._replace(scope=ref.scope or self._scope)
        selected = f"&threshold={float(threshold_s)!r}&metric={quote(str(ref))}"
        question = self._question(
            (name,), "GET", lambda known_as: f"/v1/check-read?{self._who(known_as)}{selected}"
        )
        return question._replace(read_only=True)

    def report(self, target: Target, path: str, body: bytes) -> bytes:
        """A report to an agent, rather than a check."""
        return encode_request("POST", path, host=target.host_header, token=self._token, body=body)

    def _several(self, metrics: Sequence[str], cost: float | None) -> Question:
        selected: dict[str, object] = {"metrics": list(metrics)} if metrics else {}
        if self._scope is not None:
            selected["scope"] = self._scope.value
        if cost is not None:
            selected["cost"] = cost
        checks = [{"database": name, **selected} for name in self.databases]
        body = json.dumps({"app": self.app, "checks": checks}).encode()
        return self._question(self.databases, "POST", lambda _: "/v1/check", body)

    def _who(self, database: str) -> str:
        return f"app={quote(self.app, safe='')}&database={quote(database)}"

    def _one_database(self, given: str | None) -> str:
        if given is not None:
            return parse_database(given)
        if len(self.databases) > 1:
            known = ", ".join(self.databases)
            raise _fault("database", f"a read check is about one of {known}: say which")
        return self.databases[0]

    def _question(
        self,
        databases: tuple[str, ...],
        method: str,
        path_about: Callable[[str], str],
        body: bytes = b"",
    ) -> Question:
        def encode(host: str, database: str) -> bytes:
            path = path_about(database)
            return encode_request(method, path, host=host, token=self._token, body=body)

        request = encode(self._target.host_header, databases[0])
        return Question(self.app, databases, request, encode=encode)


def make_asker(
    app: str,
    database: str | Sequence[str],
    target: Target,
    token: str | None,
    scope: str | None = None,
) -> RequestBuilder:
    if not app:
        raise InvalidName("app is empty: set it to the client's identity, such as etl:nightly")
    databases = tuple(parse_database(name) for name in one_or_more(database))
    if not databases or len(set(databases)) < len(databases):
        raise _fault("database", f"must name one or more, each once, not {database!r}")
    fits_a_header = token is None or (token.isascii() and token.isprintable() and " " not in token)
    if not fits_a_header or token == "":
        raise _fault("token", "must be printable ASCII without spaces (it is not shown here)")
    wanted = None if scope is None else parse_scope(scope)
    return RequestBuilder(parse_identity(app).text, databases, target, token, wanted)


def checked_cost(cost: float | None) -> float | None:
    if cost is None:
        return None
    if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 < cost <= MAX_COST:
        raise _fault("cost", f"must be a number above 0, at most {MAX_COST:g}, not {cost!r}")
    return float(cost)


def checked_debit(budget: str | None, cpu_s: float | None) -> Debit | None:
    if budget is None and cpu_s is None:
        return None
    if not isinstance(budget, str) or not budget:
        raise _fault("budget", f"must be the name of one, with cpu_s beside it, not {budget!r}")
    if isinstance(cpu_s, bool) or not isinstance(cpu_s, int | float) or not 0 < cpu_s <= MAX_CPU_S:
        message = f"must be seconds of CPU above 0, at most {MAX_CPU_S:g}, not {cpu_s!r}"
        raise _fault("cpu_s", message)
    return Debit(budget, float(cpu_s))


def metric_names(metrics: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(str(parse_metric_ref(name)) for name in one_or_more(metrics))


def one_or_more(names: str | Sequence[str]) -> tuple[str, ...]:
    """A lone name is one name, not a sequence of letters."""
    return (names,) if isinstance(names, str) else tuple(names)


def _fault(place: str, message: str) -> InvalidSettings:
    return InvalidSettings([Fault(place, message)])
