"""A region, written by the core and read from outside; and the ledger over memory of any kind."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import pytest

from headgate.budgets.compiled import compile_policy
from headgate.budgets.model import (
    Limit,
    Match,
    StatementCheck,
    StatementFlags,
    StatementVerdict,
    budget_key,
)
from headgate.budgets.native.ledger import NativeLedger, region_bytes, region_sizes
from headgate.budgets.native.region import RegionView
from headgate.budgets.parse import parse_policy
from headgate.errors import MeterFailed, PolicyRejected

S = 1_000_000_000
ETL = {"name": "etl", "mode": "enforce", "rate": 10, "capacity": 100, "max_workers": 2}
"""Of two CPUs: 2 s of CPU fit, and 200 ms drain in a second."""
SMALL = {"budgets": 16, "buckets": 16, "patterns": 4, "policy_bytes": 4096}


def compiled(*budgets: dict[str, Any], version: int = 1) -> bytes:
    return compile_policy(parse_policy({"budgets": list(budgets)}), version)


def ledger(**sizes: int) -> NativeLedger:
    made = NativeLedger(cpus_milli=2000, workers=20, sizes=region_sizes(**{**SMALL, **sizes}))
    made.publish(compiled(ETL), wall_ms=77)
    return made


def etl(label: bytes = b"") -> Sequence[Match]:
    return [Match(0, 0, budget_key("etl"), label)]


def given(cost_ns: int, now_ns: int = S) -> StatementCheck:
    return StatementCheck(now_ns, wall_ms=5, cost_ns=cost_ns, flags=StatementFlags.COST_GIVEN)


def test_the_head_says_what_is_in_force() -> None:
    made = ledger()
    head = made.view.head()
    assert (head.version, head.published_ms, head.enabled) == (1, 77, True)
    assert (head.cpus_milli, head.workers, head.host.calls) == (2000, 20, 0)
    assert head.crc == int.from_bytes(compiled(ETL)[12:16], "little")
    assert made.view.policy() == compiled(ETL)


def test_a_rejected_policy_leaves_the_last_good_one_and_its_reason() -> None:
    """R132."""
    made = ledger()
    with pytest.raises(PolicyRejected, match="not newer"):
        made.publish(compiled({**ETL, "rate": 20}))
    with pytest.raises(PolicyRejected, match="checksum"):
        made.publish(compiled(ETL, version=2)[:-1] + b"x")
    head = made.view.head()
    assert (head.version, head.rejected_policies) == (1, 2)
    assert "checksum" in head.rejection
    made.publish(compiled({**ETL, "rate": 20}), force=True)
    assert made.view.policy() == compiled({**ETL, "rate": 20})


def test_health_is_told_with_an_end() -> None:
    made = ledger()
    assert made.view.head().healthy(0) is None
    made.tell_health(False, 2000)
    assert made.view.head().healthy(1999) is False
    assert made.view.head().healthy(2000) is None
    made.tell_health(True, 3000)
    assert made.view.head().healthy(2000) is True


def test_a_seat_shows_its_policy() -> None:
    made = ledger(seats=4)
    made.check([], given(1))
    (seat,) = made.view.seats()
    assert (seat.index, seat.version, seat.crc) == (0, 1, made.view.head().crc)
    assert seat.pid > 0


def test_buckets_show_what_they_owe_and_who_is_in_them() -> None:
    made = ledger()
    _, holding = made.take(etl(b"tenant=acme"), given(S))
    assert holding is not None
    (bucket,) = made.view.buckets(S)
    assert (bucket.label, bucket.debt_ns, bucket.fill) == (b"tenant=acme", S, 0.5)
    assert (bucket.statements, bucket.workers, bucket.live) == (1, 1, True)
    (later,) = made.view.buckets(2 * S)
    assert later.debt_ns == 800_000_000
    made.settle(holding, S, S)
    (emptied,) = made.view.buckets(10 * S)
    assert (emptied.debt_ns, emptied.live) == (0, False)


def test_counts_and_patterns_are_read_as_they_were_counted() -> None:
    made = ledger()
    answer, holding = made.take(etl(), StatementCheck(S, plan_cost=10.0, pattern=77))
    assert holding is not None
    made.settle(holding, 100_000, S)
    assert made.take(etl(), given(3 * S))[0].verdict is StatementVerdict.BLOCK
    (count,) = made.view.counts()
    assert (count.name, count.admitted, count.charged_ns) == ("etl", 1, 100_000)
    assert count.estimated_ns == answer.estimate_ns == 50_000
    (pattern,) = made.view.patterns()
    known = pattern.known
    assert (pattern.key, known.calls, known.error) == (77, 1, 0.5)
    assert known.whole.typical_estimate.mean_ns == pytest.approx(100_000, rel=1e-5)
    assert made.view.head().host == known.whole


def test_a_rejection_is_told_in_full() -> None:
    made = ledger()
    _, holding = made.take(etl(), given(S))
    answer, nothing = made.take(etl(), given(S + 1))
    assert (answer.verdict, answer.limits, nothing) == (
        StatementVerdict.BLOCK,
        (Limit.BUCKET,),
        None,
    )
    assert (answer.used, answer.bound, answer.retry_ns) == (S, 2 * S, 5)
    assert holding is not None
    made.settle(holding, 0, S, aborted=True)
    assert made.take(etl(), given(S + 1))[0].verdict is StatementVerdict.RUN


@pytest.mark.parametrize("shift", range(0, 64, 8))
def test_any_bytes_may_hold_a_region_if_they_are_enough(shift: int) -> None:
    sizes = region_sizes(**SMALL)
    memory = bytearray(region_bytes(sizes) + 64 + shift)
    made = NativeLedger(cpus_milli=1000, workers=1, sizes=sizes, memory=memory)
    made.publish(compiled(ETL))
    assert made.take(etl(), given(1))[0].verdict is StatementVerdict.RUN


def test_two_ledgers_may_share_a_region() -> None:
    sizes = region_sizes(**{**SMALL, "seats": 2})
    memory = mmap.mmap(-1, region_bytes(sizes))
    one = NativeLedger(cpus_milli=2000, workers=20, sizes=sizes, memory=memory)
    one.publish(compiled(ETL))
    two = NativeLedger(cpus_milli=2000, workers=20, sizes=sizes, memory=memory, seat=1)
    holdings = [ledger.take(etl(), given(1))[1] for ledger in (one, two)]
    assert one.check(etl(), given(1)).limits == (Limit.CONCURRENCY,)
    for holding in holdings:
        assert holding is not None
        two.settle(holding, 1, S)
    assert one.check(etl(), given(1)).verdict is StatementVerdict.RUN
    with pytest.raises(ValueError, match="seat 2: the region has 2"):
        NativeLedger(cpus_milli=2000, workers=20, sizes=sizes, memory=memory, seat=2)


def test_what_cannot_be_is_rejected_with_a_reason() -> None:
    with pytest.raises(ValueError, match=r"buckets 15.*powers of two"):
        region_bytes(region_sizes(buckets=15))
    with pytest.raises(ValueError, match="less memory than the sizes ask for"):
        NativeLedger(cpus_milli=1, workers=1, memory=bytearray(5000))
    bare = NativeLedger(cpus_milli=1, workers=1, sizes=region_sizes(**SMALL))
    assert bare.take([], given(1))[0].verdict is StatementVerdict.RUN
    with pytest.raises(ValueError, match="publish one first"):
        bare.check(etl(), given(1))
    with pytest.raises(ValueError, match="33 matches"):
        ledger().check([*etl()] * 33, given(1))


# --- out of band ------------------------------------------------------------------------------


def raw() -> bytearray:
    sizes = region_sizes(**SMALL)
    memory = mmap.mmap(-1, region_bytes(sizes))
    made = NativeLedger(cpus_milli=2000, workers=20, sizes=sizes, memory=memory)
    made.publish(compiled(ETL))
    made.take(etl(), given(S))
    return bytearray(memory[:])


def test_a_view_writes_nothing_and_needs_no_right_to() -> None:
    view = RegionView(bytes(raw()))
    assert view.head().version == 1
    assert [bucket.debt_ns for bucket in view.buckets(S)] == [S]


@pytest.mark.parametrize(
    ("at", "value", "fault"),
    [
        (0, b"XXREGION", "its signature is wrong"),
        (8, (9).to_bytes(4, "little"), "format 9, and this headgate reads 3"),
        (12, bytes(4), "sizes that no region has"),
        (32, (2**31).to_bytes(4, "little"), "do not lie within"),
        (56, (2**63).to_bytes(8, "little"), "do not lie within"),
        (56, bytes(8), "do not lie within"),
    ],
)
def test_nothing_in_a_foreign_region_is_trusted(at: int, value: bytes, fault: str) -> None:
    memory = raw()
    memory[at : at + len(value)] = value
    with pytest.raises(MeterFailed, match=fault):
        RegionView(memory)


@pytest.mark.parametrize("length", [0, 100, 5000])
def test_a_region_that_is_cut_off_is_rejected(length: int) -> None:
    with pytest.raises(MeterFailed, match="cannot be read as a region"):
        RegionView(raw()[:length])


def test_a_policy_half_written_is_not_shown() -> None:
    """A publisher may be at it while one reads."""
    memory = raw()
    at = memory.index(b"HGPOLICY")
    memory[at + 100] ^= 0xFF
    view = RegionView(memory)
    assert view.policy() is None
    (bucket,) = view.buckets(S)
    assert (bucket.debt_ns, bucket.fill) == (S, None)


def test_a_bucket_that_is_being_filled_is_left_out() -> None:
    memory = raw()
    key = budget_key("etl").to_bytes(8, "little")
    at = RegionView(memory)._places.bucket_keys_at
    found = memory.index(key, at)
    memory[found : found + 8] = (1).to_bytes(8, "little")
    assert RegionView(memory).buckets(S) == []
