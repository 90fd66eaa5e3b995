"""Budgets: how things stand, rows, counts, violations, an explanation. Pure.

Made for 3 a.m.: what keeps budgets from biting comes first, then what blocks, then what is full;
and what to do is a command that can be copied.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headgate.budgets.api import (
    AppliesDoc,
    BucketDoc,
    BudgetDoc,
    CountsDoc,
    OutletDoc,
    PatternDoc,
    PoliciesDoc,
    PolicyChangeDoc,
    PolicyDoc,
    StateDoc,
    StatementExplainDoc,
    ViolationsDoc,
    ViolationSumDoc,
)
from headgate.budgets.limits import amount_told
from headgate.check.reasons import duration
from headgate.present.changes import difference_lines
from headgate.present.view import (
    BREAK,
    DASH,
    Block,
    Cell,
    Curve,
    Fill,
    Line,
    Note,
    Said,
    Step,
    Table,
    Tone,
    columns,
    line,
)
from headgate.present.words import advice_lines, moment, per_s

LATELY_S = 60.0
WIDE = 100
MAX_ADVICE = 5
MAX_BUCKETS = 12
MAX_LINES = 60
LIMITS_TOLD = {"threshold": "its warning threshold", "": ""}
_ADVICE = re.compile(r"\w+ budgets\[\d+\][^:]*: (.*?)\.?(?: \[[a-z-]+\])?", re.DOTALL)
Rates = Mapping[str, float]
"""Budget → blocked a second, between two looks."""


# --- the state of a database --------------------------------------------------------------------

NO_TRAFFIC_CONTROL = (
    "no database has traffic control: give the agent's settings file [databases.NAME.traffic]"
)


def not_set_up(database: str, engine: str) -> Note:
    if engine != "postgres":
        return Note(
            "not in this server",
            "",
            f"Budgets inside the server are for Postgres; {database} is {engine}. The proxy "
            "enforces them in the query path.",
            (Step("on the proxy's host", "headgate proxy status"),),
        )
    says = f"The agent does not know of traffic control in {database}."
    return Note("not set up", "", says, (*_installing("PGDATA"), _configuring(database)))


def _installing(data_directory: str) -> tuple[Step, Step]:
    return (
        Step(
            "on the server's host, once",
            f'sudo "$(command -v headgate)" pg install --data-directory {data_directory}',
        ),
        Step(
            "in postgresql.conf, then restart the server",
            "shared_preload_libraries = 'pg_headgate'",
        ),
    )


def _configuring(database: str) -> Step:
    snippet = f'[databases.{database}.traffic]\ndirectory = "PGDATA/pg_headgate"'
    return Step("in the agent's settings, then headgate reload", snippet)


def standing_of(policy: PolicyDoc, state: StateDoc | None) -> Note:
    """The first thing that keeps budgets from biting; else that they do."""
    return next(troubles(policy, state), None) or _in_force(policy)


def troubles(policy: PolicyDoc, state: StateDoc | None = None) -> Iterator[Note]:
    """What keeps budgets from biting, or counts from being known; the most telling first."""
    if not policy.published:
        says = "No server gets the policy: budgets are kept here, and none applies."
        yield Note("not configured", "bad", says, (_configuring(policy.database),))
    if policy.is_off:
        yield _switched_off(policy, state)
    if policy.read_fault is not None:
        yield _unread(policy.read_fault, policy.directory or "PGDATA/pg_headgate")
    yield from filter(None, map(unpublished, policy.published))
    if policy.rejection:
        says = (
            f"The server did not take the last policy: {policy.rejection}. Its last good one stays"
        )
        yield Note("rejected by the server", "bad", f"{says} in force.")
    if policy.mode_cap != "enforce":
        yield switch_note(policy)


CAPS: Mapping[str, str] = {
    "enforce": "each budget follows its own mode",
    "warn": "budgets only warn, and nothing is blocked",
    "off": "no budget is looked at: nothing is blocked, counted or warned",
}
"""The switch for all budgets of a database."""


def switch_note(policy: PolicyDoc) -> Note:
    lift = Step("to lift that", f"headgate budget mode {policy.database} --all enforce")
    says = f"The switch for all of {policy.database} is thrown: {CAPS[policy.mode_cap]}."
    return Note(f"capped to {policy.mode_cap}", "bad", says, (lift,))


def _switched_off(policy: PolicyDoc, state: StateDoc | None) -> Note:
    if state is not None and state.enabled is False:
        command = 'psql -c "ALTER SYSTEM SET pg_headgate.enabled = on" -c "SELECT pg_reload_conf()"'
        why = "pg_headgate.enabled is off in the server's settings."
    else:
        command = f"headgate pg enable --directory {policy.directory or 'PGDATA/pg_headgate'}"
        why = "an operator ran `headgate pg disable` on the server's host."
    return Note(OFF_AT_SERVER, "bad", f"{NOT_JUDGED}: {why}", (Step("to switch on", command),))


def thrown(policy: PolicyDoc) -> Note | None:
    """A switch that stops all budgets of a database."""
    is_thrown = policy.is_off or policy.mode_cap != "enforce"
    words = (OFF_AT_SERVER, f"capped to {policy.mode_cap}")
    return next((n for n in troubles(policy) if n.word in words), None) if is_thrown else None


OFF_AT_SERVER, NOT_JUDGED = "switched off at the server", "No budget applies"


def _unread(fault: str, directory: str) -> Note:
    if "server.json" in fault:
        says = f"The server is down, or runs without it: there is no {directory}/server.json."
        steps = _installing(directory.rstrip("/").rpartition("/")[0] or "/")
        return Note("extension not loaded", "bad", says, steps)
    look = Step("as the server's user", f"headgate pg status --directory {directory}")
    says = f"What the server counts is not known, and no figure below is: {fault}."
    return Note("counters unreadable", "warned", says, (look,))


def unpublished(outlet: OutletDoc) -> Note | None:
    if outlet.fault is None:
        return None
    for_s = outlet.fault_for_s or 0.0
    since = f" for {duration(for_s)}" if for_s >= 1 else ""
    says = f"The newest policy is not at {outlet.where}{since}: {outlet.fault}. It is tried again."
    return Note("not published", "bad", says)


def _in_force(policy: PolicyDoc) -> Note:
    if not policy.has_policy:
        return Note("no policy yet", "")
    version = policy.in_force_version
    return Note(f"{DASH if version is None else f'version {version}'} in force", "good")


def remarks(policy: PolicyDoc) -> Iterator[Note]:
    """What lies at a server, and is not what was published."""
    for outlet in policy.published:
        if outlet.others_version is not None and not policy.has_policy:
            says = f"Version {outlet.others_version} at {outlet.where} was published by another"
            says += " program; it is left alone, and the first change here replaces all of it."
            yield Note("not ours", "warned", says)
        elif outlet.put_back:
            says = f"The policy at {outlet.where} was not as it had been published"
            at = f" at {moment(outlet.put_back_at)}" if outlet.put_back_at else ""
            says += f" ({outlet.put_back}), and was put back{at};"
            yield Note("put back", "warned", f"{says} {outlet.put_back_total} times in all.")


# --- rows ---------------------------------------------------------------------------------------


class BudgetFigure(NamedTuple):
    word: str
    number: int
    detail: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """One budget, ready to be shown."""

    doc: BudgetDoc
    word: str
    tone: Tone
    debt: str
    share: str
    """Of the server's CPU, now."""
    running: str
    is_crowded: bool
    blocked: Mapping[str, int]
    """By limit."""
    warned: Mapping[str, int]

    @property
    def blocked_total(self) -> int:
        return sum(self.blocked.values())

    @property
    def warned_total(self) -> int:
        return sum(self.warned.values())

    @property
    def left(self) -> str:
        doc = self.doc
        is_told = doc.left_s is not None and doc.state != "expired"
        return f"{duration(doc.left_s or 0.0)} left" if is_told else ""

    @property
    def tallies(self) -> list[BudgetFigure]:
        return [] if self.doc.counts is None else list(_tallies(self, self.doc.counts))

    @property
    def urgency(self) -> tuple[int, int, float, str]:
        """What blocks now first, then what has blocked, then what is full."""
        order = ("bad", "warned", "good", "", "quiet")
        fill = self.doc.fill or 0.0
        return order.index(self.tone), -self.blocked_total, -fill, self.doc.name


