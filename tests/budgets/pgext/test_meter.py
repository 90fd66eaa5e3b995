"""Counters are read from outside; what cannot be read has its reason, and is never a zero."""

from __future__ import annotations

import ctypes
import os
import struct
import time
from pathlib import Path

import pytest

from headgate.budgets.compiled import compile_policy
from headgate.budgets.model import budget_key
from headgate.budgets.native.layout import HgBucket, HgCount, HgLine, HgPattern, HgSeat
from headgate.budgets.pgext.debits import RegionLedger
from headgate.budgets.pgext.directory import SERVER_FILE
from headgate.budgets.pgext.meter import RegionMeter, force_in
from headgate.budgets.readings import ServerHealth
from headgate.errors import MeterFailed
from tests.budgets.pgext.builders import (
    F_SEAL_GROW,
    KEY_BYTES,
    memory_of,
    owner_only,
    policy,
    put,
    region,
    region_file,
    write_server_file,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return owner_only(tmp_path / "pg_headgate")


def filled() -> bytearray:
    """Version 12, under which `etl` has blocked, owes and runs."""
    etl = {"name": "etl", "mode": "enforce", "rate": 50, "capacity": 100, "max_workers": 3}
    body, key = compile_policy(policy(etl), 12), budget_key("etl")
    told = {"health": 2, "health_until_ms": 99, "rejected_policies": 1, "rejection": b"too large"}
    head = region(version=12, crc=int.from_bytes(body[12:16], "little"), area=2, **told)
    memory = memory_of(head)
    memory[head.areas_at[1] : head.areas_at[1] + len(body)] = body
    put(memory, head.seats_at + ctypes.sizeof(HgSeat), HgSeat(pid=77, version=11, statements=9))
    counts = HgCount(key=key, sleeping=2, last_violation_ms=1234, name=b"etl")
    counts.warned[:], counts.blocked[:] = (1, 2, 3, 4), (5, 6, 7, 8)
    put(memory, head.counts_at, counts)
    struct.pack_into("<Q", memory, head.bucket_keys_at + 3 * KEY_BYTES, 4711)
    owing = {"empty_at_ns": time.monotonic_ns() + 6_000_000_000_000, "rate_mpct": 50_000}
    bucket = HgBucket(budget_key=key, workers=2, statements=1, label_length=11, **owing)
    bucket.label[:11] = b"tenant=acme"
    put(memory, head.buckets_at + 3 * ctypes.sizeof(HgBucket), bucket)
    whole = HgLine(calls=3, plan_cost=2.0, cpu=6.0, variance=1.0)
    known = HgPattern(key=9, calls=3, error=0.5, query_id=42, whole=whole)
    put(memory, head.patterns_at + ctypes.sizeof(HgPattern), known)
    return memory


async def test_everything_counted_is_read(folder: Path) -> None:
    """R137: violations, fill and k, without a connection."""
    with region_file(folder, filled()):
        readings = await RegionMeter(folder).read()
    assert (readings.version, readings.rejected, readings.rejection) == (12, 1, "too large")
    assert readings.health is ServerHealth.UNHEALTHY
    assert [(seat.pid, seat.version) for seat in readings.seats] == [(77, 11)]
    counts = readings.budgets["etl"]
    assert counts.warned == {"threshold": 1, "concurrency": 2, "burst": 3, "capacity": 4}
    assert counts.blocked == {"concurrency": 6, "burst": 7, "capacity": 8}
    assert (counts.early, counts.sleeping, counts.last_violation_ms) == (5, 2, 1234)
    (bucket,) = readings.buckets
    assert (bucket.budget, bucket.label) == ("etl", "tenant=acme")
    assert (bucket.running, bucket.max_workers, bucket.capacity_ns) == (2, 3, 2_000_000_000)
    assert bucket.fill is not None and 2900 < bucket.fill <= 3000
    (pattern,) = readings.patterns
    assert (pattern.query_id, pattern.k, pattern.error) == (42, 16.0, 0.5)
    assert 64 < pattern.cpu_mean_ns < pattern.cpu_p90_ns < 200


def test_no_policy_is_no_policy(folder: Path) -> None:
    with region_file(folder, memory_of(region())):
        _, readings = RegionMeter(folder).read_now()
        assert (readings.version, readings.buckets, dict(readings.budgets)) == (0, (), {})
        assert force_in(folder).statements == 0


def test_a_restarted_server_is_found_again(folder: Path) -> None:
    meter = RegionMeter(folder)
    with region_file(folder, memory_of(region(started_ms=1))):
        assert meter.read_now()[1].started_ms == 1
    with pytest.raises(MeterFailed, match="is not running"):
        meter.read_now()
    with region_file(folder, memory_of(region(started_ms=2))):
        assert meter.read_now()[1].started_ms == 2


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"magic": b"HGPOLICY"}, "its signature is wrong"),
        ({"format": 1}, "format 1.*the same version"),
        ({"counts_at": 1 << 40}, "do not lie within"),
    ],
)
def test_a_region_that_is_none_is_rejected(folder: Path, given: dict[str, int], why: str) -> None:
    with region_file(folder, memory_of(region(**given))), pytest.raises(MeterFailed, match=why):
        RegionMeter(folder).read_now()


def test_memory_that_could_shrink_under_us_is_not_mapped(folder: Path) -> None:
    with (
        region_file(folder, memory_of(region()), seals=F_SEAL_GROW),
        pytest.raises(MeterFailed, match="not sealed"),
    ):
        RegionMeter(folder).read_now()


def test_a_process_that_took_the_pid_is_not_the_server(folder: Path) -> None:
    with (folder / "other").open("wb") as other:
        write_server_file(folder, region_fd=other.fileno(), region_bytes=4096)
        with pytest.raises(MeterFailed, match="has ended or is another program"):
            RegionMeter(folder).read_now()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_process_of_another_user_is_not_the_server(folder: Path) -> None:
    """M5: who can write server.json leads a root agent to no memory but its own."""
    with region_file(folder, memory_of(region())):
        RegionMeter(folder).read_now()
        os.chown(folder, 65534, 65534)
        with pytest.raises(MeterFailed, match=r"is user 0's; the folder belongs to user 65534"):
            RegionMeter(folder).read_now()
        ledger = RegionLedger(folder)
        ledger.tend_now()
        assert "belongs to user 65534, and this is user 0" in ledger.fault


def test_a_server_that_is_gone_is_named(folder: Path) -> None:
    write_server_file(folder, pid=2**22 - 1, region_fd=5, region_bytes=4096)
    with pytest.raises(MeterFailed, match=r"process 4194303.*has ended"):
        RegionMeter(folder).read_now()


def test_a_server_without_the_extension_says_what_to_do(folder: Path) -> None:
    with pytest.raises(MeterFailed, match="headgate pg install"):
        RegionMeter(folder).read_now()


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"format": 1, "pid": "x"}', '"format"'])
def test_a_server_file_that_is_none_is_shown(folder: Path, body: str) -> None:
    (folder / SERVER_FILE).write_text(body)
    with pytest.raises(MeterFailed, match="is not what a server writes"):
        RegionMeter(folder).read_now()


def test_a_server_without_a_memory_file_points_to_sql(folder: Path) -> None:
    write_server_file(folder, region_fd=-1)
    with pytest.raises(MeterFailed, match="by SQL alone"):
        RegionMeter(folder).read_now()
