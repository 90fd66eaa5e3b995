"""`headgate fleet status`: the fleet on a terminal, once or live.   FleetDoc ──► fleet_page"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headgate.cli.options import AsJson, Token, Url

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from headgate.cli.render import Canvas
    from headgate.wire.fleet_view import FleetDoc, FleetItemDoc, FleetShardDoc

PATH = "/v1/fleet"
TIMEOUT_S = 15.0
"""A picture of ten thousand shards may take a while on a busy host."""
NARROW = 100
STYLES = {
    "unhealthy": "bold red",
    "silent": "bold yellow",
    "starting": "yellow",
    "healthy": "green",
    "resting": "blue",
}
_LOUD = frozenset({"unhealthy", "silent"})

Unhealthy = Annotated[
    bool, typer.Option("--unhealthy", help="Only shards that are unhealthy, or silent.")
]
Behind = Annotated[bool, typer.Option("--behind", help="Only shards with agents that lag behind.")]
Pattern = Annotated[
    str | None,
    typer.Option(metavar="PATTERN", show_default=False, help="Only these; * stands for any."),
]
PageNumber = Annotated[int, typer.Option("--page", min=1, help="Which page of the shards.")]
PerPage = Annotated[int, typer.Option(min=1, max=500, help="Shards on a page.")]
RulesPage = Annotated[int, typer.Option(min=1, help="Which page of the rules.")]
Watch = Annotated[
    bool, typer.Option("--watch", help="Live, as the view `fleet` of `headgate top`; q quits.")
]
Interval = Annotated[
    float, typer.Option(min=1, max=600, metavar="SECONDS", help="With --watch: between two looks.")
]


def status(
    context: typer.Context,
    unhealthy: Unhealthy = False,
    behind: Behind = False,
    region: Pattern = None,
    cluster: Pattern = None,
    shard: Pattern = None,
    page: PageNumber = 1,
    per_page: PerPage = 50,
    rules_page: RulesPage = 1,
    watch: Watch = False,
    interval: Interval = 5.0,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show the fleet: unhealthy shards first, rules and who has them, agents that lag behind.

    Asks an agent that shows the fleet (`view = true` in [fleet] of its settings).
    """
    from headgate.cli.api import connect
    from headgate.cli.documents import read
    from headgate.cli.output import show
    from headgate.wire.fleet_view import FleetDoc

    if watch and as_json:
        raise typer.BadParameter("--watch draws pages; for programs ask again without it")
    asked = {
        "unhealthy": "true" if unhealthy else None,
        "behind": "true" if behind else None,
        "region": region,
        "cluster": cluster,
        "shard": shard,
        "page": str(page),
        "per_page": str(per_page),
        "rules_page": str(rules_page),
    }
    if watch:
        from headgate.cli.top import Watched
        from headgate.cli.top import watch as show_live

        show_live(context, Watched("fleet", interval, url, token, fleet=asked))
        return
    api, part = connect(url, token, timeout_s=TIMEOUT_S), unhealthy or behind
    answered = api.get(PATH, **asked)
    show(
        answered,
        as_json,
        lambda canvas: fleet_page(read(FleetDoc, answered.document), canvas, shards_only=part),
    )


# --- documents -------------------------------------------------------------------------------


# --- pages -----------------------------------------------------------------------------------


def fleet_page(fleet: FleetDoc, canvas: Canvas, *, shards_only: bool = False) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from headgate.cli.render import advice_line

    parts: list[RenderableType] = [_head(fleet, canvas), _figures(fleet, canvas)]
    parts += [advice_line(advice) for advice in fleet.advice]
    parts += [Text(), *_shards(fleet, canvas)]
    if not shards_only:
        parts += [Text(), *_items(fleet, canvas)]
        parts += [Text(), *_behind(fleet)] if fleet.behind else []
    return Group(*parts)