def rows_of(budgets: Iterable[BudgetDoc]) -> list[BudgetRow]:
    return sorted((row_of(doc) for doc in budgets), key=lambda row: row.urgency)


def row_of(doc: BudgetDoc) -> BudgetRow:
    word, tone = _state(doc)
    most = next((b.max_workers for b in doc.buckets if b.max_workers is not None), None)
    return BudgetRow(
        doc=doc,
        word=word,
        tone=tone,
        debt=_debt(doc),
        share=DASH if doc.cpu_share is None else f"{doc.cpu_share:.1%}",
        running=DASH if doc.running is None else _of(doc.running, most),
        is_crowded=most is not None and (doc.running or 0) >= most > 0,
        blocked=_counted(doc.counts.blocked if doc.counts else {}),
        warned=_counted(doc.counts.warned if doc.counts else {}),
    )


def _state(doc: BudgetDoc) -> tuple[str, Tone]:
    lately = doc.last_violation_s_ago is not None and doc.last_violation_s_ago < LATELY_S
    if doc.state == "enforcing":
        return ("blocks now", "bad") if lately else ("enforcing", "good")
    if doc.state == "warning":
        return ("warns now", "warned") if lately else ("warning", "")
    return doc.state, "" if doc.state == "inactive" else "quiet"


