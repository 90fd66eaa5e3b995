"""The past: when a client was throttled and by what, one minute of it, a rule tried on it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import tzinfo
from typing import NamedTuple

from headgate.check.answer_api import AnswerDoc
from headgate.check.api import RejectionDoc, RejectionsDoc
from headgate.check.model import Verdict
from headgate.check.reasons import duration, limit_told
from headgate.history.api import (
    BinDoc,
    ChildDoc,
    ClientsSumsDoc,
    MetricMinuteDoc,
    PastDoc,
    ReplayDoc,
    ReplayRowDoc,
    RunsDoc,
    SpanDoc,
    SumsDoc,
    TimelineDoc,
)
from headgate.history.timeline import MOSTLY
from headgate.history.unthrottled_api import UnthrottledDoc
from headgate.present.clients import by_words, throttled_by
from headgate.present.metrics import FAILING
from headgate.present.rules import matched_view
from headgate.present.view import DASH, Block, Cell, Fill, Line, Said, Table, columns, line
from headgate.present.words import age, moment, some, time_of, times_of, told_share

MAX_CHILDREN = 15
MAX_REPLAY_ROWS = 200
MORE_CLIENTS = (
    "There are more clients than are listed: those with the fewest checks are summed up as "
    "`other` (of --json, the last). All sums are exact."
)


REASONS: Mapping[str, str] = {
    "metric": "rejected by metrics",
    "held": "held by a rule",
    "dice": "rejected by a ratio rule",
    "paced": "paced: sent away until their turn",
    "budget": "over a budget",
    "other": "other",
}


# --- in words -----------------------------------------------------------------------------------


def outcome(sums: SumsDoc) -> str:
    if not sums.checks:
        return "no checks"
    if not sums.rejected:
        return f"all {sums.checks:,} checks admitted"
    by = f", mostly by {by_words(sums.by[0].by)}" if sums.by else ""
    return f"{told_share(sums.rejected_share)} of {sums.checks:,} checks throttled{by}"


def summary(doc: TimelineDoc) -> str:
    if not doc.total.checks:
        return "No client of this name checked in that time."
    told = outcome(doc.total)
    spans = len(doc.spans) + doc.more_spans
    if not spans:
        return f"{told[0].upper()}{told[1:]}; at no time was it mostly throttled."
    times = "once" if spans == 1 else f"{spans} times"
    return f"{told[0].upper()}{told[1:]}; mostly throttled {times}."


def span_words(span: SpanDoc) -> str:
    share = f"{told_share(span.share)} of {span.sums.checks:,} checks"
    return f"by {by_words(span.mostly_by)} ({share})"


def by_told(sums: SumsDoc, of: int) -> str:
    return ", ".join(f"{by_words(b.by)} {told_share(b.count / of)}" for b in sums.by[:3])


def runs_words(runs: RunsDoc, zone: tzinfo | None) -> str:
    lasted = age(runs.minutes * 60)
    since, until = time_of(runs.since, zone), time_of(runs.until, zone)
    if runs.ongoing:
        told = f"It has run since {since:%H:%M} ({since.day} {since:%b}), for {lasted}"
    else:
        told = f"It last ran {since.day} {since:%b} {since:%H:%M}–{until:%H:%M}, for {lasted}"
    if runs.usual_minutes is None:
        known = "run is" if runs.earlier == 1 else "runs are"
        few = f"only {runs.earlier} earlier {known}" if runs.earlier else "no earlier run is"
        return f"{told}; {few} known within a fortnight, too few to compare with."
    usual, longest = age(runs.usual_minutes * 60), age(runs.longest_minutes * 60)
    told = f"{told}; its {runs.earlier} runs before took {usual} typically, {longest} at most."
    return f"Far longer than usual. {told}" if runs.unusual else told


class RejectedClient(NamedTuple):
    """What one metric, rule or budget did to one client."""

    client: str
    times: int
    share: float
    """Of the client's checks."""
    checks: int


def rejected_by(doc: ClientsSumsDoc, name: str) -> list[RejectedClient]:
    """Clients that `name` rejected, the most first."""
    found = [
        RejectedClient(one.client, by.count, by.count / one.sums.checks, one.sums.checks)
        for one in doc.clients
        for by in one.sums.by
        if by.by == name and one.sums.checks
    ]
    return sorted(found, key=lambda one: (-one.times, one.client))


class RejectionRun(NamedTuple):
    """Rejections that follow each other and say the same."""

    client: str
    database: str
    by: str
    rule: str
    """The rule that rejected them; empty: something else did."""
    first: RejectionDoc
    last: RejectionDoc
    times: int


def rejection_runs(rejections: Sequence[RejectionDoc]) -> list[RejectionRun]:
    """Newest first, as they come; alike ones of one client are one row, whatever lies between."""
    found: dict[tuple[str, str, str, str], RejectionRun] = {}
    for one in rejections:
        answer = one.answer
        by = throttled_by(answer.verdict, _rejected_by(answer))
        key = (answer.app, answer.database, answer.verdict, by)
        before = found.get(key)
        if before is None:
            rule = answer.rule if answer.verdict in _BY_RULE and answer.rule else ""
            found[key] = RejectionRun(answer.app, answer.database, by, rule, one, one, 1)
        else:
            found[key] = before._replace(first=one, times=before.times + 1)
    return list(found.values())


