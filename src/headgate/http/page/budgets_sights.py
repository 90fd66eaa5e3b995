"""Budgets as a person sees them: how things stand, rows, bars of violations. Pure.

PolicyDoc, StateDoc, ViolationsDoc ──► Standing, Row, Statement, Chart ──► templates/budgets*.html
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath

from headgate.http.page.rendering import DASH
from headgate.wire.budgets import (
    BudgetDoc,
    PatternDoc,
    PolicyDoc,
    StateDoc,
    ViolationsDoc,
    ViolationSumDoc,
)
from headgate.wire.reasons import duration

LATELY_S = 60.0
FULL = 0.97
MAX_SERIES = 6
MINUTE_S, QUARTER_S = 60, 900
HOUR_S = 3600
WORDS = {"blocked": "refused", "warned": "warned of", "delayed": "held back"}
_ADVICE = re.compile(r"\w+ budgets\[\d+\][^:]*: (.*?)\.?(?: \[[a-z-]+\])?", re.DOTALL)
LIMITS_TOLD = {"threshold": "its warning threshold", "": ""}


# --- how a database stands ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """What to do: a word on it, and what to run or write."""

    why: str
    command: str


@dataclass(frozen=True, slots=True)
class Standing:
    word: str
    kind: str
    """Of a note or a badge: good, warned, bad or nothing."""
    says: str = ""
    steps: Sequence[Step] = ()

    @property
    def is_well(self) -> bool:
        return self.kind == "good"


def not_set_up(database: str, engine: str) -> Standing:
    if engine != "postgres":
        return Standing(
            "not in this server",
            "",
            f"Budgets inside the server are for Postgres; {database} is {engine}. The proxy "
            "enforces them in the query path.",
            (Step("on the proxy's host", "headgate proxy status"),),
        )
    return Standing(
        "not set up",
        "",
        f"The agent does not know of traffic control in {database}.",
        (
            Step("on the server's host, once", "sudo headgate pg install --data-directory PGDATA"),
            Step(
                "in postgresql.conf, then restart the server",
                "shared_preload_libraries = 'pg_headgate'",
            ),
            Step(
                "in the agent's settings, then SIGHUP the agent",
                f'[databases.{database}.traffic]\ndirectory = "PGDATA/pg_headgate"',
            ),
        ),
    )


def standing_of(policy: PolicyDoc, state: StateDoc | None) -> Standing:
    """The first thing that keeps budgets from biting; else that they do."""
    return (
        _without_server(policy)
        or _switched_off(policy, state)
        or _unread(policy)
        or _unpublished(policy)
        or _capped(policy)
        or _in_force(policy)
    )


def _without_server(policy: PolicyDoc) -> Standing | None:
    if policy.published:
        return None
    snippet = f'[databases.{policy.database}.traffic]\ndirectory = "PGDATA/pg_headgate"'
    says = "No server is told: budgets are kept here, and nothing is judged by them."
    step = Step("give the settings the directory, then SIGHUP the agent", snippet)
    return Standing("not configured", "bad", says, (step,))


def _switched_off(policy: PolicyDoc, state: StateDoc | None) -> Standing | None:
    if not policy.is_off:
        return None
    if state is not None and state.enabled is False:
        command = 'psql -c "ALTER SYSTEM SET pg_headgate.enabled = on" -c "SELECT pg_reload_conf()"'
        says = "No statement is judged: pg_headgate.enabled is off in the server's settings."
        return Standing("switched off at the server", "bad", says, (Step("to switch on", command),))
    command = f"headgate pg enable --directory {policy.directory or 'PGDATA/pg_headgate'}"
    says = "No statement is judged: somebody ran `headgate pg disable` on the server's host."
    return Standing("switched off at the server", "bad", says, (Step("to switch on", command),))


def _unread(policy: PolicyDoc) -> Standing | None:
    fault = policy.read_fault
    if fault is None:
        return None
    directory = policy.directory or "PGDATA/pg_headgate"
    if "server.json" in fault:
        data = PurePosixPath(directory).parent
        install = Step(
            "on the server's host, once", f"sudo headgate pg install --data-directory {data}"
        )
        preload = Step(
            "in postgresql.conf, then restart the server",
            "shared_preload_libraries = 'pg_headgate'",
        )
        says = f"The server is down, or runs without it: there is no {directory}/server.json."
        return Standing("extension not loaded", "bad", says, (install, preload))
    look = Step("as the server's user", f"headgate pg status --directory {directory}")
    says = f"What the server counts is not known, and no figure below is: {fault}."
    return Standing("counters unreadable", "warned", says, (look,))


def _unpublished(policy: PolicyDoc) -> Standing | None:
    for outlet in policy.published:
        if outlet.fault:
            since = f" for {duration(outlet.fault_for_s)}" if outlet.fault_for_s else ""
            says = f"The newest policy is not at the server{since}: {outlet.fault}. Tried again."
            return Standing("not published", "bad", says)
    if policy.refusal:
        says = f"The server did not take the last policy: {policy.refusal}."
        return Standing("refused by the server", "bad", says)
    return None


def _capped(policy: PolicyDoc) -> Standing | None:
    if policy.mode_cap == "enforce":
        return None
    what = "no budget is looked at" if policy.mode_cap == "off" else "budgets only warn"
    return Standing(f"capped to {policy.mode_cap}", "bad", f"The switch for all is thrown: {what}.")


def _in_force(policy: PolicyDoc) -> Standing:
    if not policy.has_policy:
        return Standing("no policy yet", "")
    told = DASH if policy.in_force_version is None else f"version {policy.in_force_version}"
    return Standing(f"{told} in force", "good")


# --- budgets ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One budget, ready to be shown."""

    doc: BudgetDoc
    word: str
    kind: str
    fill: float | None
    owed: str
    share: str
    share_of_rate: float | None
    """What it takes of its rate; 1 and more: as much as it may in the long run."""
    running: str
    is_crowded: bool
    refused: Mapping[str, int]
    warned: Mapping[str, int]

    @property
    def refused_total(self) -> int:
        return sum(self.refused.values())

    @property
    def warned_total(self) -> int:
        return sum(self.warned.values())

    @property
    def urgency(self) -> tuple[int, float, str]:
        """The most urgent first."""
        order = ("bad", "warned", "good", "")
        return order.index(self.kind), -(self.fill or 0.0), self.doc.name


