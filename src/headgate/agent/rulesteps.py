"""One rule as it is stored and as it applies: values, and how they are written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from headgate.agent.changetime import STEP_S, TimeMark, parse_mark
from headgate.agent.schedules import windows_ahead
from headgate.core.lint import Advice
from headgate.core.reach import Reach
from headgate.core.rule_settings import RuleSpec, parse_target, written
from headgate.core.rule_times import parse_date_time
from headgate.core.rules import EVERYONE, Rule, Window
from headgate.core.samples import Instant
from headgate.errors import Fault, InvalidSettings

NEVER: tuple[Window, ...] = ()
"""No clock brings back a lifted rule."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The change of a log that a rule is of: as what, how far, and by which revision."""

    item_id: str
    reach: Reach
    n: int
    set_by: str


@dataclass(frozen=True, slots=True)
class RuleEntry:
    """One rule as it is stored, and as it applies."""

    spec: RuleSpec
    ends_mono_s: float
    """By this the rule ends, whatever the wall clock says."""
    origin: Origin
    advice: tuple[Advice, ...] = ()
    unread: str = ""
    """For a rule that a newer version set for the fleet: why it cannot be read here. Its spec then
    has only its name, its target, and its end."""

    @property
    def id(self) -> str:
        return self.spec.id

    def in_book(self, now: Instant) -> Rule:
        """As the book has it: with its windows, and with an end that no clock can put off."""
        rule, schedule = self.spec.rule, self.spec.schedule
        if self.spec.lifted_by:
            return replace(rule, windows=NEVER)
        by_mono = now.wall_s + self.ends_mono_s - now.mono_s
        if by_mono < rule.expires_at - STEP_S:
            rule = replace(rule, expires_at=by_mono)
        if schedule is not None:
            rule = replace(rule, windows=windows_ahead(schedule, now.wall_s))
        return rule


def favor_targets(target: str, over: str) -> tuple[str, str]:
    """The target without a ratio, and the one with it. A client in both must have no ratio: that
    takes a rule on both, because among equals the stricter wins."""
    faults = []
    for place, given in (("target", target), ("over", over)):
        try:
            parse_target(given)
        except ValueError as error:
            faults.append(Fault(f"favor.{place}", str(error)))
    if not faults and target in (over, EVERYONE):
        faults.append(Fault("favor.target", f"{target} cannot be favored over {over}"))
    if faults:
        raise InvalidSettings(faults)
    if over == EVERYONE:
        return target, over
    return ":".join(dict.fromkeys([*target.split(":"), *over.split(":")])), over


def value_of(spec: RuleSpec) -> Mapping[str, Any]:
    """As it is kept and audited: in times that a person can read."""
    rule = spec.rule
    value: dict[str, Any] = {
        **written(rule, spec.schedule),
        "expires_at": iso(rule.expires_at),
        "created_at": iso(rule.created_at),
        "created_by": rule.created_by,
        "set_at": iso(spec.set_at),
    }
    if spec.ruled_at is not None:
        value["ruled_at"] = spec.ruled_at
    if spec.charged:
        value["charged"] = dict(spec.charged)
    texts = {"pair": spec.pair, "suspended": spec.suspended, "lifted_by": spec.lifted_by}
    return value | {key: text for key, text in texts.items() if text}


def mark_of(value: Mapping[str, Any]) -> TimeMark | None:
    """A rule that was set here tells how far time had come when its end was set, by both clocks."""
    try:
        set_at = parse_date_time(value.get("set_at"))
    except ValueError:
        return None
    return parse_mark({"ruled_s": value.get("ruled_at"), "wall_s": set_at})


def iso(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).isoformat().replace("+00:00", "Z")
