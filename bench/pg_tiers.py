"""Who keeps going when the server is flooded (R127), and what one place at a time means (R128).

Part of bench.pg_long_run. Three tiers by a tag: look-ups that matter, reports that matter less,
and a flood of queries for which nobody waits. The flood begins in the middle of a run, and some
seconds later a policy is published that holds it. Latency is as the clients see it.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import NamedTuple

from tests.fixtures.pgkits import ExtendedServer

from bench import pg_kit, pg_policies
from bench.pg_kit import Workbench
from bench.pg_load import Load, Seen
from bench.pg_policies import Document
from bench.report import percentile, say

CRITICAL = "SELECT abalance FROM pgbench_accounts WHERE aid = $1 /*tier='critical'*/"
IMPORTANT = (
    "SELECT sum(abalance) FROM (SELECT abalance FROM pgbench_accounts WHERE aid >= $1"
    " ORDER BY aid LIMIT 1000) t /*tier='important'*/"
)
BEST_EFFORT = (
    "SELECT sum(abalance), count(*) FROM pgbench_accounts WHERE aid <= 30000 /*tier='best-effort'*/"
)
FLOODERS = 16
NO_POLICY: Document = {"budgets": []}
TIERS: Document = {
    "budgets": [
        pg_policies.budget(
            "important", {"tag.tier": "important"}, mode="enforce", rate=40, capacity=100
        ),
        pg_policies.budget(
            "best-effort", {"tag.tier": "best-effort"}, mode="enforce", rate=5, capacity=5,
            max_workers=1, max_delayed=2 * FLOODERS,
        ),
    ]
}  # fmt: skip
# Left out of a span: its first moments, in which connections are still being opened.
EDGE_S = 0.5
HEAD = ("span", "critical p50, ms", "p99, ms", "× calm", "important p99, ms", "× calm",
        "best-effort, done/s")  # fmt: skip


class Span(NamedTuple):
    name: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """One run; times are seconds since its beginning."""

    spans: tuple[Span, ...]
    critical: list[Seen]
    important: list[Seen]
    best_effort: list[Seen]

    def p_ms(self, seen: list[Seen], span: Span, share: float) -> float:
        return percentile([one.took_s * 1000 for one in done_in(seen, span)], share)


def done_in(seen: list[Seen], span: Span) -> list[Seen]:
    begin_s, end_s = span.begin_s + EDGE_S, span.end_s
    return [one for one in seen if one.outcome == "ok" and begin_s <= one.sent_s < end_s]


CALM, CALM_AGAIN, FLOOD, HELD = "calm", "calm again (A/A)", "flood, no policy", "flood, limited"


def timeline(bench: Workbench, server: ExtendedServer, span_s: float) -> Timeline:
    socket, run = pg_kit.socket_of(server), bench.program.running
    whole_s = 6 * span_s + 60
    pg_kit.publish(server, NO_POLICY)
    critical = Load((CRITICAL,), whole_s, 2, "critical", pause_us=2000)
    important = Load((IMPORTANT,), whole_s, 2, "important", pause_us=5000)
    flood = Load((BEST_EFFORT,), whole_s, FLOODERS, "best_effort")
    with (
        run(critical, socket, trace="critical") as high,
        run(important, socket, trace="mid") as mid,
    ):
        began_s = time.time()
        time.sleep(2 * span_s)
        flooded_s = time.time()
        with run(flood, socket, trace="flood") as low:
            time.sleep(span_s)
            held_s = time.time()
            pg_kit.publish(server, TIERS)
            time.sleep(2 * span_s)
            ended_s = time.time()
            low.end(), mid.end(), high.end()
            traces = [since(began_s, running.seen()) for running in (high, mid, low)]
    middle_s = (flooded_s - began_s) / 2
    at = (0.0, middle_s, flooded_s - began_s, held_s - began_s, ended_s - began_s)
    names = (CALM, CALM_AGAIN, FLOOD, HELD)
    spans = tuple(Span(name, at[n], at[n + 1]) for n, name in enumerate(names))
    return Timeline(spans, *traces)


def since(began_s: float, seen: list[Seen]) -> list[Seen]:
    return [one._replace(sent_s=one.sent_s - began_s, done_s=one.done_s - began_s) for one in seen]


def rows(runs: list[Timeline]) -> list[list[str]]:
    return [row(runs, number) for number in range(4)]


def row(runs: list[Timeline], number: int) -> list[str]:
    def median_ms(tier: str, share: float) -> float:
        return statistics.median(
            run.p_ms(getattr(run, tier), run.spans[number], share) for run in runs
        )

    spans = [run.spans[number] for run in runs]
    done = sum(len(done_in(run.best_effort, span)) for run, span in zip(runs, spans, strict=True))
    seconds = sum(span.end_s - span.begin_s - EDGE_S for span in spans)
    return [
        spans[0].name,
        f"{median_ms('critical', 0.5):.2f}",
        f"{median_ms('critical', 0.99):.2f}",
        f"{slower(runs, 'critical', number):.2f}",
        f"{median_ms('important', 0.99):.2f}",
        f"{slower(runs, 'important', number):.2f}",
        f"{done / seconds:.0f}",
    ]


def slower(runs: list[Timeline], tier: str, number: int) -> float:
    """p99 of a span to that of the first, in the same run; the median over runs."""
    return statistics.median(
        run.p_ms(getattr(run, tier), run.spans[number], 0.99)
        / run.p_ms(getattr(run, tier), run.spans[0], 0.99)
        for run in runs
    )


# --- one place at a time ---------------------------------------------------------------------

# Tells when it began to execute and when it ended, both in µs: that is when it held its place.
LONG = """
SELECT (extract(epoch FROM a.began) * 1000000)::bigint,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, b.n
  FROM (SELECT clock_timestamp() AS began OFFSET 0) a,
       LATERAL (SELECT count(*) AS n FROM generate_series(1, 4000000) OFFSET 0) b
