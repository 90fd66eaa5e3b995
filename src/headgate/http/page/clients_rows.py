"""The tree of clients as rows: who is held comes first, folded as asked, never too many. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from headgate.http.page.clients_tree import (
    SILENT_AFTER_S,
    Counts,
    Node,
    Seen,
    added,
    by_words,
    grown,
)
from headgate.present.words import age, told_share

MAX_ROWS = 100
MAX_BELOW = 30
"""Rows of one level; beyond it the filter finds the others."""
OPEN_UP_TO = 30
"""So many rows are shown unfolded unasked."""
MAX_FOLDS = 60
MAX_QUERY_CHARS = 100


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a person asks to see."""

    text: str = ""
    sort: str = "held"
    held_only: bool = False
    opened: tuple[str, ...] = ()
    shut: tuple[str, ...] = ()

    def query(self) -> dict[str, str]:
        told = {
            "q": self.text,
            "sort": "" if self.sort == "held" else self.sort,
            "held": "1" if self.held_only else "",
            "open": ",".join(self.opened),
            "shut": ",".join(self.shut),
        }
        return {name: value for name, value in told.items() if value}


def wanted_of(query: Mapping[str, str]) -> Wanted:
    sort = query.get("sort", "held")
    return Wanted(
        text=query.get("q", "").strip()[:MAX_QUERY_CHARS],
        sort=sort if sort in SORTS else "held",
        held_only=query.get("held") == "1",
        opened=_names(query.get("open", "")),
        shut=_names(query.get("shut", "")),
    )


def _names(text: str) -> tuple[str, ...]:
    """No level has a comma in it."""
    return tuple(dict.fromkeys(name for name in text.split(",") if name))[:MAX_FOLDS]


@dataclass(frozen=True, slots=True)
class Row:
    app: str
    parts: tuple[tuple[str, bool], ...]
    """The levels of its name; True: the row above has told this one."""
    depth: int
    clients: int
    is_level: bool
    is_open: bool
    fold_href: str
    """Where it is folded, or unfolded, without a script."""
    tone: str
    """`bad`, `warned`, `good` or empty."""
    state: str
    detail: str
    rates: tuple[float, float, float] | None
    """Admitted, refused and delayed a second; None: not known."""
    hour: Counts | None
    seen_s_ago: float
    databases: tuple[str, ...]
    more: int = 0
    """Not a client: so many of this level are left out."""


@dataclass(frozen=True, slots=True)
class Listing:
    rows: tuple[Row, ...]
    clients: int
    """That there are."""
    chosen: int
    """That the filter leaves."""
    held: int
    left_out: int
    """Of the chosen, for want of room."""


# --- choosing -----------------------------------------------------------------------------------


def listing(clients: Sequence[Seen], wanted: Wanted, seconds: float | None) -> Listing:
    """`seconds`: that the minute's sums are of."""
    chosen = [one for one in clients if _is_wanted(one, wanted)]
    nodes = grown(chosen)
    opens_all = bool(wanted.text) or _count(nodes) <= OPEN_UP_TO
    fold = _Fold(wanted, opens_all)
    rows, left_out = _cut(_rows(nodes, fold, seconds, 0))
    held = sum(one.held_for_s is not None for one in clients)
    return Listing(tuple(rows), len(clients), len(chosen), held, left_out)


def _is_wanted(one: Seen, wanted: Wanted) -> bool:
    if wanted.held_only and one.held_for_s is None:
        return False
    text = wanted.text.lower()
    told = (one.name, one.held_by if one.held_for_s is not None else "", *one.databases)
    return not text or any(text in word.lower() for word in told)


def _count(nodes: Iterable[Node]) -> int:
    return sum(1 + _count(node.below) for node in nodes)


def _cut(rows: Iterator[Row]) -> tuple[list[Row], int]:
    """`left_out` counts clients: whom a folded level sums up is told."""
    shown: list[Row] = []
    left_out = 0
    for row in rows:
        if len(shown) < MAX_ROWS:
            shown.append(row)
            left_out += row.more
        elif not (row.is_level and row.is_open):  # Whose clients follow.
            left_out += row.clients
    return shown, left_out


# --- order --------------------------------------------------------------------------------------

Key = tuple[object, ...]


def _by_held(node: Node) -> Key:
    """Longest first: all grow alike, so that no row jumps while it is read."""
    held = [one.held_for_s for one in node.clients if one.held_for_s is not None]
    hour = added(one.hour for one in node.clients)
    share = (hour.held_share if hour is not None else None) or 0.0
    return (-max(held, default=-1.0), -round(share, 1), node.app)


