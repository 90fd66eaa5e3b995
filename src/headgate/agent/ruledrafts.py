"""Rules as operators say them, judged before they are kept.   body ──► RuleDrafts ──► RuleSpec"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headgate.agent.ports import Clock
from headgate.agent.rulesteps import RuleEntry
from headgate.agent.ruletime import RuleTime
from headgate.agent.schedules import check_zone
from headgate.core.rule_settings import (
    FIXED,
    PAIRED,
    KnownMetric,
    KnownMetrics,
    RuleLimits,
    RuleSpec,
    parse_rule,
    written,
)
from headgate.errors import Fault, InvalidSettings


class RuleDrafts:
    def __init__(
        self, clock: Clock, time: RuleTime, known_metrics: KnownMetrics, limits: RuleLimits
    ) -> None:
        self._clock = clock
        self._time = time
        self._known_metrics = known_metrics
        self._limits = limits

    def wall_s(self) -> float:
        return round(self._clock.now().wall_s, 3)

    def parsed(
        self,
        raw: Mapping[str, Any],
        who: str,
        rule_id: str,
        *,
        wall_s: float | None = None,
        known_metrics: KnownMetrics | None = None,
    ) -> RuleSpec:
        """`rule_id`: for one that names none."""
        wall_s = self.wall_s() if wall_s is None else wall_s
        spec = parse_rule(
            raw,
            rule_id=rule_id,
            author=who,
            wall_s=wall_s,
            known_metrics=known_metrics or self._known_metrics,
            limits=self._limits,
        )
        if spec.schedule is not None:
            check_zone(spec.schedule)
        return replace(spec, ruled_at=round(self._time.now_s(), 3))

    def patched(self, entry: RuleEntry, raw: Mapping[str, Any], who: str) -> RuleSpec:
        spec, rule = entry.spec, entry.spec.rule
        if fixed := [key for key in FIXED if key in raw]:
            message = "cannot be changed: that would be another rule; lift this one and set it"
            raise InvalidSettings([Fault(f"rule.{key}", message) for key in fixed])
        merged = {**written(rule, spec.schedule), **raw}
        new_end = any(raw.get(key) is not None for key in PAIRED)
        if not new_end:
            # It was judged when it was set; only now counts as "in the past".
            merged |= {"for": None, "expires_at": rule.expires_at}
        merged = {key: value for key, value in merged.items() if value is not None}
        # Limits that stay as they are may bite by now: that is what they are there for.
        known = self._known_metrics if "thresholds" in raw else self._known_without_values
        parsed = self.parsed({**merged, "id": rule.id}, who, rule.id, known_metrics=known)
        changed = replace(parsed.rule, created_at=rule.created_at, created_by=rule.created_by)
        return replace(
            spec,
            rule=replace(changed, revision=rule.revision),
            schedule=parsed.schedule,
            set_at=parsed.set_at if new_end else spec.set_at,
            ruled_at=parsed.ruled_at if new_end else spec.ruled_at,
        )

    def _known_without_values(self, database: str) -> Mapping[str, KnownMetric]:
        known = self._known_metrics(database)
        return {name: metric._replace(value=None) for name, metric in known.items()}