"""
LONG_HEAD = ("three clients, long queries", "done", "blocked", "at once, at most",
             "time with more than one")  # fmt: skip
ONE: Document = {
    "budgets": [pg_policies.budget("long", {"username": "long"}, mode="enforce", max_workers=1)]
}


@dataclass(frozen=True, slots=True)
class Overlap:
    name: str
    done: int
    blocked: int
    most: int
    share: float
    """Of the time in which any ran: more than one did."""

    def row(self) -> list[str]:
        return [self.name, str(self.done), str(self.blocked), str(self.most), f"{self.share:.1%}"]


def overlaps(bench: Workbench, server: ExtendedServer, seconds: float) -> list[Overlap]:
    found = []
    for name, policy in (("no policy", NO_POLICY), ("max_workers = 1", ONE)):
        pg_kit.publish(server, policy)
        load = Load((LONG,), seconds, 3, "long", blocked_pause_us=20_000)
        with bench.program.running(load, pg_kit.socket_of(server), trace="long") as running:
            counts, seen = running.wait(), running.seen()
        most, share = overlap([one for one in seen if one.outcome == "ok"])
        found.append(Overlap(name, counts.ok, counts.blocked, most, share))
        say(f"long queries, {name}: at most {most} at once")
    return found


def overlap(ran: list[Seen]) -> tuple[int, float]:
    """How many at most, and the share of the time with any in which there were several."""
    edges = sorted(edge for one in ran for edge in ((one.values[0], 1), (max(one.values), -1)))
    most = running = 0
    before_us = any_us = many_us = 0
    for at_us, step in edges:
        any_us += (at_us - before_us) * (running > 0)
        many_us += (at_us - before_us) * (running > 1)
        running, before_us = running + step, at_us
        most = max(most, running)
    return most, many_us / any_us if any_us else 0.0
