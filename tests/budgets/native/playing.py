"""A scenario of tests/vectors/traffic.json, played against one that decides.

A scenario has a policy document, a server's sizes and steps; playing it gives what each step came
to and what is remembered at the end, in the words of the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from headgate.budgets.cost import CostLine
from headgate.budgets.ledger import BudgetTotals
from headgate.budgets.matching import Matched, Now
from headgate.budgets.model import (
    NEVER,
    Dialect,
    Statement,
    StatementAnswer,
    StatementCheck,
    StatementFlags,
    StatementIdentity,
    StatementVerdict,
    budget_key,
)
from headgate.budgets.parse import parse_policy
from headgate.budgets.policy import Policy
from tests.budgets.native.engines import Engine, Sizes

PATH = Path(__file__).parents[2] / "vectors" / "traffic.json"
MS = 1_000_000


def document() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(PATH.read_text())
    return loaded


def sizes_of(scenario: Mapping[str, Any]) -> Sizes:
    return Sizes(**scenario.get("server", {}))


class Player:
    def __init__(self, engine: Engine, scenario: Mapping[str, Any]) -> None:
        self._engine = engine
        self._scenario = scenario
        self._policy = Policy()
        self._names: dict[int, str] = {}
        self._holdings: dict[str, Any] = {}
        self._patterns: list[int] = []

    def play(self) -> dict[str, Any]:
        self._publish(self._scenario["policy"])
        results = [self._step(step) for step in self._scenario["steps"]]
        end_ns = _time_ns(self._scenario["steps"][-1])
        return {"results": results, "end": self._end(end_ns)}

    def _publish(self, policy: Mapping[str, Any]) -> None:
        self._policy = parse_policy(policy)
        self._names |= {budget_key(budget.name): budget.name for budget in self._policy.budgets}
        self._engine.publish(self._policy)

    def _step(self, step: Mapping[str, Any]) -> dict[str, Any]:
        told: dict[str, Any] = getattr(self, f"_{step['do']}")(step)
        state = self._state(_time_ns(step))
        return {**told, "buckets": state} if state else told

    def _take(self, step: Mapping[str, Any]) -> dict[str, Any]:
        matched, ask = self._asked(step)
        answer, holding = self._engine.take(matched.at, ask)
        if holding is not None and "as" in step:
            self._holdings[step["as"]] = holding
        return self._told(matched, answer)

    def _check(self, step: Mapping[str, Any]) -> dict[str, Any]:
        matched, ask = self._asked(step)
        return self._told(matched, self._engine.check(matched.at, ask))

    def _settle(self, step: Mapping[str, Any]) -> dict[str, Any]:
        holding, actual_ns = self._holdings.pop(step["of"]), _ns(step, "actual")
        self._engine.settle(holding, actual_ns, _time_ns(step), step.get("aborted", False))
        return {}

    def _pause(self, step: Mapping[str, Any]) -> dict[str, Any]:
        self._holdings[step["of"]] = self._engine.pause(self._holdings[step["of"]])
        return {}

    def _resume(self, step: Mapping[str, Any]) -> dict[str, Any]:
        self._holdings[step["of"]] = self._engine.resume(self._holdings[step["of"]])
        return {}

    def _change(self, step: Mapping[str, Any]) -> dict[str, Any]:
        self._publish(step["policy"])
        return {}

    def _asked(self, step: Mapping[str, Any]) -> tuple[Matched, StatementCheck]:
        ask = ask_of(step)
        if ask.pattern:
            self._patterns.append(ask.pattern)
        now = Now(step.get("wall_ms", 0), step.get("healthy"))
        return self._engine.match(who_of(step), statement_of(step), now), ask

    def _told(self, matched: Matched, answer: StatementAnswer) -> dict[str, Any]:
        kept = self._policy.kept
        names = [_bucket_name(kept[m.budget].name, m.label) for m in matched.at]
        told: dict[str, Any] = {"verdict": answer.verdict.name.lower(), "budgets": names}
        if matched.probes:
            told["probes"] = matched.probes
        if matched.left_out:
            told["left_out"] = matched.left_out
        if matched.ignored_tags or matched.duplicate_tags:
            told["odd_tags"] = [matched.ignored_tags, matched.duplicate_tags]
        if any(answer.limits):
            told["limits"] = [limit.name.lower() for limit in answer.limits]
        if any(answer.thresholds):
            told["thresholds"] = [limit.name.lower() for limit in answer.thresholds]
        if answer.passed:
            told["passed"] = True
        told["estimate_ns"] = answer.estimate_ns
        if answer.p90_ns != answer.estimate_ns:
            told["p90_ns"] = answer.p90_ns
        if answer.verdict is not StatementVerdict.RUN:
            told["by"] = [names[answer.match], answer.decided_by.name.lower()]
            told["used"], told["bound"] = answer.used, answer.bound
            told["retry_ns"] = "never" if answer.retry_ns == NEVER else answer.retry_ns
        return told

    def _state(self, now_ns: int) -> dict[str, str]:
        buckets = self._engine.buckets(now_ns).values()
        told = (
            (_bucket_name(self._names[b.budget_key], b.label), f"owes {owed}, runs {b.workers}")
            for b, owed in buckets
        )
        return dict(sorted(told))

    def _end(self, now_ns: int) -> dict[str, Any]:
        counts = {name: counts_told(self._engine.counts(name)) for name in self._names.values()}
        told: dict[str, Any] = {"counts": {name: told for name, told in counts.items() if told}}
        known = ((key, self._engine.pattern(key)) for key in dict.fromkeys(self._patterns))
        patterns = {
            str(key): {
                "calls": p.calls,
                "error": p.error,
                "cpu_ns": p.cpu_ns,
                "lines": [_line(one) for one in (p.whole, *p.shapes) if one.calls],
            }
            for key, p in known
            if p
        }
        if patterns:
            told["patterns"] = patterns
        if self._engine.host().calls:
            told["host"] = _line(self._engine.host())
        return told


def _line(line: CostLine) -> list[Any]:
    words = (line.shape, line.calls, line.variance, line.plan_cost, line.cpu)
    return [*words, line.spread, line.common, *line.bends]


def who_of(step: Mapping[str, Any]) -> StatementIdentity:
    address = step.get("address")
    return StatementIdentity(
        step.get("user", "app"),
        step.get("database"),
        step.get("application"),
        ip_address(address) if address else None,
    )


def statement_of(step: Mapping[str, Any]) -> Statement:
    dialect = Dialect[step.get("dialect", "postgres").upper()]
    text = step.get("text", "SELECT 1").encode()
    return Statement(text, dialect, step.get("query_id", 0))


def ask_of(step: Mapping[str, Any]) -> StatementCheck:
    flags = StatementFlags.PLANNED
    for flag in step.get("flags", ()):
        flags |= StatementFlags[flag.upper()]
    given = _ns(step, "cost")
    return StatementCheck(
        now_ns=_time_ns(step),
        wall_ms=step.get("wall_ms", 0),
        plan_cost=float(step.get("plan_cost", 1.0)),
        cost_ns=given,
        pattern=step.get("pattern", 0),
        shape=step.get("shape", 0),
        workers=step.get("workers", 1),
        flags=flags | (StatementFlags.COST_GIVEN if given else StatementFlags.PLANNED),
    )


def counts_told(counts: BudgetTotals) -> dict[str, Any]:
    """What is not 0."""
    fields = {name: getattr(counts, name) for name in BudgetTotals.__slots__}
    return {name: value for name, value in fields.items() if value not in (0, [0] * 4)}


def _bucket_name(budget: str, label: bytes) -> str:
    return f"{budget}[{label.decode()}]" if label else budget


def _time_ns(step: Mapping[str, Any]) -> int:
    return int(step.get("at_ms", 0) * MS)


def _ns(step: Mapping[str, Any], name: str) -> int:
    """`cost_ms` or `cost_ns`."""
    return int(step.get(f"{name}_ns", step.get(f"{name}_ms", 0) * MS))
