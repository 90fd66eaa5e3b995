"""The vectors' worlds as values, and an answer as the line that stands in decide.json.

A vector says: in this state of the metrics, under these rules, this question with these dice
gets this answer. What decides, be it the agent or the SDK, has to give it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from headgate.base.names import Scope, parse_scope
from headgate.check.health import Health, MetricStatus, ShardHealth, Window, health_of, stand
from headgate.check.model import Check
from headgate.check.questions import build_check
from headgate.check.snapshot import DatabaseSnapshot
from headgate.client.answers import Answer
from headgate.metrics.model import MetricSpec
from headgate.metrics.samples import Absent, Cause, Sample
from headgate.rules.matching import DiceOrder, Kind, Rule, RuleBook
from headgate.shard.rollup import shard_spec
from tests.builders import NOW, metric

PATH = Path(__file__).parent / "decide.json"
COLLECT_S = 0.25


class Vector(NamedTuple):
    state: str
    rules: str
    app: str
    metrics: str
    scope: str
    roll: float
    answer: str

    @property
    def asked(self) -> tuple[Any, ...]:
        return self[:-1]

    def __str__(self) -> str:
        return "/".join(map(str, self.asked))


class Worlds:
    def __init__(self, document: Mapping[str, Any]) -> None:
        self._specs = {n: metric(n, **settings) for n, settings in document["metrics"].items()}
        self.states = {name: self._health(state) for name, state in document["states"].items()}
        self.books = {name: _book(rules) for name, rules in document["rules"].items()}

    def view(self, vector: Vector) -> DatabaseSnapshot:
        return DatabaseSnapshot(self.states[vector.state], self.books[vector.rules])

    def _health(self, state: Mapping[str, Any]) -> Health:
        host = {n: self._standing(n, told, Scope.HOST) for n, told in state["host"].items()}
        shard = state.get("shard")
        whole = None if shard is None else self._shard(shard)
        return health_of("main", host, shard=whole)

    def _shard(self, told: Mapping[str, Any]) -> ShardHealth:
        standings = {n: self._standing(n, r, Scope.SHARD) for n, r in told["metrics"].items()}
        asked = (told.get(key, "") for key in ("primary", "check_at", "check_at_database"))
        return ShardHealth("commerce/-80", standings, *asked)

    def _standing(self, name: str, told: Mapping[str, Any], scope: Scope) -> MetricStatus:
        spec = self._specs[name]
        if scope is Scope.SHARD:
            spec = shard_spec(spec, collect_s=COLLECT_S)
        until = NOW.mono_s + told["valid_s"] if "valid_s" in told else float("inf")
        return stand(spec, _window(told, spec), scope=scope, until=until)


def _window(told: Mapping[str, Any], spec: MetricSpec) -> Window:
    window = Window()
    for number, value in enumerate(told.get("values", [])):
        age_s = told.get("age_s", 0.1) + spec.interval_s * (len(told["values"]) - 1 - number)
        window = window.push(Sample(value, NOW.mono_s - age_s), keep=60)
    if "absent" in told:
        absent = Absent(Cause(told["absent"]), told.get("detail", ""), NOW.mono_s)
        window = window.push(absent, keep=60)
    return window


def _book(rules: list[Mapping[str, Any]]) -> RuleBook:
    suspended = frozenset(rule["id"] for rule in rules if rule.get("suspended"))
    return RuleBook(map(_rule, rules), suspended=suspended)


def _rule(told: Mapping[str, Any]) -> Rule:
    begins_s, ends_s = told.get("window_s", (None, None))
    windows = None if begins_s is None else ((NOW.wall_s + begins_s, NOW.wall_s + ends_s),)
    return Rule(
        told["id"],
        told["target"],
        told.get("ratio", 0.0),
        NOW.wall_s + told.get("ends_in_s", 600.0),
        Kind(told.get("kind", "ratio")),
        DiceOrder(told.get("order", "before")),
        tuple(told.get("metrics", ())),
        told.get("thresholds", {}),
        database=told.get("database", ""),
        windows=windows,
    )


def load() -> tuple[Worlds, list[Vector]]:
    document = json.loads(PATH.read_text())
    return Worlds(document), list(vectors_in(document))


def vectors_in(document: Mapping[str, Any]) -> Iterator[Vector]:
    for line in document["vectors"]:
        yield Vector(*line)


def check_of(vector: Vector) -> Check:
    named = [name for name in vector.metrics.split(",") if name]
    return build_check(vector.app, "main", named, scope=vector.scope or None)


def scope_of(vector: Vector) -> Scope | None:
    return parse_scope(vector.scope) if vector.scope else None


def line_of(answer: Answer) -> str:
    """What is compared: the verdict, what stands behind it, and when to come back."""
    parts = [answer.verdict]
    if answer.raw.get("rules"):
        parts.append(f"rules {','.join(answer.raw['rules'])}")
    bad = [m for m in answer.metrics if m.state not in ("healthy", "last_value", "ignored")]
    parts += [f"{m.scope}/{m.metric} {m.state}{f' ({m.cause})' if m.cause else ''}" for m in bad]
    exempted = answer.raw.get("exempted", [])
    parts += [f"exempted {m['scope']}/{m['metric']}" for m in exempted]
    if answer.check_at:
        parts.append(f"ask {answer.check_at} about {answer.check_at_database}")
    if answer.retry_after_s is not None:
        parts.append(f"after {answer.retry_after_s:g} s")
    return "; ".join(parts)
