"""What the command line does with a settings file and without an agent: validate it, read its
metrics once, propose a threshold."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path

from headgate.base.assemble import faults_of, peer_access
from headgate.base.clock import SystemClock
from headgate.budgets.assemble import traffic_faults
from headgate.errors import Fault, InvalidSettings, ProbeFailed
from headgate.fleet.assemble import access_faults
from headgate.history.assemble import webhook_of
from headgate.http.assemble import start_faults
from headgate.metrics.assemble import probe_faults, probes_of
from headgate.metrics.lint import MetricLook
from headgate.metrics.model import MetricSpec
from headgate.metrics.probes.factory import DatabaseProbes
from headgate.metrics.probes.numbers import commit_baseline
from headgate.metrics.samples import Measured
from headgate.metrics.settings import parse_metric_settings
from headgate.settings.agent import Settings, examine_settings, load_settings
from headgate.settings.document import placed, settings_text
from headgate.settings.sections import DatabaseSettings
from headgate.shard.assemble import rollup_plugins, url_faults
from headgate.shard.settings import plugin_faults
from headgate.tracing.assemble import check_tracing

CALIBRATION_TIMEOUT_S = 60.0
CONNECT_S = 5.0


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
    threshold = f"{spec.comparison.value} {spec.threshold:g}"
    value, detail = None, ""
    try:
        # The first look connects, which a metric's own timeout does not allow for.
        async with asyncio.timeout(spec.timeout_s + CONNECT_S):
            number = await probe.read()
        value, detail = (
            (number.value, number.detail) if isinstance(number, Measured) else (number, "")
        )
    except ProbeFailed as failure:
        detail = f"{failure.cause.value}: {failure.detail}"
    except TimeoutError:
        detail = f"no answer in {spec.timeout_s + CONNECT_S:g} s"
    finally:
        await probe.close()
    return MetricLook(database, spec.name, value, spec.unit, threshold, detail)


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
