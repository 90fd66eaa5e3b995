"""Debits from outside and statements inside: one bucket, one core (R146)."""

from __future__ import annotations

import mmap
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
from headgate.budgets.native.debits import RegionDebits
from headgate.budgets.native.layout import HgRegion
from headgate.budgets.native.ledger import NativeLedger, region_bytes, region_sizes
from headgate.budgets.native.region import RegionView
from headgate.budgets.parse import parse_policy
from headgate.errors import MeterFailed

MS, S = 1_000_000, 1_000_000_000
ETL = budget_key("etl")
HALF: dict[str, Any] = {"name": "etl", "mode": "enforce", "rate": 50, "capacity": 100}


class Server:
    """A region with a policy in force, as a server has it."""

    def __init__(self, *budgets: dict[str, Any]) -> None:
        sizes = region_sizes()
        self.memory = mmap.mmap(-1, region_bytes(sizes))
        self.ledger = NativeLedger(cpus_milli=1000, workers=20, sizes=sizes, memory=self.memory)
        self.version = 0
        self.publish(*budgets)

    def publish(self, *budgets: dict[str, Any]) -> None:
        self.version += 1
        policy = parse_policy({"budgets": list(budgets)})
        self.ledger.publish(compile_policy(policy, self.version))

    def runs(self, cost_ns: int, now_ns: int) -> StatementVerdict:
        """A statement under the first budget."""
        ask = StatementCheck(now_ns, cost_ns=cost_ns, flags=StatementFlags.COST_GIVEN)
        answer, holding = self.ledger.take([Match(0, 0, ETL)], ask)
        if holding is not None:
            self.ledger.settle(holding, cost_ns, now_ns)
        return answer.verdict


def declared(cost_ns: int, now_ns: int = S) -> StatementCheck:
    return StatementCheck(
        now_ns, 1000, cost_ns=cost_ns, flags=StatementFlags.COST_GIVEN | StatementFlags.NO_DELAY
    )


def test_checks_and_statements_debit_one_bucket() -> None:
    server = Server(HALF)
    debits = RegionDebits(server.memory)
    assert server.runs(600 * MS, S) is StatementVerdict.RUN
    blocked = debits.debit(ETL, declared(600 * MS))
    assert blocked is not None
    assert (blocked.answer.verdict, blocked.answer.decided_by) == (
        StatementVerdict.BLOCK,
        Limit.BUCKET,
    )
    assert (blocked.debt_ns, blocked.answer.retry_ns) == (600 * MS, 400 * MS)
    admitted = debits.debit(ETL, declared(300 * MS))
    assert admitted is not None
    assert (admitted.answer.verdict, admitted.debt_ns) == (StatementVerdict.RUN, 600 * MS)
    assert server.runs(200 * MS, S) is StatementVerdict.BLOCK
    assert server.runs(100 * MS, S) is StatementVerdict.RUN


def test_a_debit_is_counted_as_what_it_is() -> None:
    """And holds no place afterwards: the counts of the server are right without it."""
    server = Server({**HALF, "max_workers": 1})
    debits = RegionDebits(server.memory)
    for _ in range(2):
        debits.debit(ETL, declared(400 * MS))
    debits.debit(ETL, declared(400 * MS))
    counts, (bucket,) = server.ledger.counts[ETL], server.ledger.buckets()
    assert (counts.admitted, counts.charged_ns) == (2, 800 * MS)
    assert counts.blocked[Limit.BUCKET] == 1
    assert counts.last_violation_ms == 1000
    assert (bucket.workers, bucket.statements) == (0, 0)
    assert server.ledger.host.calls == 0  # a declared cost teaches nothing


def test_looking_takes_nothing() -> None:
    server = Server(HALF)
    debits = RegionDebits(server.memory)
    for _ in range(2):
        looked = debits.debit(ETL, declared(S), only_look=True)
        assert looked is not None and looked.answer.admitted
    assert not list(server.ledger.buckets())


def test_a_new_policy_is_followed_at_once() -> None:
    server = Server(HALF)
    debits = RegionDebits(server.memory)
    assert debits.debit(budget_key("web"), declared(1)) is None
    server.publish({"name": "web", "mode": "enforce", "burst": 0}, {**HALF, "mode": "warn"})
    web = debits.debit(budget_key("web"), declared(1))
    assert web is not None and web.answer.decided_by is Limit.QUERY
    etl = debits.debit(ETL, declared(2 * S))
    assert etl is not None and etl.answer.verdict is StatementVerdict.WARN


def test_a_region_without_a_policy_knows_no_budget() -> None:
    sizes = region_sizes()
    memory = mmap.mmap(-1, region_bytes(sizes))
    NativeLedger(cpus_milli=1000, workers=20, sizes=sizes, memory=memory)
    assert RegionDebits(memory).debit(ETL, declared(1)) is None


def test_whoever_rewrites_the_head_moves_no_write_of_ours() -> None:
    """M5: it was checked once, and read again at each access."""
    server = Server(HALF)
    debits = RegionDebits(server.memory)
    assert debits.debit(ETL, declared(100 * MS)) is not None
    head = HgRegion.from_buffer(server.memory)
    for name in ("seats_at", "counts_at", "bucket_keys_at", "bucket_locks_at", "buckets_at"):
        setattr(head, name, 0x4141414141)
    head.sizes.buckets = head.sizes.budgets = 0xFFFF_FFFF
    head.cpus_milli = head.workers = 0
    for cost_ns in (100 * MS, 10 * S):
        charged = debits.debit(ETL, declared(cost_ns))
        assert charged is not None
    with pytest.raises(MeterFailed):
        RegionDebits(server.memory)


def test_a_policy_that_is_not_sound_is_not_gone_by() -> None:
    """M5: the server's user can write one there, past the check of its publication."""
    server = Server(HALF)
    policy = RegionView(memoryview(server.memory)).policy()
    assert policy is not None
    at = bytes(server.memory).index(policy)
    debits = RegionDebits(server.memory)
    server.memory[at + 100] ^= 0xFF
    assert debits.debit(ETL, declared(1)) is None
    server.memory[at + 100] ^= 0xFF
    assert RegionDebits(server.memory).debit(ETL, declared(1)) is not None


def test_memory_that_is_no_region_is_blocked() -> None:
    with pytest.raises(MeterFailed, match="no region that could be charged"):
        RegionDebits(mmap.mmap(-1, 1 << 16))
