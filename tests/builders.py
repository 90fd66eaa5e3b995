"""Values for tests, with everything that does not matter filled in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headgate.base.names import Scope, parse_identity, parse_metric_ref
from headgate.base.units import amount_text
from headgate.check.health import (
    Health,
    MetricStatus,
    ShardHealth,
    Window,
    health_of,
    never_read,
    stand,
)
from headgate.check.model import Check
from headgate.metrics.builtins import BUILTINS
from headgate.metrics.model import Engine, MetricSpec
from headgate.metrics.samples import Absent, Cause, Instant, Reading, Sample
from headgate.metrics.settings import parse_metric_settings
from headgate.shard.model import MemberView, ShardView
from headgate.shard.topology import Leading, Member, MemberReport, Role, RoleSeen

NOW = Instant(mono_s=1000.0, wall_s=1_700_000_000.0)


def at(seconds: float) -> Instant:
    """`seconds` after NOW, on both clocks."""
    return Instant(NOW.mono_s + seconds, NOW.wall_s + seconds)


def metric(name: str = "lag", engine: Engine = Engine.POSTGRES, **settings: Any) -> MetricSpec:
    """Numbers are in the metric's unit."""
    unit = settings.get("unit") or (BUILTINS[name].unit if name in BUILTINS else "")
    for key in ("threshold", "ignore_above"):
        if isinstance(settings.get(key), int | float):
            settings[key] = amount_text(settings[key], unit)
    return parse_metric_settings(name, settings, engine)


def sample(
    value: float, *, age_s: float = 0.0, cause: Cause | None = None, detail: str = ""
) -> Sample:
    return Sample(value, NOW.mono_s - age_s, cause, detail)


def absent(cause: Cause = Cause.FAILED, detail: str = "rejected", *, age_s: float = 0.0) -> Absent:
    return Absent(cause, detail, NOW.mono_s - age_s)


def window(*readings: Reading) -> Window:
    built = Window()
    for reading in readings:
        built = built.push(reading, keep=60)
    return built


Given = tuple[MetricSpec, Window | Reading | float | None]


def health(*metrics: Given, shard: ShardHealth | None = None) -> Health:
    """A database named main. A number is a fresh sample; None was never read."""
    return health_of("main", _standings(metrics, Scope.HOST), shard=shard)


def shard_health(*metrics: Given, **more: Any) -> ShardHealth:
    return ShardHealth("commerce/-80", _standings(metrics, Scope.SHARD), **more)


def _standings(metrics: Iterable[Given], scope: Scope) -> dict[str, MetricStatus]:
    return {spec.name: stand(spec, _window_of(spec, given), scope=scope) for spec, given in metrics}


# --- members of a shard ------------------------------------------------------------------------


def role(of: Role = Role.REPLICA, **more: Any) -> RoleSeen:
    return RoleSeen(of, **{"taken_at": NOW.mono_s, "term": 3, **more})


PRIMARY = role(Role.PRIMARY)
A_REPLICA = role(Role.REPLICA)


def member(
    name: str = "db-b",
    seen: RoleSeen | None = A_REPLICA,
    *,
    local: bool = False,
    lost: Absent | None = None,
    report: bool = True,
    joined_s_ago: float | None = None,
    labels: Mapping[str, str] | None = None,
    **view: Any,
) -> MemberView:
    """`view`: fields of MemberView; what is not given is as on a quiet day."""
    url = f"https://{name}:8087"
    told = MemberReport(name, NOW.mono_s - 0.1, seen, labels=labels or {}, url=url)
    joined_at = 0.0 if joined_s_ago is None else NOW.mono_s - joined_s_ago
    known = Member(
        name, url, local, told if report else None, lost, lost.at if lost else None, joined_at
    )
    quiet: dict[str, Any] = {
        "problem": "",
        "skip": None,
        "readings": {},
        "skipped_metrics": {},
        "skip_kinds": {},
        "hopeless": (),
        "clock_ahead_s": None,
    }
    return MemberView(known, **{**quiet, **view})


def shard_view(*members: MemberView, **more: Any) -> ShardView:
    values: dict[str, Any] = {
        "shard": "commerce/-80",
        "database": "main",
        "member": "db-a",
        "standpoint": Leading("db-a", 3, NOW.mono_s + 1),
        "warming_up": None,
        "unwatched": (),
        "collect_interval_s": 0.25,
        "messages_total": 7,
    }
    return ShardView(members=members, **{**values, **more})


def _window_of(spec: MetricSpec, given: Window | Reading | float | None) -> Window:
    if given is None:
        return never_read(spec, at=NOW.mono_s)
    if isinstance(given, Window):
        return given
    if isinstance(given, Sample | Absent):
        return window(given)
    return window(sample(given))


def check(app: str = "etl:nightly", *metrics: str, database: str = "main", **more: Any) -> Check:
    refs = tuple(parse_metric_ref(name) for name in metrics)
    return Check(parse_identity(app), database, refs, **more)
