"""The view of clients: the presenter's tree as rows, each with its last hour. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import pairwise

from msgspec import Struct
from rich.cells import cell_len
from rich.console import RenderableType
from rich.segment import Segment
from rich.text import Text

from headgate.cli.documents import plain
from headgate.cli.render import STYLES, Canvas, Marks, drawn, runs
from headgate.history.starvation import Starved
from headgate.history.timeline import MOSTLY
from headgate.present.clients import (
    EVERYTHING,
    NOBODY,
    SORTS,
    CheckCounts,
    ClientListing,
    ClientRow,
    Recent,
    Wanted,
    listing,
    loud,
    seen_of,
)
from headgate.present.history import hour_words
from headgate.present.starvation import starved_rows
from headgate.present.words import age_text, per_s
from headgate.tui import layout
from headgate.tui.layout import (
    MARK_CELLS,
    Fitted,
    ScreenColumn,
    ScreenPage,
    ViewRequest,
    fit,
    header,
    longest,
    needing,
)
from headgate.tui.sources import STRIP_STEP_MINUTES, Scene, ThrottledStrip
from headgate.tui.trend import Picture

MAX_STARVED = 2
LOW_LINES = 20

COLUMNS = (
    ScreenColumn("client", 14, 44, 1),
    ScreenColumn("rejected/s", 10, 10, 3, right=True),
    ScreenColumn("admitted/s", 10, 10, 4, right=True),
    ScreenColumn("now", 18, 48, 2),
    ScreenColumn("last hour", 15, 30, 5),
    ScreenColumn("database", 8, 16, 6),
    ScreenColumn("seen", 6, 6, 7, right=True),
)


def draw(scene: Scene, ask: ViewRequest) -> ScreenPage:
    canvas = ask.canvas
    starved = told.starved if (told := scene.of("starvation").value) is not None else ()
    found = listed(scene.picture, ask.filter, ask.order, ask.as_tree)
    fixed = _above(found, ask, starved)
    if not found.rows:
        none = f"no client matches {ask.filter!r}" if found.clients else NOBODY
        return ScreenPage([*fixed, Text(none, style="dim")])
    leads, name_cells = _leads(
        tuple(row.depth for row in found.rows), tuple(row.label for row in found.rows), canvas.marks
    )
    columns = needing(
        COLUMNS,
        client=name_cells,
        database=longest(one.database for one in scene.picture.databases),
    )
    fitted = fit(columns, canvas.width - MARK_CELLS)
    strip_cells = next((one.width for one in fitted if one.column.name == "last hour"), 0)
    drawer = _Drawer(scene, canvas, starved, fitted, strip_cells)
    fixed.append(header(drawer.fitted, MARK_CELLS))
    rows = [
        layout.ScreenRow(row.key, partial(drawer.draw, row, lead))
        for row, lead in zip(found.rows, leads, strict=True)
    ]
    chosen = next((at for at, one in enumerate(rows) if one.key == ask.chosen), 0)
    return ScreenPage(fixed, rows, tail=drawer.about(found.rows[chosen]))


@lru_cache(maxsize=2)
def _looked(picture: _ById, text: str, order: str, as_tree: bool) -> ClientListing:
    status, rates = picture.picture.status, picture.picture.rates
    counts = {(client, place): CheckCounts(*pair) for (place, client), pair in rates.items()}
    seen = seen_of(status.clients if status is not None else (), Recent(counts, 1.0, False))
    wanted = Wanted(
        text, order, as_tree=as_tree, by_database=as_tree,
        open_up_to=EVERYTHING, max_rows=EVERYTHING, max_below=EVERYTHING,
    )  # fmt: skip
    return listing(seen, wanted)


class _ById:
    """A picture, compared by identity: comparing whole ones would cost more than drawing."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture

    def __hash__(self) -> int:
        return id(self.picture)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and self.picture is other.picture


def listed(picture: Picture, text: str, order: str, as_tree: bool) -> ClientListing:
    """Made once for a picture: a redraw between two looks changes ages and strips alone."""
    return _looked(_ById(picture), text, order, as_tree)


@lru_cache(maxsize=2)
def _leads(depths: Sequence[int], labels: Sequence[str], marks: Marks) -> tuple[Sequence[str], int]:
    """The branches before each row, from the last one up: which has another one below it; and how
    many cells the widest name takes with them."""
    leads: list[str] = []
    open_at: set[int] = set()
    gap = " " * len(marks.trunk)
    for depth in reversed(depths):
        trunks = (marks.trunk if at in open_at else gap for at in range(1, depth))
        branch = marks.branch if depth in open_at else marks.last
        leads.append("".join(trunks) + branch if depth else "")
        open_at = {at for at in open_at if at < depth} | {depth}
    leads.reverse()
    return leads, max(len(one) + cell_len(name) for one, name in zip(leads, labels, strict=True))


