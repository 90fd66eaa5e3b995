"""A client's timeline as a strip and as sentences. Pure.   TimelineDoc ──► Strip, sentences"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import NamedTuple
from urllib.parse import urlencode

from headgate.core.timeline import MOSTLY
from headgate.http.page.clients_tree import by_words
from headgate.present.words import age, told_share
from headgate.wire.history import BinDoc, RunsDoc, SpanDoc, SumsDoc, TimelineDoc

HEIGHT_PX = 56
LETTER_FROM_PERCENT = 2.5
"""Narrower, a letter would not fit; the pattern tells it still."""


class Period(NamedTuple):
    name: str
    step: str


PERIODS: Mapping[str, Period] = {
    "1h": Period("1 h", "1m"),
    "24h": Period("24 h", "15m"),
    "7d": Period("7 days", "2h"),
    "14d": Period("14 days", "4h"),
}


class Reason(NamedTuple):
    letter: str
    words: str


REASONS: Mapping[str, Reason] = {
    "metric": Reason("M", "refused by metrics"),
    "held": Reason("H", "held by a rule"),
    "dice": Reason("D", "refused by dice"),
    "paced": Reason("P", "paced: told to wait"),
    "budget": Reason("B", "over a budget"),
    "other": Reason("O", "other"),
}


class Piece(NamedTuple):
    reason: str
    y_px: float
    height_px: float


class Column(NamedTuple):
    """One bin."""

    x: float
    width: float
    """Percent of the strip's."""
    pieces: tuple[Piece, ...]
    title: str
    href: str


class Letter(NamedTuple):
    x: float
    letter: str


class Tick(NamedTuple):
    x: float
    words: str
    anchor: str
    is_minor: bool


@dataclass(frozen=True, slots=True)
class Strip:
    columns: tuple[Column, ...]
    letters: tuple[Letter, ...]
    ticks: tuple[Tick, ...]
    reasons: tuple[tuple[str, Reason, int], ...]
    """Those that there are, with how many checks."""
    summary: str
    height_px: int = HEIGHT_PX


class Sentence(NamedTuple):
    when: str
    words: str
    href: str
    share: float


@dataclass(frozen=True, slots=True)
class Asked:
    """Whose history, where: what links are made of."""

    app: str
    database: str

    def at(self, iso: str) -> str:
        told = {"app": self.app, "database": self.database, "at": iso}
        return f"/explain?{urlencode(told)}"


# --- the strip ----------------------------------------------------------------------------------


def strip_of(doc: TimelineDoc, asked: Asked) -> Strip:
    frame = _Frame.of(doc)
    columns = tuple(_column(one, doc.spans, frame, asked) for one in doc.bins)
    return Strip(
        columns=columns,
        letters=tuple(_letters(doc.bins, frame)),
        ticks=tuple(_ticks(frame)),
        reasons=tuple(
            (name, reason, count)
            for name, reason in REASONS.items()
            if (count := doc.total.by_reason.get(name, 0))
        ),
        summary=summary(doc),
    )


@dataclass(frozen=True, slots=True)
class _Frame:
    since: datetime
    until: datetime
    step: timedelta

    @classmethod
    def of(cls, doc: TimelineDoc) -> _Frame:
        """From the first bin's round time on, which may be a little before it was asked from."""
        since, until = instant(doc.since), instant(doc.until)
        first = min([since, *(instant(one.at) for one in doc.bins[:1])])
        return cls(first, until, timedelta(minutes=doc.step_minutes))

    def x(self, at: datetime) -> float:
        share = (at - self.since) / (self.until - self.since)
        return round(100 * min(1.0, max(0.0, share)), 3)


def _column(one: BinDoc, spans: Sequence[SpanDoc], frame: _Frame, asked: Asked) -> Column:
    at = instant(one.at)
    x, end = frame.x(at), frame.x(at + frame.step)
    return Column(
        x=x,
        width=round(end - x, 3),
        pieces=tuple(_pieces(one.sums)),
        title=f"{span_words(at, at + frame.step, frame.until)}: {outcome(one.sums)}",
        href=asked.at(_worst_minute(at, frame.step, spans)),
    )