def _of_minute(pick: Callable[[Counts], int]) -> Callable[[Node], Key]:
    def key(node: Node) -> Key:
        counts = added(one.minute for one in node.clients)
        return (-(pick(counts) if counts is not None else 0), node.app)

    return key


SORTS: Mapping[str, tuple[str, Callable[[Node], Key]]] = {
    "held": ("held longest", _by_held),
    "refused": ("refused most, now", _of_minute(lambda counts: counts.refused + counts.delayed)),
    "admitted": ("admitted most, now", _of_minute(lambda counts: counts.admitted)),
    "seen": ("last seen", lambda node: (min(one.seen_s_ago for one in node.clients), node.app)),
    "name": ("name", lambda node: (node.app,)),
}


# --- rows ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Fold:
    wanted: Wanted
    opens_all: bool

    def is_open(self, app: str) -> bool:
        if app in self.wanted.shut:
            return False
        return self.opens_all or app in self.wanted.opened

    def toggled(self, app: str) -> str:
        wanted, is_open = self.wanted, self.is_open(app)
        opened = [name for name in wanted.opened if name != app] + ([] if is_open else [app])
        shut = [name for name in wanted.shut if name != app] + ([app] if is_open else [])
        told = replace(wanted, opened=tuple(opened), shut=tuple(shut)).query()
        return f"/clients?{urlencode(told)}"


def _rows(nodes: Sequence[Node], fold: _Fold, seconds: float | None, depth: int) -> Iterator[Row]:
    ordered = sorted(nodes, key=SORTS[fold.wanted.sort][1])
    shown = ordered[:MAX_BELOW] if depth else ordered
    for node in shown:
        row = _row(node, fold, seconds, depth)
        yield row
        if row.is_level and row.is_open:
            yield from _rows(node.below, fold, seconds, depth + 1)
    if rest := ordered[len(shown) :]:
        yield _more(rest, depth)


def _row(node: Node, fold: _Fold, seconds: float | None, depth: int) -> Row:
    one = node.only
    tone, state, detail = _state_of(one) if one else _state_of_level(node)
    minute = added(c.minute for c in node.clients)
    return Row(
        app=node.app,
        parts=tuple((token, token in node.above) for token in node.app.split(":")),
        depth=depth,
        clients=len(node.clients),
        is_level=one is None,
        is_open=one is None and fold.is_open(node.app),
        fold_href=fold.toggled(node.app) if one is None else "",
        tone=tone,
        state=state,
        detail=detail,
        rates=rates_of(minute, seconds),
        hour=added(c.hour for c in node.clients),
        seen_s_ago=min(c.seen_s_ago for c in node.clients),
        databases=tuple(sorted({name for c in node.clients for name in c.databases})),
    )


def _more(rest: Sequence[Node], depth: int) -> Row:
    clients = sum(len(node.clients) for node in rest)
    return Row(
        "", (), depth, clients, False, False, "", "", "", "", None, None, 0.0, (), more=clients
    )


def rates_of(minute: Counts | None, seconds: float | None) -> tuple[float, float, float] | None:
    if minute is None or not seconds:
        return None
    return minute.admitted / seconds, minute.refused / seconds, minute.delayed / seconds


def _state_of(one: Seen) -> tuple[str, str, str]:
    if one.held_for_s is not None:
        verb = "waits" if one.is_paced else "held"
        tone = "warned" if one.is_paced else "bad"
        return tone, f"{verb} {age(one.held_for_s)}", f"by {one.held_by}"
    if one.seen_s_ago > SILENT_AFTER_S:
        return "", "silent", ""
    share = one.minute.held_share if one.minute is not None else None
    if one.minute is None or not share:
        return "good", "admitted", ""
    by = by_words(one.minute.by[0][0]) if one.minute.by else ""
    told = f"in the last minute, mostly by {by}" if by else "in the last minute"
    return "warned", f"{told_share(share)} held", told


def _state_of_level(node: Node) -> tuple[str, str, str]:
    held = [one for one in node.clients if one.held_for_s is not None]
    total = len(node.clients)
    if held:
        longest = max(held, key=lambda one: one.held_for_s or 0.0)
        tone = "warned" if all(one.is_paced for one in held) else "bad"
        detail = f"longest {age(longest.held_for_s)}, by {longest.held_by}"
        return tone, f"{len(held):,} of {total:,} held", detail
    awake = sum(one.seen_s_ago <= SILENT_AFTER_S for one in node.clients)
    if not awake:
        return "", "silent", ""
    return "good", "none held", f"{awake:,} of {total:,} ask"
