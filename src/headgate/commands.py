"""What the command line does with a settings file and without an agent: validate it, read its
metrics once, propose a threshold; and what a server can measure, for a first file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from headgate.base.assemble import faults_of, peer_access
from headgate.base.clock import SystemClock
from headgate.budgets.assemble import traffic_faults
from headgate.check.reasons import quantity
from headgate.errors import Fault, InvalidSettings, ProbeFailed
from headgate.fleet.assemble import access_faults
from headgate.history.assemble import webhook_of
from headgate.http.assemble import start_faults
from headgate.metrics.advice import MetricLook
from headgate.metrics.assemble import probe_faults, probes_of
from headgate.metrics.builtins import BUILTINS
from headgate.metrics.model import Engine, MetricSpec
from headgate.metrics.probes.factory import DatabaseProbes, MetricProbe
from headgate.metrics.probes.factory import parts_of as parts_of
from headgate.metrics.probes.numbers import commit_baseline
from headgate.metrics.samples import Cause, Measured, Number
from headgate.metrics.settings import parse_metric_settings
from headgate.settings.agent import Settings, examine_settings, load_settings
from headgate.settings.document import placed, settings_text
from headgate.settings.sections import DatabaseSettings
from headgate.settings.starter import OFFERED, OFFERED_ANYWHERE, SUGGESTED, Discovery, is_here
from headgate.shard.assemble import rollup_plugins, url_faults
from headgate.shard.settings import plugin_faults
from headgate.shard.topology import Role
from headgate.tracing.assemble import check_tracing

CALIBRATION_TIMEOUT_S = 60.0
CONNECT_S = 5.0
LOOKS, WARM_UP_S = 4, 0.3


def validated(settings_path: Path) -> Settings:
    """As an agent starts by them; InvalidSettings with every fault. Connects to nothing."""
    content = settings_text(settings_path)
    settings, faults = examine_settings(content, source=str(settings_path))
    reject_faults(settings, content, [*faults, *start_faults(settings.agent)])
    return settings


def reject_faults(settings: Settings, content: str, more: Iterable[Fault] = ()) -> None:
    """What only building the parts can tell, with the lines of the file."""
    tracing = faults_of(lambda: check_tracing(settings))
    faults = [*more, *part_faults(settings), *tracing, *access_faults(settings)]
    if faults:
        raise placed(InvalidSettings(list(dict.fromkeys(faults))), content, settings.source)


def part_faults(settings: Settings) -> Iterator[Fault]:
    """What only building the parts can tell: a driver or plug-in that is missing, a password
    that cannot be read, an odd address. Connects to nothing."""
    yield from faults_of(lambda: peer_access(settings))
    yield from faults_of(lambda: webhook_of(settings))
    yield from url_faults(settings)
    aggregates, clock = rollup_plugins(), SystemClock()
    for database in settings.databases.values():
        yield from traffic_faults(database, clock)
        yield from probe_faults(database)
        for spec in database.metrics.values():
            place = f"databases.{database.name}.metrics.{spec.name}"
            yield from plugin_faults(spec.rollup, aggregates, place)


def read_metrics(settings_path: Path) -> list[MetricLook]:
    """Each metric once, from the databases themselves."""
    settings = validated(settings_path)
    return asyncio.run(_read_metrics(settings))


async def _read_metrics(settings: Settings) -> list[MetricLook]:
    looks = [_read_database(database) for database in settings.databases.values()]
    return [reading for found in await asyncio.gather(*looks) for reading in found]


async def _read_database(database: DatabaseSettings) -> list[MetricLook]:
    probes = probes_of(database)
    try:
        specs = database.metrics.values()
        return [await _read_metric(database.name, probes, spec) for spec in specs]
    finally:
        await probes.close()


async def _read_metric(database: str, probes: DatabaseProbes, spec: MetricSpec) -> MetricLook:
    probe = probes.probe_for(spec)
    threshold = f"{spec.comparison.value} {quantity(spec.threshold, spec.unit)}"
    value, detail, cause = None, "", ""
    try:
        # The first look connects, which a metric's own timeout does not allow for.
        async with asyncio.timeout(spec.timeout_s + CONNECT_S):
            number = await _warmed_up(probe)
        value, detail = (
            (number.value, number.detail) if isinstance(number, Measured) else (number, "")
        )
    except ProbeFailed as failure:
        detail, cause = f"{failure.cause.value}: {failure.detail}", failure.cause.value
    except TimeoutError:
        detail, cause = f"no answer in {spec.timeout_s + CONNECT_S:g} s", Cause.TIMED_OUT.value
    finally:
        await probe.close()
    return MetricLook(database, spec.name, value, spec.unit, threshold, detail, cause)


async def _warmed_up(probe: MetricProbe) -> Number:
    """A share of time needs two readings."""
    for _ in range(LOOKS - 1):
        try:
            return await probe.read()
        except ProbeFailed as failure:
            if failure.cause is not Cause.WARMING_UP:
                raise
        await asyncio.sleep(WARM_UP_S)
    return await probe.read()


# --- a server that has no settings file yet ----------------------------------------------------


def discover(name: str, engine: Engine, dsn: str, password: str | None) -> Discovery:
    """What it is, and what of it can be measured; ProbeFailed where it cannot be reached."""
    return asyncio.run(_discover(name, engine, dsn, password))


async def _discover(name: str, engine: Engine, dsn: str, password: str | None) -> Discovery:
    here = is_here(parts_of(name, engine, dsn).host)
    names = [*SUGGESTED, *(OFFERED if here else OFFERED_ANYWHERE)]
    specs = [
        parse_metric_settings(one, {}, engine) for one in names if engine in BUILTINS[one].engines
    ]
    found, _ = await _seen(name, engine, dsn, DatabaseProbes(name, engine, dsn, password), specs)
    return found


async def discover_database(database: DatabaseSettings) -> tuple[Discovery, float | None]:
    """With the metrics of its settings; and how far its clock is ahead of this host's, where that
    is known. ProbeFailed where it cannot be reached."""
    probes, specs = probes_of(database), list(database.metrics.values())
    return await _seen(database.name, database.engine, database.dsn, probes, specs)


async def _seen(
    name: str, engine: Engine, dsn: str, probes: DatabaseProbes, specs: Sequence[MetricSpec]
) -> tuple[Discovery, float | None]:
    role = probes.role_probe(timeout_s=CONNECT_S)
    try:
        facts = await probes.server_facts(timeout_s=2 * CONNECT_S).read()
        try:
            seen = await role.read()
        except ProbeFailed:  # The metrics say which right is missing.
            seen = None
        looks = [await _read_metric(name, probes, spec) for spec in specs]
    finally:
        await role.close()
        await probes.close()
    where = parts_of(name, engine, dsn).where
    prefix = f"{name} at {where}: "
    looks = [look._replace(detail=look.detail.replace(prefix, "")) for look in looks]
    if seen is None:
        return Discovery(engine, where, facts, looks), None
    is_replica = seen.role is Role.REPLICA
    found = Discovery(engine, where, facts, looks, is_replica, len(seen.downstream))
    return found, seen.clock_ahead_s


def calibrate(settings_path: Path, database: str) -> dict[str, float | str]:
    """Measure commits of an idle database, and propose a threshold for commit_delay."""
    settings = load_settings(settings_path)
    if database not in settings.databases:
        known = ", ".join(sorted(settings.databases)) or "none"
        message = f"no such database; configured: {known}"
        raise InvalidSettings([Fault(f"databases.{database}", message)], str(settings_path))
    return asyncio.run(_calibrate(settings.databases[database]))


async def _calibrate(database: DatabaseSettings) -> dict[str, float | str]:
    probes = probes_of(database)
    spec = parse_metric_settings("commit_delay", {"timeout_s": 5.0}, database.engine)
    probe = probes.probe_for(spec)
    try:
        async with asyncio.timeout(CALIBRATION_TIMEOUT_S):
            found = await commit_baseline(probe)
    finally:
        await probe.close()
        await probes.close()
    return {
        "database": database.name,
        "commits": found.count,
        "p50_s": found.p50_s,
        "p99_s": found.p99_s,
        "suggested_threshold_s": found.suggested_s,
    }
