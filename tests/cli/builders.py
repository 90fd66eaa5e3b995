"""The agent's documents, made with the structs that the agent itself makes them with."""

from __future__ import annotations

from typing import Any

import msgspec

from headgate.check.answer_api import AnswerDoc, DebitDoc, MetricDoc
from headgate.check.api import (
    ClientDoc,
    DatabaseDoc,
    MetricView,
    RemovedDoc,
    StatusDoc,
    StoreDoc,
)
from headgate.pacing.api import PaceDoc
from headgate.rules.api import ExplainDoc
from headgate.shard.api import MemberDoc, ShardDoc

Doc = dict[str, Any]


def metric(name: str = "lag", **given: Any) -> Doc:
    values: Doc = {
        "metric": name,
        "scope": "host",
        "state": "healthy",
        "value": 0.8,
        "unit": "s",
        "threshold": 5.0,
        "comparison": ">",
        "age_ms": 412,
        "cause": None,
        "detail": "",
        "unavailable_for_ms": None,
    }
    return _doc(MetricDoc, values, given)


def breached(name: str = "lag", value: float = 7.2, **given: Any) -> Doc:
    return metric(name, **{"state": "breached", "value": value, **given})


def absent(name: str = "threads_running", **given: Any) -> Doc:
    values = {
        "state": "unavailable",
        "value": None,
        "unit": "",
        "threshold": 100.0,
        "age_ms": None,
        "cause": "timed_out",
        "detail": "no answer in 0.5 s",
        "unavailable_for_ms": 2210,
    }
    return metric(name, **{**values, **given})


def answer(**given: Any) -> Doc:
    values: Doc = {
        "verdict": "OK",
        "admitted": True,
        "app": "etl:nightly",
        "database": "main",
        "reason": "",
        "retry_after_ms": None,
        "utilization": 0.16,
        "rule": None,
        "rules": [],
        "exempted": [],
        "dice_waived": False,
        "read_only": False,
        "check_at": None,
        "check_at_database": None,
        "budget": None,
        "metrics": [],
    }
    return _doc(AnswerDoc, values, given)


def explained(doc: Doc, **given: Any) -> Doc:
    """An answer with what an explanation adds to it."""
    values: Doc = {"matched": [], "needed": [], "fairness": None, "odds": None, "pace": None}
    return _doc(ExplainDoc, {**doc, **values}, given)


def debit(**given: Any) -> Doc:
    values: Doc = {
        "budget": "etl",
        "state": "charged",
        "cost_s": 0.5,
        "debt_s": 0.0,
        "capacity_s": 1.0,
        "note": "",
        "ledger": "the agent's own",
    }
    return _doc(DebitDoc, values, given)


def rejection(verdict: str = "THRESHOLD_EXCEEDED", **given: Any) -> Doc:
    values = {
        "verdict": verdict,
        "admitted": False,
        "reason": "main: lag is 7.2 s, above its threshold of 5 s (measured 412 ms ago)",
        "retry_after_ms": 1430,
        "utilization": 1.44,
        "metrics": [breached(), absent()],
    }
    return answer(**{**values, **given})


def metric_view(name: str = "lag", **given: Any) -> Doc:
    values: Doc = {
        "database": "main",
        "metric": name,
        "source": "builtin",
        "origin": "file",
        "revision": 0,
        "settings": {"threshold": 5},
        "file": {"threshold": 5},
        "in_default": True,
        "interval_s": 1.0,
        "timeout_s": 0.5,
        "max_age_s": 2.5,
        "granularity_s": 1.0,
        "now": metric(name),
        "advice": [],
        "expires_at": None,
    }
    return _doc(MetricView, values, given)


def removed_metric(name: str = "lag", **given: Any) -> Doc:
    return _doc(RemovedDoc, {"database": "main", "metric": name, "removed": True}, given)


def client(name: str = "etl:nightly", **given: Any) -> Doc:
    values: Doc = {
        "client": name,
        "database": "main",
        "admitted": 1200,
        "rejected": 40,
        "last_verdict": "OK",
        "last_seen_s_ago": 0.2,
        "rejected_for_s": None,
        "rejected_by": "",
    }
    return _doc(ClientDoc, values, given)


def database(name: str = "main", **given: Any) -> Doc:
    values: Doc = {
        "database": name,
        "engine": "postgres",
        "verdict": "OK",
        "reason": "",
        "healthy_s_ago": 0.0,
        "metrics": [metric(), metric("threads_running", value=12.0, unit="", threshold=100.0)],
        "other_metrics": [],
        "role": None,
        "activity": "awake",
        "shard": None,
        "pace": None,
    }
    return _doc(DatabaseDoc, values, given)


def pace(**given: Any) -> Doc:
    values: Doc = {
        "rate": 12.34,
        "sustained": 11.0,
        "starting": False,
        "metric": "lag",
        "set_points": [
            {
                "metric": "lag",
                "scope": "host",
                "value": 2.4,
                "set_point": 2.5,
                "threshold": 5.0,
                "unit": "s",
            }
        ],
        "cost_total": 4000.0,
        "paced_total": 77,
        "clients": ["etl:nightly", "purge"],
        "clients_total": 2,
    }
    return _doc(PaceDoc, values, given)