def rows_of(budgets: Iterable[BudgetDoc]) -> list[Row]:
    return sorted((row_of(doc) for doc in budgets), key=lambda row: row.urgency)


def row_of(doc: BudgetDoc) -> Row:
    word, kind = _state(doc)
    most = next((b.max_workers for b in doc.buckets if b.max_workers is not None), None)
    rate = doc.settings.get("rate")
    of_rate = doc.cpu_share * 100 / rate if rate and doc.cpu_share is not None else None
    return Row(
        doc=doc,
        word=word,
        kind=kind,
        fill=doc.fill,
        owed=_owed(doc),
        share=DASH if doc.cpu_share is None else f"{doc.cpu_share:.1%}",
        share_of_rate=of_rate,
        running=_running(doc, most),
        is_crowded=most is not None and (doc.running or 0) >= most > 0,
        refused=_counted(doc.counts.blocked if doc.counts else {}),
        warned=_counted(doc.counts.warned if doc.counts else {}),
    )


def _state(doc: BudgetDoc) -> tuple[str, str]:
    lately = doc.last_violation_s_ago is not None and doc.last_violation_s_ago < LATELY_S
    if doc.state == "enforcing":
        return ("refuses now", "bad") if lately else ("enforcing", "good")
    if doc.state == "warning":
        return ("warns now", "warned") if lately else ("warning", "")
    return doc.state, ""


def _owed(doc: BudgetDoc) -> str:
    fullest = next((b for b in doc.buckets if b.capacity_ms is not None), None)
    if fullest is None or fullest.capacity_ms is None:
        return "nothing owed" if doc.counts is not None and "capacity" in doc.settings else ""
    owed = f"{seconds(fullest.owed_ms)} of {seconds(fullest.capacity_ms)} owed"
    return f"{owed} by {fullest.label}" if fullest.label else owed


def _running(doc: BudgetDoc, most: int | None) -> str:
    if doc.running is None:
        return DASH
    return f"{doc.running} of {most}" if most is not None else f"{doc.running}"


def _counted(counts: Mapping[str, int]) -> dict[str, int]:
    return {limit: count for limit, count in counts.items() if count}


def advice_told(advice: str) -> str:
    """`warning budgets[0].rules[1]: … [match-all]` without its place, which is plain here."""
    found = _ADVICE.fullmatch(advice)
    return f"{found[1][:1].upper()}{found[1][1:]}." if found else advice


def seconds(ms: float) -> str:
    """Of CPU."""
    if ms < 1000:
        return f"{ms:.1f} ms" if 0 < ms < 10 else f"{ms:.0f} ms"
    return f"{ms / 1000:.2f} s" if ms < 10_000 else f"{ms / 1000:,.0f} s"


# --- statements ---------------------------------------------------------------------------------


def prediction(pattern: PatternDoc) -> str:
    """How well its cost is foreseen, in words."""
    if pattern.calls < 3:
        return "too few calls to say"
    off = pattern.error
    if off < 0.25:
        return f"close, off by {off:.0%}"
    if off < 0.6:
        return f"fair, off by {off:.0%}"
    return f"rough, off by {off:.0%}" if off < 1.5 else f"poor, off {off:.0f} times"