_BY_RULE = (Verdict.ON_HOLD.value, Verdict.REJECTED_BY_RATIO.value)


def _rejected_by(answer: AnswerDoc) -> str:
    if answer.verdict in _BY_RULE and answer.rule:
        return f"rule:{answer.rule}"
    if answer.budget is not None:
        return f"budget:{answer.budget.budget}"
    return ", ".join(m.name for m in answer.metrics if m.state in FAILING) or answer.verdict


NO_REJECTION = "no check was rejected lately"


def rejections_view(found: RejectionsDoc) -> list[Block]:
    """In full."""
    if not found.rejections:
        return [line(Said(NO_REJECTION, "quiet"))]
    rows: list[list[Cell]] = [
        [moment(one.at), one.answer.app, one.answer.verdict, one.answer.reason]
        for one in found.rejections
    ]
    return [Table(columns("when", "client", "verdict", "why"), rows)]


def hour_words(shares: Sequence[float | None], step_minutes: int, by: str) -> str:
    """A client's last hour, from the share of its checks that was rejected in each step."""
    worst = max((share for share in shares if share is not None), default=None)
    if worst is None:
        return "no check within the last hour"
    if not worst:
        return "last hour: no check was rejected"
    mostly = sum(share is not None and share >= MOSTLY for share in shares) * step_minutes
    long = f"mostly throttled for at most {mostly} min; " if mostly else ""
    most = f", most by {by_words(by)}" if by else ""
    return f"last hour: {long}{told_share(worst)} of its checks at worst{most}"


# --- a timeline ---------------------------------------------------------------------------------


def timeline_view(
    doc: TimelineDoc, zone: tzinfo | None = None, *, without: Sequence[UnthrottledDoc] = ()
) -> list[Block]:
    """`without`: periods without a throttler, below it."""
    return [*_timeline(doc, zone), *unthrottled_view(without)]


def _timeline(doc: TimelineDoc, zone: tzinfo | None) -> list[Block]:
    when = DASH.join(times_of(doc.since, doc.until, zone))
    if not doc.total.checks:
        return [line(Said(f"{doc.app}: no checks, {when}", "quiet"))]
    blocks: list[Block] = [_head(doc, when), line()]
    for span in doc.spans:
        begin, end = times_of(span.since, span.until, zone)
        between = f" between {begin} and {end} "
        blocks.append(line("  ", Said("mostly throttled", "bad"), f"{between}{span_words(span)}"))
    if doc.more_spans:
        told = f"  and {doc.more_spans:,} more times, in each of which less was rejected"
        blocks.append(line(Said(told, "quiet")))
    if doc.runs is not None:
        told = f"  {runs_words(doc.runs, zone)}"
        blocks.append(line(Said(told, "warned" if doc.runs.unusual else "quiet")))
    if not doc.spans:
        blocks.append(line(Said("  at no time was it mostly throttled", "good")))
    blocks += [line(), _bins(doc.bins, zone)]
    if [child.client for child in doc.children] != [doc.app]:
        blocks += [line(), *_children(doc.children)]
    return blocks if doc.whole else [*blocks, line(Said(MORE_CLIENTS, "warned"))]


def _head(doc: TimelineDoc, when: str) -> Line:
    total = doc.total
    counts = sorted(total.by_reason.items(), key=lambda item: -item[1])
    kinds = ", ".join(
        f"{told_share(count / total.checks)} {REASONS.get(name, REASONS['other'])}"
        for name, count in counts
        if count
    )
    told = f"{total.checks:,} checks, {told_share(total.rejected_share)} rejected"
    exempted = f"; {total.exempted:,} admitted by exemption" if total.exempted else ""
    return line(
        Said(doc.app, "strong"),
        Said(f"  {when}  ", "quiet"),
        f"{told}{f' ({kinds})' if kinds else ''}",
        Said(exempted, "warned"),
    )


def _bins(bins: Sequence[BinDoc], zone: tzinfo | None) -> Table:
    rows: list[list[Cell]] = []
    last_day = None
    for one in bins:
        at, sums = time_of(one.at, zone), one.sums
        shown = f"{at:%H:%M}" if at.date() == last_day else f"{at:%d %b %H:%M}"
        last_day = at.date()
        rejected = Fill(sums.rejected_share, is_bad=sums.rejected_share >= MOSTLY)
        by = Said(by_told(sums, sums.checks), "quiet")
        rows.append([f"  {shown}", rejected, f"{sums.checks:,}", by])
    return Table(columns("  from", "rejected", "checks", "by", right=("checks",)), rows)


def _children(children: Sequence[ChildDoc]) -> Iterator[Block]:
    rows: list[list[Cell]] = []
    for child in children[:MAX_CHILDREN]:
        sums = child.sums
        share = Said(told_share(sums.rejected_share), "bad" if sums.rejected else "")
        rows.append([child.client, f"{sums.checks:,}", share, by_told(sums, sums.rejected)])
    numbers = ("checks", "rejected")
    yield Table(columns("client", *numbers, "by", right=numbers), rows)
    if (left := len(children) - MAX_CHILDREN) > 0:
        yield line(Said(f"and {left} more; --json lists them", "quiet"))