def _debt(doc: BudgetDoc) -> str:
    fullest = next((b for b in doc.buckets if b.capacity_ms is not None), None)
    if fullest is None or fullest.capacity_ms is None:
        return "no debt" if doc.counts is not None and "capacity" in doc.settings else ""
    debt = f"debt {seconds(fullest.debt_ms)} of {seconds(fullest.capacity_ms)}"
    return f"{debt}, {fullest.label}" if fullest.label else debt


def _of(count: int, most: int | None) -> str:
    return f"{count:,}" if most is None else f"{count:,} of {most:,}"


def _counted(counts: Mapping[str, int]) -> dict[str, int]:
    return {limit: count for limit, count in counts.items() if count}


def _tallies(row: BudgetRow, counts: CountsDoc) -> Iterator[BudgetFigure]:
    early = f"{counts.blocked_early:,} of them before planning" if counts.blocked_early else ""
    tone: Tone = "bad" if row.blocked_total and row.doc.state == "enforcing" else ""
    yield BudgetFigure("blocked", row.blocked_total, _joined(by_limit(row.blocked), early), tone)
    yield BudgetFigure("warned", row.warned_total, by_limit(row.warned))
    now = f"{counts.sleeping:,} now" if counts.sleeping else ""
    waited = f"{seconds(counts.delayed_ms)} in all"
    yield BudgetFigure("delayed", counts.delayed, _joined(waited, now))
    yield BudgetFigure(
        "admitted",
        counts.admitted,
        f"{seconds(counts.charged_ms)} of CPU in {seconds(counts.wall_ms)}",
    )
    if counts.passed:
        yield BudgetFigure("over a limit", counts.passed, "inside a transaction, and admitted")


