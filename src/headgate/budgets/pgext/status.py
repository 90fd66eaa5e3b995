"""What is published, what is in force, and what is wrong, of one server, as a document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from headgate.base.ports import Clock
from headgate.budgets.compiled import CompiledPolicy, read_compiled
from headgate.budgets.pgext import directory as files
from headgate.budgets.pgext.directory import MAX_POLICY_BYTES
from headgate.budgets.pgext.meter import RegionMeter
from headgate.budgets.policy import Mode
from headgate.budgets.readings import BudgetReadings, ServerHealth
from headgate.errors import InvalidSettings, PolicyRefused

FULL = 0.8
"""Of its capacity or its workers: a budget that has reached this is worth a look."""
RECENT_S = 300.0
MAX_TROUBLED = 100
Document = dict[str, Any]


def status_of(directory: Path, clock: Clock) -> Document:
    """MeterFailed where the server's memory cannot be read."""
    meter = RegionMeter(directory)
    server, readings = meter.read_now()
    published = _published(directory)
    wall_s = clock.now().wall_s
    in_force = _in_force(readings, off=meter.off)
    return {
        "directory": str(directory),
        "source": "region",
        "server": {
            "pid": server.pid,
            "version_num": server.server_version_num,
            "extension": server.extension,
            "max_connections": server.max_connections,
            "cpus": server.cpus_milli / 1000,
            "started_s_ago": wall_s - readings.started_ms / 1000,
        },
        "published": published,
        "in_force": in_force,
        "health": _health(readings, wall_s),
        "backends": [
            {"pid": s.pid, "version": s.version, "checksum": f"{s.checksum:08x}"}
            for s in readings.seats
        ],
        "budgets": in_trouble(_budget(name, readings, wall_s) for name in readings.budgets),
        "problems": list(problems_of(published, in_force)),
    }


def _published(directory: Path) -> Document | None:
    """The file as it lies there; None if there is none."""
    path = directory / files.POLICY_FILE
    try:
        with files.opened(directory) as folder:
            body = folder.read(files.POLICY_FILE, MAX_POLICY_BYTES)
        if body is None:
            return None
        return _described(read_compiled(body, str(path)), path)
    except (InvalidSettings, PolicyRefused) as error:
        return {"fault": str(error)}


def _described(found: CompiledPolicy, path: Path) -> Document:
    return {
        "version": found.version,
        "checksum": found.checksum,
        "off": found.off,
        "bytes": found.length,
        "budgets": len(found.policy.budgets),
        "enforced": sum(b.mode is Mode.ENFORCE for b in found.policy.budgets),
        "rules": found.rules,
        "file": str(path),
    }


def _in_force(readings: BudgetReadings, *, off: bool) -> Document:
    return {
        "version": readings.version,
        "checksum": f"{readings.checksum:08x}",
        "enabled": readings.enabled,
        "off": off,
        "since_ms": readings.published_ms,
        "refused": readings.refused,
        "refusal": readings.refusal,
    }


def _health(readings: BudgetReadings, wall_s: float) -> Document:
    left_s = readings.health_until_ms / 1000 - wall_s
    known = readings.health is not ServerHealth.UNKNOWN and left_s > 0
    told = readings.health if known else ServerHealth.UNKNOWN
    return {"state": told.value, "until_s": max(left_s, 0) if known else None}


def in_trouble(rows: Iterable[Document]) -> list[Document]:
    """Those of the budgets that are full, hold sessions back, or were violated lately."""
    chosen = [row for row in rows if row["trouble"]]
    chosen.sort(key=lambda row: (-(row["fill"] or 0), -row["blocked"], row["budget"]))
    return chosen[:MAX_TROUBLED]


def _budget(name: str, readings: BudgetReadings, wall_s: float) -> Document:
    counts = readings.budgets[name]
    buckets = [bucket for bucket in readings.buckets if bucket.budget == name]
    fullest = max(buckets, key=lambda bucket: bucket.fill or 0, default=None)
    since = wall_s - counts.last_violation_ms / 1000 if counts.last_violation_ms else None
    row: Document = {
        "budget": name,
        "fill": None if fullest is None else fullest.fill,
        "bucket": "" if fullest is None else fullest.label,
        "running": sum(bucket.running for bucket in buckets),
        "sleeping": counts.sleeping,
        "admitted": counts.admitted,
        "warned": sum(counts.warned.values()),
        "blocked": sum(counts.blocked.values()),
        "delayed": counts.delayed,
        "last_violation_s_ago": since,
    }
    full = any(
        bucket.max_workers is not None and bucket.running >= bucket.max_workers > 0
        for bucket in buckets
    )
    row["trouble"] = list(troubles(row, full=full))
    return row


def troubles(row: Mapping[str, Any], *, full: bool) -> Iterator[str]:
    if (row["fill"] or 0) >= FULL:
        yield f"its bucket is {row['fill']:.0%} full"
    if full:
        yield "all its workers are in use"
    if row["sleeping"]:
        yield f"{row['sleeping']} sessions are delayed by a budget"
    if row["last_violation_s_ago"] is not None and row["last_violation_s_ago"] < RECENT_S:
        yield "violated in the last five minutes"


def problems_of(published: Mapping[str, Any] | None, in_force: Mapping[str, Any]) -> Iterator[str]:
    """What is not as it should be. A budget that blocks is at work, and none of these."""
    if published is not None and "fault" in published:
        yield (
            f"the published file cannot be used: {published['fault']}; version "
            f"{in_force['version']} stays in force"
        )
    elif published is not None and published["version"] > in_force["version"]:
        yield _not_taken(published, in_force)
    elif published is not None and _differs(published, in_force):
        yield (
            f"version {in_force['version']} is in force with checksum {in_force['checksum']}, "
            f"and the file has version {published['version']} with {published['checksum']}: "
            "publish again"
        )
    if not in_force["enabled"]:
        yield "pg_headgate.enabled is off: budgets have no effect, whatever is published"


def _not_taken(published: Mapping[str, Any], in_force: Mapping[str, Any]) -> str:
    still = f"version {in_force['version']} is in force" if in_force["version"] else "none is"
    if in_force["refusal"]:
        return (
            f"version {published['version']} is published, but {still}; the last policy that "
            f"the server did not take: {in_force['refusal']}"
        )
    return (
        f"version {published['version']} is published, but {still}: the server takes it with the "
        "next statement of any session"
    )


def _differs(published: Mapping[str, Any], in_force: Mapping[str, Any]) -> bool:
    return (published["version"], published["checksum"]) != (
        in_force["version"],
        in_force["checksum"],
    )
