"""Metrics against their thresholds, and whether a database lets work through.   Board ──► rows"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headgate.base.names import Scope
from headgate.base.prometheus import Row
from headgate.check.decide import is_idle, judge
from headgate.check.model import PASSING, Activity, State
from headgate.http.exposition.series import Rows, Scrape, Section
from headgate.pacing.api import set_point
from headgate.pacing.pacer import Pacer

_WITHOUT = (State.UNAVAILABLE, State.LAST_VALUE, State.IGNORED)


HEALTH = Section()


@HEALTH.rows(
    "headgate_metric_value{database,metric}",
    "Newest value. Missing, not frozen, while the metric is unavailable.",
)
def _values(look: Scrape) -> Iterator[Row]:
    for name, health in look.healths.items():
        for metric, standing in health.standings.items():
            # An unavailable metric has no value at all: a frozen one would look healthy.
            finding = judge(standing, look.now)
            if finding.value is not None and finding.state is not State.UNAVAILABLE:
                yield (name, metric), finding.value


@HEALTH.rows("headgate_metric_threshold{database,metric}", "Threshold in force.")
def _thresholds(look: Scrape) -> Iterator[Row]:
    for name, health in look.healths.items():
        for metric, standing in health.standings.items():
            yield (name, metric), standing.spec.threshold


@HEALTH.rows("headgate_metric_age_seconds{database,metric}", "Age of the newest value.")
def _ages(look: Scrape) -> Iterator[Row]:
    for name, health in look.healths.items():
        for metric, standing in health.standings.items():
            if standing.sample is not None:
                yield (name, metric), max(0.0, look.now.mono_s - standing.sample.taken_at)


@HEALTH.rows(
    "headgate_metric_healthy{database,metric}",
    "1 while this metric admits checks, else 0. Missing while it is idle.",
)
def _metric_healthy(look: Scrape) -> Iterator[Row]:
    for name, health in look.healths.items():
        for metric, standing in health.standings.items():
            finding = judge(standing, look.now)
            if not is_idle(finding, look.views.activity(name)):
                yield (name, metric), float(finding.state in PASSING)


@HEALTH.rows(
    "headgate_metric_unavailable{database,metric,scope,cause}",
    "1 while there is no value, with the cause; missing while there is one. `hibernating` is "
    "no fault.",
)
def _absences(look: Scrape) -> Iterator[Row]:
    for name, health in look.healths.items():
        scopes = [(Scope.HOST, health.standings)]
        if health.shard is not None:
            scopes.append((Scope.SHARD, health.shard.standings))
        for scope, standings in scopes:
            for metric, standing in standings.items():
                finding = judge(standing, look.now)
                if finding.state in _WITHOUT and finding.cause is not None:
                    yield (name, metric, scope.value, finding.cause.value), 1.0


@HEALTH.rows(
    "headgate_unmeasured_admissions_total{database,metric}",
    "Checks admitted although this metric had no value: by `absence` = `ignore`, or after "
    "`reject_for_s`.",
)
def _unmeasured(look: Scrape) -> Iterator[Row]:
    counted = look.parts.recorder.without_value
    for name, health in look.healths.items():
        for metric in health.standings:
            yield (name, metric), float(counted[name, metric])


@HEALTH.rows(
    "headgate_database_admitting{database}",
    "1 while a check that names no metric would be admitted, else 0. Missing while the "
    "database is idle.",
)
def _admitting(look: Scrape) -> Iterator[Row]:
    for name, health in look.healths.items():
        chosen = health.own
        if not look.views.idles(name, look.now):
            yield (name,), float(chosen.all_pass and look.now.mono_s <= chosen.all_pass_until)


@HEALTH.rows(
    "headgate_database_idle{database}",
    "1 while nobody checks the database and nothing else is wrong with its metrics, else 0. "
    "The next check wakes it, which takes about 1 s.",
)
def _idle(look: Scrape) -> Iterator[Row]:
    for name in look.healths:
        yield (name,), float(look.views.idles(name, look.now))


@HEALTH.rows(
    "headgate_database_seconds_since_healthy{database}",
    "Since the database last admitted checks: 0 while it does. Missing while it is idle, and "
    "before it admits the first one.",
)
def _since_healthy(look: Scrape) -> Iterator[Row]:
    for name, health in look.healths.items():
        own = health.own
        if look.views.idles(name, look.now):
            continue
        if own.all_pass and look.now.mono_s <= own.all_pass_until:
            yield (name,), 0.0
        elif (healthy_at := look.views.last_healthy.get(name)) is not None:
            yield (name,), max(0.0, look.now.mono_s - healthy_at)


@HEALTH.rows(
    "headgate_readings_total{database,metric,outcome}",
    "Probes that ended, by `value` or the cause of an unavailable one.",
)
def _readings(look: Scrape) -> Iterator[Row]:
    for (database, metric, outcome), count in look.parts.sampler.readings_total.items():
        yield (database, metric, outcome), float(count)


@HEALTH.rows(
    "headgate_activity{database,state}",
    "1 for the state it is in (`awake`, `idle`, `hibernating`), 0 for the others.",
)
def _activity(look: Scrape) -> Iterator[Row]:
    for plan in look.parts.book.databases():
        current = look.views.activity(plan.name)
        for state in Activity:
            yield (plan.name, state.value), float(state is current)


@HEALTH.rows("headgate_heartbeats_total{database}", "Heartbeats written.")
def _beats(look: Scrape) -> Iterator[Row]:
    for beat in look.facts.heartbeats:
        yield (beat.database,), float(beat.beats_total)


@HEALTH.rows(
    "headgate_heartbeat_failing{database}",
    "1 while a heartbeat is due and cannot be written, else 0.",
)
def _beats_failing(look: Scrape) -> Iterator[Row]:
    for beat in look.facts.heartbeats:
        yield (beat.database,), float(beat.fault is not None)


# --- paced admission.   Pacers ──► rows ----------------------------------------------------


def _each(of: Callable[[Pacer], float]) -> Rows:
    def rows(look: Scrape) -> Iterator[Row]:
        for database, pacer in look.parts.checker.pacers.items():
            yield (database,), float(of(pacer))

    return rows


PACING = Section()
PACING.add(
    "headgate_pace_rate{database}",
    "Cost a second that pacing admits. Missing if no metric is paced.",
    _each(lambda pacer: pacer.pace.rate),
)
PACING.add(
    "headgate_pace_sustained{database}",
    "Estimate of the cost a second that the database sustains: the controller's integral term.",
    _each(lambda pacer: pacer.pace.sustained),
)
PACING.add(
    "headgate_pace_starting{database}",
    "1 during slow start, while the rate still grows to its limit, else 0.",
    _each(lambda pacer: pacer.pace.starting),
)


@PACING.rows(
    "headgate_pace_set_point{database,metric}", "Value that pacing aims at, in the metric's unit."
)
def _pace_set_points(look: Scrape) -> Iterator[Row]:
    for database, pacer in look.parts.checker.pacers.items():
        for metric, standing in pacer.metrics.items():
            yield (database, metric), set_point(standing)


PACING.add(
    "headgate_pace_cost_total{database}",
    "Cost charged to admitted checks since the metric is paced.",
    _each(lambda pacer: pacer.cost_total),
)
PACING.add(
    "headgate_pace_sent_away_total{database}",
    "Checks that pacing rejected although every metric was healthy.",
    _each(lambda pacer: pacer.paced_total),
)
