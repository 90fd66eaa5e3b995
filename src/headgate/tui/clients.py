"""Clients as a tree by the levels of their names, each with its last hour. Pure.

`etl:nightly` and `etl:hourly` hang below `etl`, which has their sums. A level with one client
only shares a line with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace
from rich.console import RenderableType
from rich.text import Text

from headgate.cli.bars import Marks
from headgate.cli.render import Canvas
from headgate.cli.watch import starvation_page
from headgate.cli.words import age_text, plain
from headgate.core.timeline import MOSTLY
from headgate.present.clients import held_by, rejected_for, state_of
from headgate.present.words import per_s
from headgate.present.words import told_share as percent
from headgate.tui.layout import (
    MARK_CELLS,
    Ask,
    Column,
    Fitted,
    Page,
    Row,
    fit,
    header,
    longest,
    needing,
    row,
)
from headgate.tui.overview import RESTS_S
from headgate.tui.sources import STRIP_STEP_MINUTES, Scene, Strip
from headgate.wire.reasons import duration
from headgate.wire.starvation import StarvedDoc
from headgate.wire.status import ClientDoc

MAX_STARVED = 2
Rates = Mapping[tuple[str, str], tuple[float, float]]

COLUMNS = (
    Column("client", 14, 44, 1),
    Column("rejected/s", 10, 9, 3, right=True),
    Column("admitted/s", 10, 10, 4, right=True),
    Column("now", 16, 48, 2),
    Column("last hour", 15, 30, 5),
    Column("database", 8, 16, 6),
    Column("seen", 6, 6, 7, right=True),
)


class Node(Struct, frozen=True):
    """A client on one database, or a level with those below it."""

    label: str
    app: str
    """Its name for the history: the levels down to here."""
    clients: Sequence[ClientDoc]
    below: Sequence[Node] = ()

    @property
    def only(self) -> ClientDoc | None:
        return self.clients[0] if len(self.clients) == 1 else None

    @property
    def key(self) -> str:
        """`etl:nightly main`, or, of a level, `etl`: names have no spaces."""
        return f"{self.app} {self.only.database}" if self.only and not self.below else self.app


class Standing(Struct, frozen=True):
    """Of a node: how much is rejected now, and since when."""

    refused_per_s: float | None
    admitted_per_s: float | None
    held: int
    held_for_s: float
    seen_s_ago: float


def standing(node: Node, rates: Rates) -> Standing:
    pairs = [rates[key] for c in node.clients if (key := (c.database, c.client)) in rates]
    held = [held_s for c in node.clients if (held_s := rejected_for(c)) is not None]
    return Standing(
        sum(pair[1] for pair in pairs) if pairs else None,
        sum(pair[0] for pair in pairs) if pairs else None,
        len(held),
        max(held, default=0.0),
        min(c.last_seen_s_ago for c in node.clients),
    )


Order = Callable[[Node, Standing], tuple[object, ...]]
ORDERS: Mapping[str, Order] = {
    "held longest": lambda n, s: (-s.held_for_s, s.seen_s_ago > RESTS_S, n.label),
    "rejected most": lambda n, s: (-(s.refused_per_s or 0.0), -s.held_for_s, n.label),
    "admitted most": lambda n, s: (-(s.admitted_per_s or 0.0), n.label),
    "name": lambda n, s: (n.label,),
}


# --- the tree ----------------------------------------------------------------------------------


def grown(clients: Sequence[ClientDoc]) -> list[Node]:
    return _below([(tuple(c.client.split(":")), c) for c in clients], ())


Named = tuple[tuple[str, ...], ClientDoc]


def _below(named: Sequence[Named], above: tuple[str, ...]) -> list[Node]:
    by_token: dict[str, list[Named]] = {}
    leaves: list[Node] = []
    for levels, client in named:
        if len(levels) == len(above):
            leaves.append(Node("(itself)", ":".join(above), [client]))
        else:
            by_token.setdefault(levels[len(above)], []).append((levels, client))
    return [*leaves, *(_node(token, mine, above) for token, mine in by_token.items())]


def _node(token: str, named: Sequence[Named], above: tuple[str, ...]) -> Node:
    path = (*above, token)
    clients = [client for _, client in named]
    if len(named) == 1:
        levels = named[0][0]
        return Node(":".join(levels[len(above) :]), ":".join(levels), clients)
    below = _below(named, path)
    if len(below) == 1:  # One way down only: said in one line.
        return replace(below[0], label=f"{token}:{below[0].label}")
    same = all(levels == path for levels, _ in named)
    below = [replace(n, label=f"on {n.clients[0].database}") for n in below] if same else below
    return Node(token, ":".join(path), clients, below)


def matching(clients: Sequence[ClientDoc], wanted: str) -> list[ClientDoc]:
    """Whose name, database or what holds it has `wanted` in it, in whatever case."""
    words = wanted.lower().split()
    return [c for c in clients if all(word in _about(c) for word in words)]


def _about(client: ClientDoc) -> str:
    held = "held" if rejected_for(client) is not None else state_of(client).text
    return f"{client.client} {client.database} {client.refused_by} {held}".lower()


def flat(clients: Sequence[ClientDoc]) -> list[Node]:
    return [Node(c.client, c.client, [c]) for c in clients]


# --- the page ----------------------------------------------------------------------------------


def draw(scene: Scene, ask: Ask) -> Page:
    status, canvas = scene.picture.status, ask.canvas
    every = status.clients if status is not None else ()
    clients = matching(every, ask.filter)
    starved = told.starved if (told := scene.of("starvation").value) is not None else ()
    nodes = grown(clients) if ask.as_tree else flat(clients)
    columns = needing(
        COLUMNS,
        client=_name_cells(nodes, canvas.marks),
        database=longest({c.database for c in clients}),
    )
    drawer = _Drawer(scene, canvas, ask.now, starved, fit(columns, canvas.width - MARK_CELLS))
    rows = list(drawer.rows(nodes, ask.order))
    by_key = {found.key: node for found, node in rows}
    fixed = _above(every, clients, ask, starved)
    if not rows:
        none = "no client has checked yet" if not every else f"no client matches {ask.filter!r}"
        return Page([*fixed, Text(none, style="dim")])
    fixed.append(Text("  ").append_text(header(drawer.fitted)))
    chosen = by_key.get(ask.chosen) or rows[0][1]
    return Page(fixed, [found for found, _ in rows], tail=drawer.about(chosen))


def _name_cells(nodes: Sequence[Node], marks: Marks, depth: int = 0) -> int:
    own = longest(node.label for node in nodes) + depth * len(marks.trunk)
    return max([own, *(_name_cells(node.below, marks, depth + 1) for node in nodes if node.below)])


def _above(
    every: Sequence[ClientDoc],
    shown: Sequence[ClientDoc],
    ask: Ask,
    starved: Sequence[StarvedDoc],
) -> list[RenderableType]:
    held = sum(rejected_for(c) is not None for c in every)
    line = Text(no_wrap=True, overflow="ellipsis").append(
        f"{len(every):,} {'client' if len(every) == 1 else 'clients'}, "
    )
    line.append(f"{held:,} held", style="bold red" if held else "green")
    line.append(f"  by {ask.order}, {'tree' if ask.as_tree else 'list'}", style="dim")
    if ask.filter:
        line.append(f"  /{plain(ask.filter)}: {len(shown):,} of them", style="bold yellow")
    loud = sorted(starved, key=lambda one: -one.share)[:MAX_STARVED]
    parts: list[RenderableType] = [line]
    parts += [starvation_page(loud, ask.canvas)] if loud else []
    if len(starved) > len(loud):
        left = len(starved) - len(loud)
        parts.append(Text(f"and {left} more: headgate starvation", style="dim"))
    return parts


class _Drawer(Struct, frozen=True):
    scene: Scene
    canvas: Canvas
    now: datetime
    starved: Sequence[StarvedDoc]
    fitted: Sequence[Fitted]

    def rows(self, nodes: Sequence[Node], order: str) -> Iterator[tuple[Row, Node]]:
        yield from self._rows(nodes, ORDERS[order], "")

    def _rows(self, nodes: Sequence[Node], order: Order, prefix: str) -> Iterator[tuple[Row, Node]]:
        rates, marks = self.scene.picture.rates, self.canvas.marks
        judged = [(node, standing(node, rates)) for node in nodes]
        judged.sort(key=lambda pair: order(*pair))
        is_top = prefix == ""
        for index, (node, its) in enumerate(judged):
            last = index == len(judged) - 1
            branch = "" if is_top else marks.last if last else marks.branch
            lead = "" if is_top else prefix[1:] + branch
            yield Row(node.key, partial(self.draw, node, its, lead)), node
            trunk = "" if is_top else " " * len(marks.trunk) if last else marks.trunk
            yield from self._rows(node.below, order, f"{prefix or ' '}{trunk}")

    def draw(self, node: Node, its: Standing, lead: str) -> Text:
        nothing = self.canvas.marks.nothing
        refused, admitted = (
            nothing if rate is None else per_s(rate)
            for rate in (its.refused_per_s, its.admitted_per_s)
        )
        name = Text().append(lead, style="dim")
        name.append(plain(node.label), style="bold" if node.below else "")
        databases = {c.database for c in node.clients}
        where = next(iter(databases)) if len(databases) == 1 else f"{len(databases)} databases"
        cells = (
            name,
            Text(refused, style="red" if its.refused_per_s else ""),
            Text(admitted),
            self._now(node, its),
            strip_cell(self._strip(node), self._width("last hour"), self.canvas.marks),
            Text(plain(where), style="dim"),
            Text(age_text(its.seen_s_ago), style="dim"),
        )
        return row(self.fitted, cells)

    def _width(self, name: str) -> int:
        return next((one.width for one in self.fitted if one.column.name == name), 0)

    def _strip(self, node: Node) -> Strip | None:
        told = self.scene.strips.get(node.app)
        found = told.value if told is not None else None
        return found if isinstance(found, Strip) else None

    def _now(self, node: Node, its: Standing) -> Text:
        text = Text()
        if any(_is_about(one, node) for one in self.starved):
            text.append("STARVED ", style="bold red")
        if node.below:
            many = f"{its.held:,} of {len(node.clients):,} held"
            longest = f", longest {duration(its.held_for_s)}" if its.held else ""
            style = "red" if its.held else "green"
            return text.append(f"{many}{longest}" if its.held else "all admitted", style=style)
        return text.append_text(held_cell(node.clients[0], self.now))

    def about(self, node: Node) -> list[RenderableType]:
        """Of the chosen one: what its row has no room for. Only rows on the screen are drawn."""
        head = Text(no_wrap=True, overflow="ellipsis").append(plain(node.app), style="bold")
        client = node.only
        if client is None:
            head.append(f"  a level with {len(node.clients):,} clients", style="dim")
        else:
            head.append(
                f"  on {plain(client.database)}: {client.admitted:,} admitted, "
                f"{client.refused:,} rejected since the agent started; last {client.last_verdict}",
                style="dim",
            )
        parts: list[RenderableType] = [head]
        if (found := self._strip(node)) is not None:
            parts.append(_hour_line(found))
        mine = [one for one in self.starved if _is_about(one, node)]
        parts += [starvation_page(mine[:1], self.canvas)] if mine else []
        return parts


def _is_about(one: StarvedDoc, node: Node) -> bool:
    names = {c.client for c in node.clients}
    return one.client == node.app or not names.isdisjoint(one.members) or one.client in names


def held_cell(client: ClientDoc, now: datetime) -> Text:
    if client.refused_for_s is None or rejected_for(client) is None:
        state = state_of(client)
        return Text(state.text, style="green" if state.tone == "good" else "dim")
    since = now - timedelta(seconds=client.refused_for_s)
    at = f"{since:%H:%M}" if client.refused_for_s < 86_400 else f"{since:%d %b %H:%M}"
    by = held_by(client.last_verdict, client.refused_by)
    by = f" by {plain(by)}" if by else ""
    if client.last_verdict == "PACED":
        return Text(f"paced for {duration(client.refused_for_s)}", style="cyan")
    told = f"HELD {duration(client.refused_for_s)}{by}, since {at}"
    return Text(told, style="bold red")


def strip_cell(strip: Strip | None, cells: int, marks: Marks) -> Text:
    """From an hour ago to now: which share of its checks was rejected. Blank: no check."""
    text = Text()
    for share in resampled(strip.shares, cells) if strip is not None and cells else ():
        if share is None:
            text.append(marks.gap)
        elif share <= 0:
            text.append(marks.track, style="green")
        else:
            level = marks.levels[max(1, round(min(share, 1.0) * (len(marks.levels) - 1)))]
            text.append(level, style="bold red" if share >= MOSTLY else "yellow")
    return text


def resampled(shares: Sequence[float | None], cells: int) -> list[float | None]:
    """To fewer cells: each with the worst of those it replaces."""
    if len(shares) <= cells:
        return list(shares)
    bounds = [round(at * len(shares) / cells) for at in range(cells + 1)]
    return [_worst(shares[a:b]) for a, b in pairwise(bounds)]


def _worst(shares: Sequence[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return max(known) if known else None


def _hour_line(found: Strip) -> Text:
    asked = [share for share in found.shares if share is not None]
    if not asked:
        return Text("no check within the last hour", style="dim")
    mostly = sum(share >= MOSTLY for share in asked) * STRIP_STEP_MINUTES
    worst = percent(max(asked))
    told = f"last hour: mostly held for at most {mostly} min; {worst} of its checks at worst"
    return Text(f"{told}{f', most by {plain(found.told)}' if found.told else ''}")