def _above(
    found: ClientListing, ask: ViewRequest, starved: Sequence[Starved]
) -> list[RenderableType]:
    line = Text(no_wrap=True, overflow="ellipsis").append(
        f"{found.clients:,} {'client' if found.clients == 1 else 'clients'}, "
    )
    line.append(f"{found.throttled:,} throttled", style="bold red" if found.throttled else "green")
    line.append(f"  by {SORTS[ask.order][0]}, {'tree' if ask.as_tree else 'list'}", style="dim")
    if ask.filter:
        line.append(f"  /{plain(ask.filter)}: {found.chosen:,} of them", style="bold yellow")
    is_low = ask.height < LOW_LINES
    first = starved_rows(starved)[: 1 if is_low else MAX_STARVED]
    notes = [replace(one.note, steps=()) if is_low else one.note for one in first]
    parts: list[RenderableType] = [line, *([drawn(notes, ask.canvas)] if notes else [])]
    if len(starved) > len(first):
        left = len(starved) - len(first)
        parts.append(Text(f"and {left} more: headgate starvation", style="dim"))
    return parts


class _Drawer(Struct, frozen=True):
    scene: Scene
    canvas: Canvas
    starved: Sequence[Starved]
    fitted: Sequence[Fitted]
    strip_cells: int

    def draw(self, row: ClientRow, lead: str) -> list[Segment]:
        nothing = self.canvas.marks.nothing
        rates, databases = row.rates, row.databases
        rejected = nothing if rates is None else per_s(rates.rejected + rates.paced)
        name = Text().append(lead, style="dim")
        name.append(plain(row.label), style="bold" if row.is_level else "")
        where = databases[0] if len(databases) == 1 else f"{len(databases)} databases"
        cells = (
            name,
            Text(rejected, style="" if rejected in ("0", nothing) else "red"),
            Text(nothing if rates is None else per_s(rates.admitted)),
            self._now(row),
            strip_cell(self._strip(row), self.strip_cells, self.canvas.marks),
            Text(plain(where), style="dim"),
            Text(age_text(row.seen_s_ago), style="dim"),
        )
        return layout.row(self.fitted, cells)

    def _strip(self, row: ClientRow) -> ThrottledStrip | None:
        told = self.scene.strips.get(row.app)
        found = told.value if told is not None else None
        return found if isinstance(found, ThrottledStrip) else None

    def _now(self, row: ClientRow) -> Text:
        word, tone, detail = row.state
        text = Text()
        if any(_is_about(one, row) for one in self.starved):
            text.append("STARVED ", style="bold red")
        told = loud(f"{word} {detail}".rstrip(), tone).text
        return text.append(plain(told), style=STYLES[tone])

    def about(self, row: ClientRow) -> list[RenderableType]:
        """Of the chosen one: what its row has no room for. Only rows on the screen are drawn."""
        head = Text(no_wrap=True, overflow="ellipsis").append(plain(row.app), style="bold")
        if row.is_level:
            head.append(f"  a level with {len(row.clients):,} clients", style="dim")
        else:
            head.append(f"  on {plain(', '.join(row.databases))}", style="dim")
        parts: list[RenderableType] = [head]
        if (found := self._strip(row)) is not None:
            told = hour_words(found.shares, STRIP_STEP_MINUTES, found.told)
            parts.append(Text(plain(told), style="" if any(found.shares) else "dim"))
        mine = [one for one in self.starved if _is_about(one, row)]
        parts += [drawn([one.note for one in starved_rows(mine[:1])], self.canvas)] if mine else []
        return parts


def _is_about(one: Starved, row: ClientRow) -> bool:
    names = {client.name for client in row.clients}
    return one.client == row.app or one.client in names or bool(names & set(one.members))


# --- the last hour ------------------------------------------------------------------------------


def strip_cell(strip: ThrottledStrip | None, cells: int, marks: Marks) -> Text:
    """From an hour ago to now: which share of its checks was rejected. Blank: no check."""
    found: list[tuple[str, str]] = []
    for share in resampled(strip.shares, cells) if strip is not None and cells else ():
        if share is None:
            found.append((marks.gap, ""))
        elif share <= 0:
            found.append((marks.track, "green"))
        else:
            level = marks.levels[max(1, round(min(share, 1.0) * (len(marks.levels) - 1)))]
            found.append((level, "bold red" if share >= MOSTLY else "yellow"))
    return runs(found)


def resampled(shares: Sequence[float | None], cells: int) -> list[float | None]:
    """To fewer cells: each with the worst of those it replaces."""
    if len(shares) <= cells:
        return list(shares)
    bounds = [round(at * len(shares) / cells) for at in range(cells + 1)]
    return [
        max((share for share in shares[a:b] if share is not None), default=None)
        for a, b in pairwise(bounds)
    ]