def unthrottled_view(periods: Sequence[UnthrottledDoc]) -> list[Block]:
    """Nothing, where everybody was throttled all the time."""
    if not periods:
        return []
    numbers = ("for", "pieces of work")
    rows = [
        [
            period.client,
            moment(period.started_at),
            duration(period.duration_s),
            f"{period.pieces:,}",
        ]
        for period in periods
    ]
    names = columns("client", "without a throttler from", *numbers, right=numbers)
    return [line(), Table(names, rows)]


# --- one minute ---------------------------------------------------------------------------------


def past_view(past: PastDoc, zone: tzinfo | None = None) -> list[Block]:
    begin, end = time_of(past.at, zone), time_of(past.until, zone)
    head = Said(f"{past.app} on {past.database}", "strong")
    blocks: list[Block] = [line(head, Said(f"  {begin:%d %b %H:%M}–{end:%H:%M}", "quiet"))]
    blocks += [line(f"  {told}") for told in past.known]
    for word, at in (("last", past.checked_before), ("next", past.checked_after)):
        if at:
            blocks.append(line(f"  {word} check: {time_of(at, zone):%H:%M}"))
    blocks += [line(), *_children(past.clients)] if past.clients else []
    blocks += [line(), _metrics(past.metrics)] if past.metrics else []
    blocks += [line(), *matched_view(past.matched), line()]
    return [*blocks, *(line(Said(f"not known: {one}", "quiet")) for one in past.unknown)]


def _metrics(metrics: Sequence[MetricMinuteDoc]) -> Table:
    names = ("lowest", "mean", "highest", "threshold", "breached")
    rows: list[list[Cell]] = []
    for m in metrics:
        values = (m.low, m.mean, m.high, m.threshold)
        breached = Said(told_share(m.breached_share), "bad" if m.breached_share else "")
        rows.append(
            [m.metric, *(DASH if v is None else limit_told(m.metric, v) for v in values), breached]
        )
    return Table(columns("metric", *names, right=names), rows)


# --- a rule tried on it -------------------------------------------------------------------------


def replay_view(doc: ReplayDoc, zone: tzinfo | None = None) -> list[Block]:
    total = doc.total
    span = DASH.join(times_of(doc.since, doc.until, zone))
    head = line(
        Said(f"{doc.kind} on {doc.target}", "strong"),
        Said(f"  {span}  ", "quiet"),
        f"{total.checks:,} checks: {total.admitted_before:,} admitted then, ",
        Said(f"{amount(total.admitted_low, total.admitted_high)} with the rule", "strong"),
    )
    blocks: list[Block] = [head]
    blocks += [line(), _replayed(doc.rows[:MAX_REPLAY_ROWS], zone)] if doc.rows else []
    if (left := len(doc.rows) - MAX_REPLAY_ROWS) > 0:
        blocks.append(line(f"and {left:,} more; --json lists them"))
    if doc.more_rows:
        told = f"and {doc.more_rows:,} in which less changes; the totals are of all"
        blocks.append(line(Said(told, "quiet")))
    blocks += [line(), *(line(Said(note, "quiet")) for note in doc.notes)]
    if not doc.whole:
        told = "There was more history than is replayed at once: it begins later than asked for."
        blocks.append(line(Said(told, "warned")))
    return blocks


def _replayed(rows: Sequence[ReplayRowDoc], zone: tzinfo | None) -> Table:
    numbers = ("checks", "admitted", "rejected", "then admitted", "then rejected")
    cells: list[list[Cell]] = [
        [
            f"{time_of(row.hour, zone):%d %b %H:%M}",
            row.client,
            f"{row.checks:,}",
            f"{row.admitted_before:,}",
            f"{row.rejected_before:,}",
            Said(amount(row.admitted_low, row.admitted_high), "strong"),
            Said(amount(row.checks - row.admitted_high, row.checks - row.admitted_low), "strong"),
            _how(row),
        ]
        for row in rows
    ]
    return Table(columns("hour", "client", *numbers, "how", right=numbers), cells)


def _how(row: ReplayRowDoc) -> str:
    if row.shadowed_by:
        return f"as before: {row.shadowed_by} comes first"
    return "cannot tell" if row.how == "unknown" else row.how


def amount(low: float, high: float) -> str:
    first, last = some(low), some(high)
    return first if first == last else f"{first}{DASH}{last}"


def last_hour_told(doc: ReplayDoc) -> str:
    """In one line, for a dry run, of the checks of one agent."""
    total = doc.total
    if not total.checks:
        return "no client that it matches has checked at this agent within the last hour"
    low, high = some(total.admitted_low), some(total.admitted_high)
    after = low if low == high else f"{low} to {high}"
    return (
        f"within the last hour, of {total.checks:,} checks here {total.admitted_before:,} were "
        f"admitted; with this rule {after} (headgate replay tells more)"
    )