def _head(fleet: FleetDoc, canvas: Canvas) -> Text:
    from rich.text import Text

    from headgate.cli.words import plain

    at = "nothing was ever set for it" if fleet.n is None else f"at revision {fleet.n}"
    line = Text().append("fleet", style="bold").append(f"  {at}")
    dot = canvas.marks.dot
    if fleet.source:
        line.append(f" {dot} {plain(fleet.source)}", "dim")
    else:
        line.append(f" {dot} ").append("STALE: its store is not heard", style="bold red")
    return line.append(f" {dot} shown by {plain(fleet.agent)}", "dim")


def _figures(fleet: FleetDoc, canvas: Canvas) -> Text:
    """`500 shards: 8 UNHEALTHY, 3 SILENT, 489 healthy · 1,500 agents: 3 BEHIND, 1,497 current`."""
    from rich.text import Text

    line = Text(_counted(fleet, "shards"))
    _listed(line, fleet, ("unhealthy", "silent", "starting", "resting", "healthy"), _LOUD)
    line.append(f" {canvas.marks.dot} {_counted(fleet, 'agents')}")
    _listed(line, fleet, _PROGRESS, {"behind", "stale", "refusing"})
    return line


_PROGRESS = ("behind", "stale", "refusing", "unknown", "pending", "current")


def _listed(line: Text, fleet: FleetDoc, names: Sequence[str], loud: Any) -> None:
    told = [name for name in names if getattr(fleet.counts, name)]
    for number, name in enumerate(told):
        line.append(", " if number else ": ")
        word = name.upper() if name in loud else name
        line.append(f"{_count(fleet, name)} {word}", style="bold red" if name in loud else "")


def _counted(fleet: FleetDoc, many: str) -> str:
    named = many.removesuffix("s") if getattr(fleet.counts, many) == 1 else many
    return f"{_count(fleet, many)} {named}"


def _count(fleet: FleetDoc, name: str) -> str:
    return f"{getattr(fleet.counts, name):,}"


def _shards(fleet: FleetDoc, canvas: Canvas) -> list[RenderableType]:
    from rich.text import Text

    if not fleet.shards:
        known = fleet.counts.shards
        told = f"none of {known:,} shards is like that" if known else _NO_SHARDS
        return [Text(told, style="dim")]
    parts: list[RenderableType] = [_shard_table(fleet.shards, canvas)]
    if fleet.pages > 1:
        left = f"page {fleet.page:,} of {fleet.pages:,}: {fleet.matching:,} shards"
        parts.append(Text(f"{left}; --page, --shard 'commerce/*' and --unhealthy", style="dim"))
    return parts


_NO_SHARDS = (
    "no shard is known yet: agents with a [fleet] table, and databases with a shard, appear here"
)


def _shard_table(shards: Sequence[FleetShardDoc], canvas: Canvas) -> Table:
    from rich.text import Text

    from headgate.cli.render import plain_table
    from headgate.cli.words import age_text, plain

    wide = canvas.width >= NARROW
    names = ("shard", *(("where",) if wide else ()), "is", "for", "agents", "lag", "refused", "why")
    table = _copyable(plain_table(*names, right=frozenset({"for", "lag", "refused"})), canvas, 1)
    for one in shards:
        where = " ".join(filter(None, (one.region, one.cluster)))
        nothing = canvas.marks.nothing
        cells = [
            Text(plain(one.shard), style="bold" if one.condition in _LOUD else ""),
            *([Text(plain(where), style="dim")] if wide else []),
            _condition(one),
            Text(nothing if one.for_s is None else age_text(one.for_s), style="dim"),
            Text(str(len(one.agents))),
            Text(nothing if one.lag_s is None else age_text(one.lag_s)),
            _refused(one, canvas),
            _why(one),
        ]
        table.add_row(*cells)
    return table


def _condition(one: FleetShardDoc) -> Text:
    from rich.text import Text

    from headgate.cli.words import plain

    word = plain(one.condition)
    return Text(word.upper() if word in _LOUD else word, style=STYLES.get(word, ""))