def _worst_minute(at: datetime, step: timedelta, spans: Sequence[SpanDoc]) -> str:
    """Where it was mostly held within the bin, there; else its first minute."""
    starts = (max(at, instant(s.since)) for s in spans if instant(s.until) > at)
    found = next((start for start in starts if start < at + step), at)
    return found.strftime("%Y-%m-%dT%H:%MZ")


def _pieces(sums: SumsDoc) -> Iterator[Piece]:
    top = float(HEIGHT_PX)
    for reason in REASONS:
        count = sums.by_reason.get(reason, 0)
        if count and sums.checks:
            height = max(1.0, HEIGHT_PX * count / sums.checks)
            top -= height
            yield Piece(reason, round(max(0.0, top), 2), round(height, 2))


def _letters(bins: Sequence[BinDoc], frame: _Frame) -> Iterator[Letter]:
    """One for a stretch in which the same refused most."""
    for reason, group in groupby(bins, key=_mostly):
        alike = list(group)
        begin, end = instant(alike[0].at), instant(alike[-1].at) + frame.step
        left, right = frame.x(begin), frame.x(end)
        if reason and right - left >= LETTER_FROM_PERCENT:
            yield Letter(round((left + right) / 2, 3), REASONS[reason].letter)


def _mostly(one: BinDoc) -> str:
    """What refused most, where most was refused; else empty."""
    sums = one.sums
    if not sums.checks or sums.refused / sums.checks < MOSTLY:
        return ""
    reason = max(sums.by_reason, key=lambda name: sums.by_reason[name])
    return reason if reason in REASONS else "other"


def _ticks(frame: _Frame) -> Iterator[Tick]:
    span = frame.until - frame.since
    for quarter, anchor in enumerate(("start", "middle", "middle", "middle", "end")):
        at = frame.since + span * quarter / 4
        form = "%H:%M" if span <= timedelta(hours=25) else "%d %b %H:%M"
        yield Tick(25.0 * quarter, at.strftime(form), anchor, quarter in (1, 3))


# --- words --------------------------------------------------------------------------------------


def instant(iso: str) -> datetime:
    return datetime.fromisoformat(iso).astimezone(UTC)


def span_words(since: datetime, until: datetime, today: datetime) -> str:
    """`07:00–07:25`, with the day where that is not today."""
    day = "" if since.date() == today.date() else f"{since.day} {since:%b} "
    return f"{day}{since:%H:%M}–{until:%H:%M}"


def outcome(sums: SumsDoc) -> str:
    if not sums.checks:
        return "nobody asked"
    if not sums.refused:
        return f"all {sums.checks:,} checks admitted"
    share = told_share(sums.refused / sums.checks)
    by = f", mostly by {by_words(sums.by[0].by)}" if sums.by else ""
    return f"{share} of {sums.checks:,} checks held{by}"


def sentences(doc: TimelineDoc, asked: Asked) -> list[Sentence]:
    """Newest first."""
    until = instant(doc.until)
    return [
        Sentence(
            span_words(instant(span.since), instant(span.until), until),
            f"mostly held by {by_words(span.mostly_by)} "
            f"({told_share(span.share)} of {span.sums.checks:,} checks)",
            asked.at(span.since),
            span.share,
        )
        for span in reversed(doc.spans)
    ]


def summary(doc: TimelineDoc) -> str:
    if not doc.total.checks:
        return "Nobody asked by this name in that time."
    told = outcome(doc.total)
    spans = len(doc.spans) + doc.more_spans
    if not spans:
        return f"{told[0].upper()}{told[1:]}; in no minute was most of it held."
    times = "once" if spans == 1 else f"{spans} times"
    return f"{told[0].upper()}{told[1:]}; mostly held {times}."


def runs_words(runs: RunsDoc) -> str:
    lasted = age(runs.minutes * 60)
    since, until = instant(runs.since), instant(runs.until)
    if runs.ongoing:
        told = f"It runs since {since:%H:%M} ({since.day} {since:%b}), for {lasted}"
    else:
        told = f"It last ran {since.day} {since:%b} {since:%H:%M}–{until:%H:%M}, for {lasted}"
    if runs.usual_minutes is None:
        few = f"only {runs.earlier} earlier" if runs.earlier else "no earlier"
        return f"{told}; {few} runs are known within a fortnight, too few to compare with."
    usual, longest = age(runs.usual_minutes * 60), age(runs.longest_minutes * 60)
    return f"{told}; its {runs.earlier} runs before took {usual} typically, {longest} at most."
