"""Budgets as pages: the list, one budget, a change, violations, an explanation. Pure.

Made for 3 a.m.: what refuses comes first, how full it is can be seen, and what to do is a
command that can be copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headgate.cli.bars import bar, share_text, sparkline
from headgate.cli.render import Canvas, advice_line, plain_table, rate_text
from headgate.cli.words import plain
from headgate.wire.budgets import (
    AppliesDoc,
    BucketDoc,
    BudgetDoc,
    DifferenceDoc,
    OutletDoc,
    PolicyChangeDoc,
    PolicyDoc,
    RevisionDoc,
    StatementExplainDoc,
    ViolationsDoc,
)
from headgate.wire.reasons import duration

NARROW = 100
BAR_CELLS = 10
MAX_ADVICE = 5
MAX_BUCKETS = 12
MAX_LINES = 60
STATE_STYLES = {
    "enforcing": "bold",
    "warning": "yellow",
    "resting": "dim",
    "off": "dim",
    "expired": "dim",
}


# --- the list --------------------------------------------------------------------------------

Rates = Mapping[str, float]
"""Budget → refused a second, between two looks."""


def policies_page(policies: Sequence[PolicyDoc], canvas: Canvas) -> RenderableType:
    if not policies:
        return Text(
            "no database has traffic control: give the agent's settings file "
            "[databases.NAME.traffic]",
            style="dim",
        )
    parts: list[RenderableType] = []
    for at, policy in enumerate(policies):
        parts += [Text(), policy_page(policy, canvas)] if at else [policy_page(policy, canvas)]
    return Group(*parts)


def policy_page(policy: PolicyDoc, canvas: Canvas, rates: Rates | None = None) -> RenderableType:
    parts: list[RenderableType] = [_head(policy, canvas), *_exempt(policy), *_troubles(policy)]
    if not policy.budgets:
        parts.append(_no_budgets(policy))
    else:
        parts.append(_budget_table(policy, canvas, rates))
        parts += _what_to_do(policy)
    return Group(*parts, *_advice(policy.advice))


def _head(policy: PolicyDoc, canvas: Canvas) -> Text:
    line = Text().append(plain(policy.database), style="bold")
    versions = [f"version {policy.in_force_version} in force"] if policy.in_force_version else []
    runtime = ["changed at run time"] if policy.changed_at_runtime else []
    facts = [f"revision {policy.revision}", *versions, *runtime]
    line.append(f"  {f' {canvas.marks.dot} '.join(facts)}", style="dim")
    return line


def _exempt(policy: PolicyDoc) -> Iterable[RenderableType]:
    told = policy.document.get("policy") or {}
    names = [name for name in told.get("exempt_usernames") or () if name != policy.own_role]
    own = [f"{policy.own_role} (the agent's own)"] if policy.own_role else []
    if names or own:
        yield Text(f"exempt: {plain(', '.join([*names, *own]))}", style="dim")


def _troubles(policy: PolicyDoc) -> Iterable[RenderableType]:
    """What makes the table below less than the truth."""
    if policy.is_off:
        line = Text().append("SWITCHED OFF AT THE SERVER", style="bold red")
        yield line.append("  no statement is judged, whatever is published")
    for outlet in policy.published if not policy.has_policy else ():
        if outlet.others_version is not None:
            line = Text().append("NOT OURS", style="bold yellow")
            told = f"version {outlet.others_version} was published by somebody else"
            yield line.append(f"  {plain(outlet.where)}: {told}; it is left alone")
    if policy.mode_cap != "enforce":
        words = "EVERYTHING IS OFF" if policy.mode_cap == "off" else "NOTHING IS ENFORCED"
        command = f"headgate budget mode {plain(policy.database)} --all enforce"
        yield Text().append(words, style="bold red").append(f"  `{command}` lifts that")
    for outlet in policy.published:
        if outlet.fault is not None:
            yield _not_published(outlet)
    if policy.refusal is not None:
        line = Text().append("REFUSED BY THE SERVER", style="bold red")
        yield line.append(f"  {plain(policy.refusal)}: its last good policy stays in force")
    if policy.read_fault is not None:
        line = Text().append("counters unknown", style="bold magenta")
        yield line.append(f"  {plain(policy.read_fault)}")


def _not_published(outlet: OutletDoc) -> Text:
    for_s = outlet.fault_for_s or 0.0
    since = f" for {duration(for_s)}" if for_s >= 1 else ""
    line = Text().append(f"NOT PUBLISHED{since}", style="bold red")
    line.append(f"  {plain(outlet.where)}: {plain(outlet.fault or '')}")
    return line.append("; it is tried again", style="dim")


def _no_budgets(policy: PolicyDoc) -> Text:
    name = plain(policy.database)
    command = f"headgate budget create {name} etl rate=20 capacity=200 --match username=etl"
    return Text(f"no budget yet; the first one only warns: {command}", style="dim")


def _budget_table(policy: PolicyDoc, canvas: Canvas, rates: Rates | None) -> Table:
    wide = canvas.width >= NARROW
    more = ("what",) if wide else ()
    columns = ("budget", "state", "owed", "running", "refused", "warned", "delayed", *more)
    right = frozenset({"running", "refused", "warned", "delayed"})
    table = plain_table(*columns, right=right)
    for budget in sorted(policy.budgets, key=_pressing):
        style = "dim" if budget.state in ("off", "expired") else ""
        cells = [
            Text(plain(budget.name), style=style),
            _state(budget),
            fill_cell(budget.fill, canvas),
        ]
        cells += [_running(budget, canvas), *_counted(budget, canvas, rates)]
        if wide:
            cells.append(Text(plain(f"{_reach(budget)}{budget.says}"), style=style or "dim"))
        table.add_row(*cells)
    return table


def _reach(budget: BudgetDoc) -> str:
    """Of one that the fleet has set: `shard:commerce/*: `."""
    return "" if budget.reach is None else f"{budget.reach}: "


def _pressing(budget: BudgetDoc) -> tuple[bool, int, float, str]:
    """What refuses first, then what is full."""
    blocked = budget.counts.blocked_total if budget.counts else 0
    return budget.state in ("off", "expired"), -blocked, -(budget.fill or 0.0), budget.name


def _state(budget: BudgetDoc) -> Text:
    words = budget.state
    if budget.left_s is not None and budget.state != "expired":
        words += f", {duration(budget.left_s)} left"
    return Text(words, style=STATE_STYLES.get(budget.state, ""))


def _running(budget: BudgetDoc, canvas: Canvas) -> Text:
    return Text(canvas.marks.nothing if budget.running is None else f"{budget.running:,}")


def fill_cell(fill: float | None, canvas: Canvas) -> Text:
    if fill is None:
        return Text(canvas.marks.nothing)
    text = bar(fill, BAR_CELLS, canvas.marks, over=fill >= 1.0)
    return text.append(f" {share_text(fill):>4}")


def _counted(budget: BudgetDoc, canvas: Canvas, rates: Rates | None) -> list[Text]:
    counts = budget.counts
    if counts is None:
        return [Text(canvas.marks.nothing) for _ in range(3)]
    refused = Text(_number(counts.blocked_total, canvas))
    if counts.blocked_total:
        refused.stylize("bold red")
    if rates is not None and rates.get(budget.name):
        refused.append(f" ({rate_text(rates[budget.name])}/s)", style="bold red")
    warned = Text(_number(counts.warned_total, canvas), style="yellow" * bool(counts.warned_total))
    return [refused, warned, Text(_number(counts.delayed, canvas))]


def _number(count: int, canvas: Canvas) -> str:
    return f"{count:,}" if count else canvas.marks.nothing


def _what_to_do(policy: PolicyDoc) -> Iterable[RenderableType]:
    """For the one that refuses most, and the one that would: commands to copy."""
    database = plain(policy.database)
    enforcing = [b for b in policy.budgets if b.state == "enforcing" and _blocked(b)]
    if enforcing:
        most = max(enforcing, key=_blocked)
        name = plain(most.name)
        told = f"{name} has refused {_blocked(most):,}: "
        told += f"`headgate budget violations {database}` tells when, "
        told += f"`headgate budget mode {database} {name} warn` stops it, "
        yield Text(f"{told}`headgate budget forgive {database} {name}` lets it begin anew")
    warning = [b for b in policy.budgets if b.state == "warning" and _warned(b)]
    if warning and policy.mode_cap == "enforce":
        name = plain(max(warning, key=_warned).name)
        yield Text(
            f"{name} would refuse: `headgate budget mode {database} {name} enforce` makes it"
        )


def _blocked(budget: BudgetDoc) -> int:
    return budget.counts.blocked_total if budget.counts else 0


def _warned(budget: BudgetDoc) -> int:
    return budget.counts.warned_total if budget.counts else 0


def _advice(advice: Sequence[str]) -> Iterable[RenderableType]:
    yield from (advice_line(told) for told in advice[:MAX_ADVICE])
    if len(advice) > MAX_ADVICE:
        yield Text(f"and {len(advice) - MAX_ADVICE} more pieces of advice: --json", style="dim")


# --- one -------------------------------------------------------------------------------------


def budget_page(budget: BudgetDoc, canvas: Canvas) -> RenderableType:
    head = Text().append(plain(budget.name), style="bold").append("  ").append_text(_state(budget))
    head.append(f"  {plain(budget.origin)}, revision {budget.revision}", style="dim")
    parts: list[RenderableType] = [head, Text(plain(budget.says))]
    if budget.reach is not None:
        told = f"set for the fleet: {plain(budget.reach)}, n {budget.n}"
        parts.append(Text(told, style="cyan"))
    if budget.own_role:
        parts.append(Text(f"exempt: {plain(budget.own_role)} (the agent's own)", style="dim"))
    if budget.mode == "enforce" and budget.state == "warning":
        parts.append(Text("its own mode is enforce: a cap is on all budgets", style="yellow"))
    if budget.expires_at is not None:
        parts.append(Text(f"ends at {plain(budget.expires_at)}"))
    parts += _settings_lines(budget.settings)
    parts += _count_lines(budget)
    if budget.buckets:
        parts.append(bucket_table(budget.buckets[:MAX_BUCKETS], canvas))
        if budget.buckets_total > MAX_BUCKETS:
            parts.append(Text(f"and {budget.buckets_total - MAX_BUCKETS:,} emptier ones"))
    return Group(*parts, *_advice(budget.advice))


def _settings_lines(settings: Mapping[str, Any]) -> Iterable[RenderableType]:
    said = {k: v for k, v in settings.items() if k not in ("name", "rules")}
    yield Text("  ".join(f"{plain(str(k))}={plain(str(v))}" for k, v in said.items()), style="dim")
    rules = settings.get("rules") or ()
    for rule in rules[:MAX_BUCKETS]:
        yield Text(f"  for {_rule_text(rule)}", style="dim")
    if len(rules) > MAX_BUCKETS:
        yield Text(f"  and {len(rules) - MAX_BUCKETS:,} more rules: --json", style="dim")


def _rule_text(rule: Mapping[str, Any]) -> str:
    match = " and ".join(f"{k}={v}" for k, v in (rule.get("match") or {}).items())
    each = ", ".join(rule.get("each") or ())
    return plain(f"{match or 'everything'}{f', a bucket for each {each}' if each else ''}")


def _count_lines(budget: BudgetDoc) -> Iterable[RenderableType]:
    counts = budget.counts
    if counts is None:
        yield Text("the server's counters cannot be read", style="bold magenta")
        return
    spent = duration(counts.charged_ms / 1000)
    yield Text(f"let run: {counts.admitted:,} statements, {spent} of CPU")
    if counts.blocked_total:
        early = f", {counts.blocked_early:,} of them before planning"
        line = Text().append(f"refused: {_by_limit(counts.blocked)}{early}", style="bold red")
        yield line
    if counts.warned_total:
        yield Text(f"warned: {_by_limit(counts.warned)}", style="yellow")
    if counts.delayed or counts.sleeping:
        waited = duration(counts.delayed_ms / 1000)
        now = f"; {counts.sleeping:,} held now" if counts.sleeping else ""
        yield Text(f"delayed: {counts.delayed:,}, {waited} together{now}")
    if counts.passed:
        yield Text(f"over a limit, but inside a transaction: {counts.passed:,}")
    if counts.forgiven_ms:
        yield Text(f"forgiven: {duration(counts.forgiven_ms / 1000)} of CPU")
    if counts.last_violation_at is not None:
        yield Text(f"last violation at {plain(counts.last_violation_at)}")


def _by_limit(counts: Mapping[str, Any]) -> str:
    parts = [f"{count:,} by {plain(limit)}" for limit, count in counts.items() if count]
    return ", ".join(parts)


def bucket_table(buckets: Sequence[BucketDoc], canvas: Canvas) -> Table:
    columns = ("bucket", "owed", "", "running")
    table = plain_table(*columns, right=frozenset({"running"}))
    for bucket in buckets:
        cpu = duration(bucket.owed_ms / 1000)
        if bucket.capacity_ms is not None:
            cpu += f" of {duration(bucket.capacity_ms / 1000)}"
        name = plain(bucket.label) or "(its own)"
        cells = (fill_cell(bucket.fill, canvas), Text(f"{cpu} of CPU"))
        table.add_row(Text(name), *cells, Text(_workers(bucket)))
    return table


def _workers(bucket: BucketDoc) -> str:
    most = f" of {bucket.max_workers:,}" if bucket.max_workers is not None else ""
    return f"{bucket.running:,}{most}"


# --- changes ---------------------------------------------------------------------------------


def change_page(change: PolicyChangeDoc, done: str, canvas: Canvas) -> RenderableType:
    word = Text()
    if not change.changed:
        word.append("UNCHANGED", style="bold").append("  it is so already")
    elif change.dry_run:
        word.append(f"WOULD BE {done}", style="bold yellow")
        word.append("  (dry run: nothing was changed)", style="dim")
    else:
        word.append(done, style="bold green").append(f"  revision {change.revision}", style="dim")
    parts: list[RenderableType] = [word, *difference_lines(change.difference)]
    more = change.difference_total - min(len(change.difference), MAX_LINES)
    if more > 0:
        parts.append(Text(f"and {more:,} more differences: --json", style="dim"))
    if change.mode_cap != "enforce":
        parts.append(Text(f"no budget goes beyond {change.mode_cap}", style="bold yellow"))
    if change.reached is not None:
        parts.append(Text(f"{plain(change.reach or '')}: {plain(change.reached.says)}"))
    if not change.dry_run:
        parts += _publication(change)
    return Group(*parts, *_advice(change.advice))


def _publication(change: PolicyChangeDoc) -> Iterable[RenderableType]:
    for outlet in change.published:
        if outlet.fault is not None:
            yield _not_published(outlet)
        elif outlet.is_current and change.changed:
            yield Text(f"published to {plain(outlet.where)}, version {outlet.version}")
        if outlet.off:
            line = Text().append("SWITCHED OFF AT THE SERVER", style="bold red")
            yield line.append("  no statement is judged, whatever is published")


_MARKS = {"added": ("+", "green"), "removed": ("-", "red")}


def difference_lines(differences: Sequence[DifferenceDoc]) -> Iterable[RenderableType]:
    for one in differences[:MAX_LINES]:
        mark, style = _MARKS.get(one.kind.rpartition(" ")[2], ("~", "yellow"))
        yield Text().append(f"{mark} ", style=style).append(plain(one.line))


def difference_page(differences: Sequence[DifferenceDoc], total: int) -> RenderableType:
    if not differences:
        return Text("no difference: the two decide alike", style="green")
    lines = list(difference_lines(differences))
    more = total - min(len(differences), MAX_LINES)
    return Group(*lines, *([Text(f"and {more:,} more: --json", style="dim")] if more > 0 else []))


def history_page(revisions: Sequence[RevisionDoc], database: str) -> RenderableType:
    if not revisions:
        return Text("no revision is kept yet", style="dim")
    table = plain_table("revision", "at", "by", "what", right=frozenset({"revision"}))
    for one in revisions:
        mark = "  (in force)" if one.is_current else ""
        told = Text(f"{plain(one.action)}: {plain(one.summary)}").append(mark, style="bold green")
        table.add_row(Text(str(one.revision)), Text(plain(one.at)), Text(plain(one.who)), told)
    back = f"`headgate budget rollback {plain(database)} REVISION --dry-run` shows a way back"
    return Group(table, Text(back, style="dim"))


# --- violations ------------------------------------------------------------------------------


def violations_page(found: ViolationsDoc, canvas: Canvas) -> RenderableType:
    if not found.budgets:
        return Text(f"no violation between {plain(found.since)} and now", style="green")
    columns = ("budget", "refused", "warned", "delayed", "last", "refused by the minute")
    table = plain_table(*columns, right=frozenset({"refused", "warned", "delayed"}))
    cells = max(8, min(60, canvas.width - 60))
    for one in found.budgets:
        refused, warned = sum(one.blocked.values()), sum(one.warned.values())
        table.add_row(
            Text(plain(one.budget)),
            _with_limits(refused, one.blocked, canvas, "bold red"),
            _with_limits(warned, one.warned, canvas, "yellow"),
            Text(_number(one.delayed, canvas)),
            Text(plain(one.last_at)),
            sparkline(_by_minute(found, one.budget), None, cells, canvas.marks),
        )
    parts: list[RenderableType] = [Text(f"since {plain(found.since)}", style="dim"), table]
    if not found.whole:
        parts.append(Text("there are more: the oldest are left out", style="yellow"))
    return Group(*parts)


def _with_limits(total: int, by_limit: Mapping[str, Any], canvas: Canvas, style: str) -> Text:
    if not total:
        return Text(canvas.marks.nothing)
    text = Text(f"{total:,}", style=style)
    return text.append(f"\n{_by_limit(by_limit)}", style="dim") if len(by_limit) > 1 else text


def _by_minute(found: ViolationsDoc, budget: str) -> list[float | None]:
    """Minutes without one are 0: nothing is missing, nothing came."""
    sums: dict[str, float] = {}
    for minute in found.minutes:
        sums.setdefault(minute.at, 0.0)
        if minute.budget == budget and minute.what == "blocked":
            sums[minute.at] += minute.count
    return [sums[at] for at in sorted(sums)]


# --- explaining ------------------------------------------------------------------------------

VERDICTS = {
    "run": ("IT WOULD RUN", "bold green"),
    "warn": ("IT WOULD RUN, WITH A WARNING", "bold yellow"),
    "delay": ("IT WOULD BE DELAYED", "bold yellow"),
    "block": ("IT WOULD BE REFUSED", "bold red"),
    "depends": ("IT DEPENDS ON WHAT IT COSTS", "bold yellow"),
    "unknown": ("CANNOT TELL", "bold magenta"),
}


def explained_page(found: StatementExplainDoc, canvas: Canvas) -> RenderableType:
    words, style = VERDICTS.get(found.verdict, (plain(found.verdict).upper(), "bold"))
    head = Text().append(words, style=style)
    if found.decided_by is not None:
        head.append(f"  by budget {plain(found.decided_by)}, its {plain(found.limit or '')} limit")
    if found.retry_after_ms is not None:
        head.append(f"; it fits in {duration(found.retry_after_ms / 1000)}")
    parts: list[RenderableType] = [head, *_about_statement(found)]
    parts += [Text(f"needed: {plain(told)}") for told in found.needed]
    if found.budgets:
        parts.append(_applies_table(found.budgets, canvas))
    else:
        parts.append(Text("no budget applies to it"))
    parts += _rule_lines(found)
    return Group(*parts, *(Text(f"note: {plain(note)}", style="dim") for note in found.notes))


def _about_statement(found: StatementExplainDoc) -> Iterable[RenderableType]:
    tags = ", ".join(f"{plain(k)}={plain(str(v))}" for k, v in found.tags.items()) or "none"
    cost = "not known"
    if found.estimate_ms is not None:
        cost = f"{duration(found.estimate_ms / 1000)} of CPU"
    told = f"estimated: {cost}; tags: {tags}; fingerprint: {plain(found.fingerprint)}"
    yield Text(told, style="dim")


def _applies_table(budgets: Sequence[AppliesDoc], canvas: Canvas) -> Table:
    table = plain_table("budget", "mode", "owed", "running", "fails", right=frozenset({"running"}))
    for one in budgets:
        label = f" [{plain(one.label)}]" if one.label else ""
        table.add_row(
            Text(f"{plain(one.budget)}{label}"),
            Text(plain(one.mode)),
            fill_cell(one.bucket.fill if one.bucket else None, canvas),
            Text(_workers(one.bucket) if one.bucket else canvas.marks.nothing),
            Text(plain(one.fails) or canvas.marks.nothing, style="bold red" * bool(one.fails)),
        )
    return table


def _rule_lines(found: StatementExplainDoc) -> Iterable[RenderableType]:
    shown = found.rules[:MAX_BUCKETS]
    for rule in shown:
        style = "" if rule.outcome == "applies" else "dim"
        told = f"{plain(rule.budget)}: {plain(rule.rule)}: {plain(rule.outcome)}: "
        yield Text(f"{told}{plain(rule.why)}", style=style)
    if found.rules_total > len(shown):
        yield Text(f"and {found.rules_total - len(shown):,} more rules: --json", style="dim")