def _joined(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def by_limit(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{LIMITS_TOLD.get(k, k)} {n:,}" for k, n in counts.items() if n)


def advice_told(advice: str) -> str:
    """`warning budgets[0].rules[1]: … [match-all]` without its place, which is plain here."""
    found = _ADVICE.fullmatch(advice)
    return f"{found[1][:1].upper()}{found[1][1:]}." if found else advice


def seconds(ms: float) -> str:
    """Of CPU."""
    if ms < 1000:
        return f"{ms:.1f} ms" if 0 < ms < 10 else f"{ms:.0f} ms"
    return f"{ms / 1000:.2f} s" if ms < 10_000 else f"{ms / 1000:,.0f} s"


def prediction(pattern: PatternDoc) -> str:
    """How well a statement's cost is foreseen, in words."""
    if pattern.calls < 3:
        return "too few calls to say"
    off = pattern.error
    if off < 0.25:
        return f"close, off by {off:.0%}"
    if off < ROUGH:
        return f"fair, off by {off:.0%}"
    return f"rough, off by {off:.0%}" if off < POOR else f"poor, off {off:.0f} times"


ROUGH, POOR = 0.6, 1.5


def prediction_tone(pattern: PatternDoc) -> Tone:
    return "bad" if pattern.error >= POOR else "warned" if pattern.error >= ROUGH else ""


# --- a database's budgets as blocks -------------------------------------------------------------


def policies_view(found: PoliciesDoc) -> list[Block]:
    if not found.databases:
        return [line(Said(NO_TRAFFIC_CONTROL, "quiet"))]
    blocks: list[Block] = []
    for policy in found.databases:
        blocks += [*([line()] if blocks else []), *policy_view(policy)]
    return blocks


def policy_view(policy: PolicyDoc, rates: Rates | None = None) -> list[Block]:
    head: list[Block] = [_head(policy), *_exempt(policy), *remarks(policy), *troubles(policy)]
    told = advice_lines(policy.advice, MAX_ADVICE)
    if not policy.budgets:
        create = f"headgate budget create {policy.database} etl rate=20% capacity=2s"
        first = f"no budget yet; the first one only warns: {create} --match username=etl"
        return [*head, line(Said(first, "quiet")), *told]
    rows = rows_of(policy.budgets)
    return [*head, _budget_table(rows, rates or {}), *next_steps(policy, rows), *told]


def _head(policy: PolicyDoc) -> Line:
    versions = [f"version {policy.in_force_version} in force"] if policy.in_force_version else []
    runtime = ["changed at run time"] if policy.changed_at_runtime else []
    facts = " · ".join([f"revision {policy.revision}", *versions, *runtime])
    return line(Said(policy.database, "strong"), Said(f"  {facts}", "quiet"))


def _exempt(policy: PolicyDoc) -> Iterator[Line]:
    told = policy.document.get("policy") or {}
    names = [name for name in told.get("exempt_usernames") or () if name != policy.own_role]
    own = [f"{policy.own_role} (the agent's own)"] if policy.own_role else []
    if names or own:
        yield line(Said(f"exempt: {', '.join([*names, *own])}", "quiet"))


def _budget_table(rows: Sequence[BudgetRow], rates: Rates) -> Table:
    numbers = ("running", "blocked", "warned", "delayed")
    names = columns(
        "budget", "state", "debt", *numbers, "what", right=numbers,
        what=WIDE, delayed=72, warned=64, running=56, state=46,
    )  # fmt: skip
    return Table(names, [_cells(row, rates) for row in rows])


def _cells(row: BudgetRow, rates: Rates) -> list[Cell]:
    doc = row.doc
    quiet: Tone = "quiet" if row.tone == "quiet" else ""
    reach = "" if doc.reach is None else f"{doc.reach}: "
    counts: list[Cell] = [DASH, DASH, DASH]
    if doc.counts is not None:
        now = f" ({per_s(rates[doc.name])}/s)" if rates.get(doc.name) else ""
        blocked = f"{row.blocked_total:,}{now}" if row.blocked_total else DASH
        warned = f"{row.warned_total:,}" if row.warned_total else DASH
        delayed = f"{doc.counts.delayed:,}" if doc.counts.delayed else DASH
        tones: tuple[Tone, Tone] = (
            "bad" if row.blocked_total else "",
            "warned" if row.warned_total else "",
        )
        counts = [Said(blocked, tones[0]), Said(warned, tones[1]), delayed]
    return [
        Said(doc.name, quiet),
        Said(_joined(row.word, row.left), row.tone),
        Fill(doc.fill),
        row.running,
        *counts,
        Said(f"{reach}{doc.says}", "quiet"),
    ]


def next_steps(policy: PolicyDoc, rows: Sequence[BudgetRow]) -> Iterator[Note]:
    """For the one that blocks most, and the one that would: commands to copy."""
    blocking = [row for row in rows if row.doc.state == "enforcing" and row.blocked_total]
    at = f"headgate budget {{}} {policy.database}"
    if blocking:
        most = max(blocking, key=lambda row: row.blocked_total)
        name = most.doc.name
        yield Note(
            f"{name} has blocked {most.blocked_total:,}",
            "strong",
            steps=(
                Step("when", at.format("violations")),
                Step("to only warn", f"{at.format('mode')} {name} warn"),
                Step("to clear its debt", f"{at.format('forgive')} {name}"),
            ),
        )
    warning = [row for row in rows if row.doc.state == "warning" and row.warned_total]
    if warning and policy.mode_cap == "enforce":
        name = max(warning, key=lambda row: row.warned_total).doc.name
        step = Step("to enforce it", f"{at.format('mode')} {name} enforce")
        yield Note(f"{name} would block", "strong", steps=(step,))


# --- one ----------------------------------------------------------------------------------------


def budget_view(doc: BudgetDoc) -> list[Block]:
    row = row_of(doc)
    head = line(
        Said(doc.name, "strong"),
        "  ",
        Said(_joined(row.word, row.left), row.tone),
        Said(f"  {doc.origin}, revision {doc.revision}", "quiet"),
    )
    blocks: list[Block] = [head, line(doc.says), *_about(doc), *_settings(doc.settings)]
    if doc.counts is None:
        blocks.append(line(Said("the server's counters cannot be read", "unknown")))
    else:
        blocks += [
            line(Said(f"{t.word}: {t.number:,}{t.detail and f', {t.detail}'}", t.tone))
            for t in row.tallies
            if t.number or t.word == "admitted"
        ]
        blocks += _since_then(doc.counts)
    if doc.buckets:
        blocks.append(_bucket_table(doc.buckets[:MAX_BUCKETS]))
        if doc.buckets_total > MAX_BUCKETS:
            blocks.append(line(f"and {doc.buckets_total - MAX_BUCKETS:,} emptier ones"))
    return [*blocks, *advice_lines([advice_told(one) for one in doc.advice], MAX_ADVICE)]


def _about(doc: BudgetDoc) -> Iterator[Line]:
    if doc.reach is not None:
        yield line(Said(f"set for {doc.reach}, revision {doc.n}", "info"))
    if doc.own_role:
        yield line(Said(f"exempt: {doc.own_role} (the agent's own)", "quiet"))
    if doc.mode == "enforce" and doc.state == "warning":
        yield line(Said("its own mode is enforce: a cap is on all budgets", "warned"))
    if doc.expires_at is not None:
        yield line(f"ends at {moment(doc.expires_at)}")


def _settings(settings: Mapping[str, Any]) -> Iterator[Line]:
    said = {k: v for k, v in settings.items() if k not in ("name", "rules")}
    yield line(Said("  ".join(f"{k}={amount_told(k, v)}" for k, v in said.items()), "quiet"))
    rules = settings.get("rules") or ()
    yield from (line(Said(f"  for {rule_told(rule)}", "quiet")) for rule in rules[:MAX_BUCKETS])
    if len(rules) > MAX_BUCKETS:
        yield line(Said(f"  and {len(rules) - MAX_BUCKETS:,} more rules: --json", "quiet"))


def rule_told(rule: Mapping[str, Any]) -> str:
    match = " and ".join(f"{k}={v}" for k, v in (rule.get("match") or {}).items())
    each = ", ".join(rule.get("each") or ())
    return f"{match or 'everything'}{f', a bucket for each {each}' if each else ''}"


def _since_then(counts: CountsDoc) -> Iterator[Line]:
    if counts.forgiven_ms:
        yield line(f"forgiven: {seconds(counts.forgiven_ms)} of CPU")
    if counts.last_violation_at is not None:
        yield line(f"last violation at {moment(counts.last_violation_at)}")


def _bucket_table(buckets: Sequence[BucketDoc]) -> Table:
    rows: list[list[Cell]] = []
    for bucket in buckets:
        most = "" if bucket.capacity_ms is None else f" of {seconds(bucket.capacity_ms)}"
        debt = f"{seconds(bucket.debt_ms)}{most} of CPU"
        running = _of(bucket.running, bucket.max_workers)
        rows.append([bucket.label or "(its own)", Fill(bucket.fill), debt, running])
    return Table(columns("bucket", "debt", "", "running", right=("running",)), rows)


# --- changes ------------------------------------------------------------------------------------


def change_view(change: PolicyChangeDoc, done: str) -> list[Block]:
    if not change.changed:
        word = line(Said("UNCHANGED", "strong"), "  it is so already")
    elif change.dry_run:
        tried = Said("  (dry run: nothing was changed)", "quiet")
        word = line(Said(f"WOULD BE {done}", "warned"), tried)
    else:
        word = line(Said(done, "good"), Said(f"  revision {change.revision}", "quiet"))
    told = difference_lines(change.difference, change.difference_total)
    blocks: list[Block] = [word, *told]
    if change.mode_cap != "enforce":
        blocks.append(line(Said(f"no budget goes beyond {change.mode_cap}", "warned")))
    for one in (change.reached, change.copies):
        if one is not None:
            blocks.append(line(f"{change.reach or ''}: {one.says}"))
    if not change.dry_run:
        blocks += _publication(change)
    return [*blocks, *advice_lines(change.advice, MAX_ADVICE)]


def _publication(change: PolicyChangeDoc) -> Iterator[Block]:
    for outlet in change.published:
        if note := unpublished(outlet):
            yield note
        elif outlet.is_current and change.changed:
            yield line(f"published to {outlet.where}, version {outlet.version}")
        if outlet.off:
            yield Note(OFF_AT_SERVER, "bad", f"{NOT_JUDGED}, whatever is published.")


# --- violations ---------------------------------------------------------------------------------


def violations_view(found: ViolationsDoc) -> list[Block]:
    if not found.budgets:
        return [line(Said(f"no violation between {found.since} and now", "good"))]
    numbers = ("blocked", "warned", "delayed")
    names = columns("budget", *numbers, "last", "blocked by the minute", right=numbers)
    rows: list[list[Cell]] = [
        [
            one.budget,
            _with_limits(one.blocked, "bad"),
            _with_limits(one.warned, "warned"),
            f"{one.delayed:,}" if one.delayed else DASH,
            one.last_at,
            Curve(_by_minute(found, one.budget)),
        ]
        for one in found.budgets
    ]
    blocks: list[Block] = [line(Said(f"since {found.since}", "quiet")), Table(names, rows)]
    if not found.whole:
        blocks.append(line(Said("there are more: the oldest are left out", "warned")))
    return blocks


def _with_limits(counts: Mapping[str, int], tone: Tone) -> Cell:
    total = sum(counts.values())
    if not total:
        return DASH
    more = (BREAK, Said(by_limit(counts), "quiet")) if len(counts) > 1 else ()
    return Line((Said(f"{total:,}", tone), *more))


def _by_minute(found: ViolationsDoc, budget: str) -> list[float | None]:
    """Minutes without one are 0: nothing is missing, nothing came."""
    sums: dict[str, float] = {}
    for minute in found.minutes:
        sums.setdefault(minute.at, 0.0)
        if minute.budget == budget and minute.what == "blocked":
            sums[minute.at] += minute.count
    return [sums[at] for at in sorted(sums)]


def summary(doc: ViolationsDoc) -> str:
    """For who cannot see bars, in a sentence."""
    if not doc.budgets:
        return "No statement was blocked, warned or delayed in this time."
    told = "; ".join(sum_told(one) for one in doc.budgets[:5])
    more = len(doc.budgets) - 5
    return f"{told}{f'; and {more} more budgets' if more > 0 else ''}."


def sum_told(one: ViolationSumDoc) -> str:
    parts = [
        f"{sum(counts.values()):,} {word} ({by_limit(counts)})"
        for word, counts in (("blocked", one.blocked), ("warned", one.warned))
        if counts
    ]
    parts += [f"{one.delayed:,} delayed"] if one.delayed else []
    return f"{one.budget}: {', '.join(parts)}"


# --- explaining ---------------------------------------------------------------------------------

VERDICTS: Mapping[str, tuple[str, Tone]] = {
    "run": ("it would run", "good"),
    "warn": ("it would run, with a warning", "warned"),
    "delay": ("it would be delayed", "warned"),
    "block": ("it would be blocked", "bad"),
    "depends": ("it depends on what it costs", "warned"),
    "unknown": ("cannot tell", "unknown"),
}


def explained_view(found: StatementExplainDoc) -> list[Block]:
    word, tone = VERDICTS.get(found.verdict, (found.verdict, "strong"))
    by = f"by budget {found.decided_by}, its {found.limit or ''} limit" if found.decided_by else ""
    fits = ""
    if found.retry_after_ms is not None:
        fits = f"; it fits in {duration(found.retry_after_ms / 1000)}"
    blocks: list[Block] = [Note(word, tone, f"{by}{fits}"), _statement(found)]
    blocks += [line(f"needed: {told}") for told in found.needed]
    blocks.append(_applies(found.budgets) if found.budgets else line("no budget applies to it"))
    shown = found.rules[:MAX_BUCKETS]
    for rule in shown:
        told = f"{rule.budget}: {rule.rule}: {rule.outcome}: {rule.why}"
        blocks.append(line(Said(told, "" if rule.outcome == "applies" else "quiet")))
    if found.rules_total > len(shown):
        more = f"and {found.rules_total - len(shown):,} more rules: --json"
        blocks.append(line(Said(more, "quiet")))
    return [*blocks, *(line(Said(f"note: {note}", "quiet")) for note in found.notes)]


def expected(found: StatementExplainDoc) -> str:
    """Both figures, where they differ."""
    mean_ms, p90_ms = found.estimate_ms, found.estimate_p90_ms
    if mean_ms is None or p90_ms is None:
        return "expected cost: not known"
    told = f"expected: {seconds(mean_ms)} of CPU"
    return told if p90_ms <= mean_ms else f"{told}, at most {seconds(p90_ms)} in 9 of 10 executions"


def _statement(found: StatementExplainDoc) -> Line:
    tags = ", ".join(f"{k}={v}" for k, v in found.tags.items()) or "none"
    told = f"{expected(found)}; tags: {tags}; fingerprint: {found.fingerprint}"
    return line(Said(told, "quiet"))


def _applies(budgets: Sequence[AppliesDoc]) -> Table:
    rows: list[list[Cell]] = []
    for one in budgets:
        bucket = one.bucket
        rows.append(
            [
                f"{one.budget}{f' [{one.label}]' if one.label else ''}",
                one.mode,
                Fill(bucket.fill if bucket else None),
                _of(bucket.running, bucket.max_workers) if bucket else DASH,
                Said(one.fails, "bad") if one.fails else DASH,
            ]
        )
    return Table(columns("budget", "mode", "debt", "running", "fails", right=("running",)), rows)