def _copyable(table: Table, canvas: Canvas, columns: int) -> Table:
    """What people search for and paste stays in one piece; what is left over is cut."""
    for column in table.columns[:columns]:
        column.no_wrap, column.overflow = True, "ellipsis"
        column.max_width = max(20, canvas.width // 2)
    return table


def _refused(one: FleetShardDoc, canvas: Canvas) -> Text:
    from rich.text import Text

    from headgate.wire.reasons import share_of

    if one.refused is None:
        return Text(canvas.marks.nothing, style="dim")
    return Text(share_of(one.refused), style="red" if one.refused else "")


def _why(one: FleetShardDoc) -> Text:
    from rich.text import Text

    from headgate.cli.words import plain

    lines = [Text(plain(one.why))] if one.why else []
    for agent in one.agents:
        if agent.progress == "behind":
            told = f"{plain(agent.host)} BEHIND, at {agent.n} of {agent.wanted_n}"
            lines.append(Text(told, style="bold red"))
        elif agent.stale_for_s is not None:
            lines.append(Text(f"{plain(agent.host)} hears nothing of the fleet", style="yellow"))
        if agent.refused:
            told = f"{plain(agent.host)} could not put in force {plain(', '.join(agent.refused))}"
            lines.append(Text(told, style="bold red"))
        if agent.problem:
            told = f"{plain(agent.member)}: {plain(agent.problem)}"
            lines.append(Text(told, style="magenta"))
    return Text("\n").join(lines)


def _items(fleet: FleetDoc, canvas: Canvas) -> list[RenderableType]:
    from rich.text import Text

    from headgate.cli.render import plain_table
    from headgate.cli.words import age_text, plain

    if not fleet.items:
        return [Text("nothing is set for the fleet: everybody is judged by the metrics", "dim")]
    wide = canvas.width >= NARROW
    names = ("id", "reach", "who has it", "n", "left", *(("by",) if wide else ()), "what")
    table = _copyable(plain_table(*names, right=frozenset({"n", "left"})), canvas, 1)
    for item in fleet.items:
        left = canvas.marks.nothing if item.left_s is None else age_text(item.left_s)
        what = f"{plain(item.says)}{f': {plain(item.reason)}' if item.reason else ''}"
        by = [Text(plain(item.set_by), style="dim")] if wide else []
        table.add_row(
            Text(plain(item.id)), Text(plain(item.reach)), _holders(item), Text(str(item.n)),
            Text(left), *by, Text(what),
        )  # fmt: skip
    parts: list[RenderableType] = [table]
    if fleet.items_pages > 1:
        told = f"page {fleet.items_page:,} of {fleet.items_pages:,}: --rules-page"
        parts.append(Text(told, style="dim"))
    return parts


def _holders(item: FleetItemDoc) -> Text:
    from rich.text import Text

    if not item.agents:
        return Text("reaches nobody known", style="yellow")
    cell = Text(f"{item.have:,} of {item.agents:,}")
    if item.without:
        cell.append(f"\n{item.without:,} at an older n", style="bold red")
    if item.refused:
        cell.append(f"\n{item.refused:,} could not", style="bold red")
    return cell


def _behind(fleet: FleetDoc) -> list[RenderableType]:
    from rich.text import Text

    from headgate.cli.render import plain_table
    from headgate.cli.words import plain

    table = plain_table("behind", "shard", "has", "newest", "version", right=_NUMBERS)
    for one in fleet.behind:
        cells = (plain(one.host), plain(one.shard), str(one.n), str(one.wanted_n))
        table.add_row(*map(Text, cells), Text(plain(one.version), style="dim"))
    more = fleet.counts.behind - len(fleet.behind)
    return [table, *([Text(f"and {more:,} more", style="dim")] if more > 0 else [])]


_NUMBERS = frozenset({"has", "newest"})