# --- violations ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Piece:
    y: float
    height: float
    css: str


@dataclass(frozen=True, slots=True)
class Bar:
    x: int
    pieces: Sequence[Piece]
    title: str


@dataclass(frozen=True, slots=True)
class Series:
    css: str
    label: str
    total: int


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars in a box of `width` × 100."""

    bars: Sequence[Bar]
    series: Sequence[Series]
    width: int
    top: int
    """What the full height stands for."""
    summary: str
    since: str
    until: str


Key = tuple[str, str, str]
_KINDS = ("blocked", "delayed", "warned")
COLOURS = ("b1", "b2", "b3", "w1", "w2", "d1")
"""By the first letter of what they are for, as long as there are enough."""
OTHERS: Key = ("", "", "")
BAR = 10


def chart_of(doc: ViolationsDoc) -> Chart:
    begins, ends = _stamp(doc.since), _stamp(doc.until)
    step_s = MINUTE_S if ends - begins <= 2 * HOUR_S else QUARTER_S
    shown = _series_keys(doc)
    steps: dict[int, dict[Key, int]] = {}
    for one in doc.minutes:
        at = (_stamp(one.at) - begins) // step_s
        key = (one.budget, one.what, one.limit)
        of = steps.setdefault(at, {})
        key = key if key in shown else OTHERS
        of[key] = of.get(key, 0) + one.count
    top = max((sum(of.values()) for of in steps.values()), default=0)
    bars = [_bar(at, of, shown, top, begins + at * step_s) for at, of in sorted(steps.items())]
    width = BAR * -(-(ends - begins) // step_s)
    return Chart(bars, _series(doc, shown), width, top, summary(doc), doc.since, doc.until)


def _series_keys(doc: ViolationsDoc) -> dict[Key, str]:
    totals = _totals(doc)
    most = sorted(totals, key=lambda key: (-totals[key], key))[:MAX_SERIES]
    free = list(COLOURS)
    found = {}
    for key in sorted(most, key=lambda key: (_KINDS.index(key[1]), -totals[key], key)):
        css = next((c for c in free if c[0] == key[1][0]), free[0])
        free.remove(css)
        found[key] = css
    return found


def _totals(doc: ViolationsDoc) -> dict[Key, int]:
    found: dict[Key, int] = {}
    for one in doc.minutes:
        key = (one.budget, one.what, one.limit)
        found[key] = found.get(key, 0) + one.count
    return found


def _series(doc: ViolationsDoc, shown: Mapping[Key, str]) -> list[Series]:
    totals = _totals(doc)
    told = [Series(css, label_of(key), totals[key]) for key, css in shown.items()]
    rest = sum(count for key, count in totals.items() if key not in shown)
    return [*told, Series("rest", "all others", rest)] if rest else told


def _bar(at: int, of: Mapping[Key, int], shown: Mapping[Key, str], top: int, stamp: int) -> Bar:
    pieces, y = [], 100.0
    for key in [*shown, OTHERS]:
        if count := of.get(key, 0):
            height = count * 100 / top
            y -= height
            pieces.append(Piece(round(y, 2), round(height, 2), shown.get(key, "rest")))
    told = ", ".join(f"{label_of(key)} {count:,}" for key, count in of.items())
    clock = f"{stamp // 3600 % 24:02d}:{stamp // 60 % 60:02d}"
    return Bar(at * BAR, pieces, f"{clock} {told}")


def label_of(key: Key) -> str:
    if key == OTHERS:
        return "all others"
    budget, what, limit = key
    by = LIMITS_TOLD.get(limit, limit)
    return f"{budget}: {WORDS.get(what, what)}{by and f' by {by}'}"


def summary(doc: ViolationsDoc) -> str:
    """For who cannot see the bars, in a sentence."""
    if not doc.budgets:
        return "No statement was refused, warned of or held back in this time."
    told = "; ".join(sum_told(one) for one in doc.budgets[:5])
    more = len(doc.budgets) - 5
    return f"{told}{f'; and {more} more budgets' if more > 0 else ''}."


def sum_told(one: ViolationSumDoc) -> str:
    parts = []
    for word, counts in (("refused", one.blocked), ("warned of", one.warned)):
        by = ", ".join(f"{LIMITS_TOLD.get(k, k)} {count:,}" for k, count in counts.items())
        if counts:
            parts.append(f"{sum(counts.values()):,} {word} ({by})")
    if one.delayed:
        parts.append(f"{one.delayed:,} held back")
    return f"{one.budget}: {', '.join(parts)}"


def _stamp(iso: str) -> int:
    return int(datetime.fromisoformat(iso).timestamp())