def member(name: str = "db-b", **given: Any) -> Doc:
    values: Doc = {
        "member": name,
        "url": f"https://{name}:8087",
        "here": False,
        "role": "replica",
        "role_detail": "",
        "term": 3,
        "upstream": "db-a:5432",
        "upstream_member": "db-a",
        "bytes_behind": 4096,
        "labels": {"region": "eu"},
        "activity": "awake",
        "reachable": True,
        "problem": "",
        "unreachable_for_s": None,
        "reported_s_ago": 0.1,
        "joined_s_ago": None,
        "checked_s_ago": 12.0,
        "clock_ahead_s": 0.002,
        "skip": None,
        "readings": [metric("lag", value=0.02)],
        "skipped_metrics": {},
        "skip_kinds": {},
        "hopeless": [],
        "copy": None,
    }
    return _doc(MemberDoc, values, given)


def primary(name: str = "db-a", **given: Any) -> Doc:
    threads = metric("threads_running", value=12.0, unit="", threshold=100.0)
    values: Doc = {
        "here": True,
        "role": "primary",
        "upstream": "",
        "upstream_member": None,
        "bytes_behind": None,
        "clock_ahead_s": None,
        "readings": [threads],
    }
    return member(name, **{**values, **given})


def shard(**given: Any) -> Doc:
    values: Doc = {
        "shard": "commerce/-80",
        "database": "main",
        "member": "db-a",
        "state": "leading",
        "primary": "db-a",
        "primary_url": None,
        "term": 3,
        "cause": None,
        "detail": "",
        "warming_up": None,
        "members": [primary(), member()],
        "unwatched": [],
        "collect_interval_s": 0.25,
        "messages_total": 1204,
        "notes": [],
        "costs": [
            {"state": "awake", "probes": 5120, "messages": 1204, "beats": 960},
            {"state": "idle", "probes": 12, "messages": 3, "beats": 0},
            {"state": "hibernating", "probes": 0, "messages": 0, "beats": 0},
        ],
    }
    return _doc(ShardDoc, values, given)


def troubled_shard() -> Doc:
    """3 a.m.: one replica is rebuilt, one is gone, one sleeps, one is on a dead branch."""
    why = "skipped by ops for another 20 min: rebuild"
    return shard(
        members=[
            primary(),
            member(),
            member("db-b2", upstream="db-b:5432", upstream_member="db-b"),
            member(
                "db-c",
                readings=[breached("lag", 8.1, cause="replication_stopped", detail="paused")],
                skipped_metrics={"lag": why},
                skip={"member": "db-c", "who": "ops", "reason": "rebuild", "until_s": 1200.0},
            ),
            member(
                "db-d",
                reachable=False,
                role=None,
                role_detail="connection refused",
                problem="https://db-d:8087: connection refused",
                unreachable_for_s=42.0,
                readings=[],
            ),
            member(
                "db-e",
                activity="hibernating",
                readings=[absent("lag", cause="hibernating", detail="nobody asks", value=None)],
            ),
            member(
                "db-f",
                problem="it is on timeline 2, the primary on 3",
                term=2,
                clock_ahead_s=0.31,
            ),
        ],
        unwatched=[{"name": "", "host": "10.0.0.9", "port": None, "bytes_behind": 4096}],
    )


def status(**given: Any) -> Doc:
    values: Doc = {
        "agent": "db1",
        "version": "0.1.0",
        "uptime_s": 11_520.0,
        "settings": "/etc/headgate/headgate.toml",
        "settings_fault": None,
        "state_lost": None,
        "databases": [database()],
        "clients": [client()],
        "store": {
            "name": "sqlite",
            "writable": True,
            "fault": None,
            "fault_for_s": None,
            "tallies_waiting": 0,
        },
        "advice": [],
        "fleet": None,
    }
    msgspec.convert(values["store"], StoreDoc)
    return _doc(StatusDoc, values, given)


def busy_status() -> Doc:
    """3 a.m.: one database rejects, one is well, one cannot be read."""
    main = database(
        verdict="THRESHOLD_EXCEEDED",
        reason="main: lag is 7.2 s, above its threshold of 5 s (measured 412 ms ago)",
        healthy_s_ago=12.4,
        metrics=[
            breached(),
            absent(),
            metric("commit_delay", value=0.0031, threshold=0.05, age_ms=140),
            metric("pool_usage", value=0.92, unit="ratio", threshold=1.0, comparison=">="),
            metric("queue_depth", value=412.0, unit="", threshold=1000.0, scope="shard"),
            metric(
                "loadavg",
                value=0.7,
                unit="per core",
                threshold=1.0,
                state="last_value",
                cause="failed",
                detail="permission denied",
                unavailable_for_ms=4000,
                age_ms=4100,
            ),
        ],
    )
    orders = database("orders", engine="mysql")
    clients = [
        client("etl:nightly", rejected_for_s=754.0, rejected_by="lag", last_verdict="X"),
        client("d666bbfc:vcopier:vreplication:online-ddl", admitted=88231, rejected=0),
        client("backfill:users", database="orders", rejected=0, last_seen_s_ago=62.0),
    ]
    advice = ["warning databases.main.metrics.lag.threshold: 1 s is about as fine as it can be"]
    return status(databases=[main, orders], clients=clients, advice=advice)


def _doc(kind: type[Any], values: Doc, given: Doc) -> Doc:
    built: Doc = msgspec.to_builtins(msgspec.convert({**values, **given}, kind))
    return built
