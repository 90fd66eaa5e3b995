"""The views of the whole and of shards: what is unhealthy, who is throttled, by what. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from headgate.check.answers import MetricDoc
from headgate.check.api import ClientDoc, DatabaseDoc, StatusDoc
from headgate.check.reasons import WAKES, duration
from headgate.cli.pages import (
    INDENT,
    agent_line,
    client_table,
    database_blocks,
)
from headgate.cli.render import Canvas, note_text, plain
from headgate.cli.tree import curves, shard_tree
from headgate.present.metrics import UNSPOKEN
from headgate.present.rules import not_here
from headgate.present.status import agent_notes
from headgate.present.words import advice_of, is_loud
from headgate.rules.api import RulesDoc
from headgate.tui.layout import ScreenPage, ViewRequest
from headgate.tui.paint import Ruler
from headgate.tui.sources import LastAnswer, Scene
from headgate.tui.trend import Picture

MIN_CLIENT_LINES = 5
MAX_ADVICE = 2
MAX_LOUD = 4
LONG_CHARS = 40
MEMBERS_A_LINE = 3
RESTS_S = 60.0


# --- 1 overview --------------------------------------------------------------------------------


def draw(scene: Scene, ask: ViewRequest) -> ScreenPage:
    status = scene.picture.status
    if status is None:
        return ScreenPage([Text("waiting for the agent's first answer", style="dim")])
    more = [
        *_rule_notes(scene.of("rules")),
        *_idle_note(status.databases),
        *_restarted(scene, ask),
    ]
    parts = overview(scene.picture, status, ask.canvas, ask.height, more=more)
    return ScreenPage(lines=Ruler(ask.canvas.width).lines(*parts))


def _rule_notes(told: LastAnswer) -> list[Text]:
    found = told.value
    if not isinstance(found, RulesDoc):
        return []
    here = [rule for rule in found.rules if rule.state == "in_force"]
    notes = [note_text(not_here(one)) for one in found.rejected]
    if here:
        held = [rule for rule in here if rule.kind in ("hold", "ratio")]
        told_of = ", ".join(f"{plain(r.target)} ({plain(r.says)})" for r in held[:3])
        line = Text(no_wrap=True, overflow="ellipsis").append("rules  ", style="yellow")
        line.append(f"{len(here)} in force{f': {told_of}' if told_of else ''}; 4 shows them")
        notes.append(line)
    return notes


def _idle_note(databases: Sequence[DatabaseDoc]) -> list[Text]:
    idle = [one.database for one in databases if one.idle]
    if not idle:
        return []
    names = plain(", ".join(idle[:5])) + (f" and {len(idle) - 5} more" * (len(idle) > 5))
    told = f"idle  {names}: {WAKES}; w wakes it now"
    return [Text(told, style="bold blue")]


def _restarted(scene: Scene, ask: ViewRequest) -> list[Text]:
    at_s = scene.picture.restarted_at_s
    if at_s is None or ask.now_s - at_s > 60:
        return []
    return [Text(f"the agent restarted {duration(ask.now_s - at_s)} ago", style="bold yellow")]


# --- 2 shard -----------------------------------------------------------------------------------


def draw_shards(scene: Scene, ask: ViewRequest) -> ScreenPage:
    status = scene.picture.status
    if status is None or not status.databases:
        none = "waiting for the agent's first answer" if status is None else "no database"
        return ScreenPage([Text(none, style="dim")])
    parts: list[RenderableType] = []
    for database in status.databases:
        parts += _database(database, scene, ask)
    return ScreenPage(lines=Ruler(ask.canvas.width).lines(*parts[1:]))


def _database(database: DatabaseDoc, scene: Scene, ask: ViewRequest) -> list[RenderableType]:
    canvas, recent = ask.canvas, scene.picture.recent
    blocks = database_blocks([_without_shard(database)], canvas, recent)
    shard = database.shard
    if shard is None:
        return blocks
    of_members = {
        name: values for (where, name), values in recent.items() if where == database.database
    }
    width = max(20, canvas.width - INDENT)
    tree = shard_tree(shard, canvas.marks, width, curves(of_members, width))
    return [*blocks, Padding(tree, (0, 0, 0, INDENT))]


def _without_shard(database: DatabaseDoc) -> DatabaseDoc:
    """Its tree is drawn below, with curves; why no agent rolls up it, the tree says."""
    if database.shard is None:
        return database
    quiet = [replace(m, detail="") if m.cause in UNSPOKEN else m for m in database.metrics]
    return replace(database, shard=None, metrics=quiet)


# --- the overview's parts -----------------------------------------------------------------------


def overview(
    picture: Picture,
    status: StatusDoc,
    canvas: Canvas,
    height: int,
    *,
    more: Sequence[RenderableType] = (),
) -> list[RenderableType]:
    """What to do, then what is unhealthy, then who is held, by what and since when.

    `more`: what others than the status tell, such as rules in force; a line each.
    """
    notes = [*_notes(status), *more]  # Each database begins with an empty line.
    return [*notes, _body(picture, status, canvas, height - _height(notes, canvas.width))]


def _height(parts: Sequence[RenderableType], width: int) -> int:
    return sum(
        max(1, -(-part.cell_len // max(1, width))) if isinstance(part, Text) else 1
        for part in parts
    )


def head(picture: Picture, canvas: Canvas, corner: str) -> Text:
    left = Text().append("headgate", style="bold")
    if picture.status is not None:
        left = agent_line(replace(picture.status, settings=""), canvas)
    elif picture.proxy is not None:
        about = picture.proxy.proxy
        left = Text().append(f"proxy {plain(about.name)}", style="bold")
        left.append(f" {plain(about.version)} {canvas.marks.dot} up {duration(about.uptime_s)}")
    left.append(f" {canvas.marks.dot} {plain(picture.url)}", style="dim")
    left.truncate(max(1, canvas.width - len(corner) - 1), overflow="ellipsis")
    line = Text(no_wrap=True, overflow="crop").append_text(left)
    line.append(" " * max(1, canvas.width - left.cell_len - len(corner)))
    return line.append(corner, style="dim")


def lost_line(picture: Picture, now_s: float) -> Text:
    since = (
        duration(max(0.0, now_s - picture.lost_at_s)) if picture.lost_at_s is not None else "now"
    )
    what = "AGENT" if picture.proxy is None else "PROXY"
    words = f"{what} UNREACHABLE for {since}: {plain(picture.lost or '')}"
    line = Text().append(words, style="bold red")
    if picture.seen_at_s is not None:
        ago = duration(max(0.0, now_s - picture.seen_at_s))
        line.append(f"\nbelow is what it said {ago} ago")
    return line


def _notes(status: StatusDoc) -> list[RenderableType]:
    notes: list[RenderableType] = [note_text(note) for note in agent_notes(status)]
    found = advice_of(status.advice)
    loud = [note for note in found if is_loud(note)]
    quiet = [note for note in found if not is_loud(note)]
    shown = (*loud[:MAX_LOUD], *quiet[:MAX_ADVICE])
    notes += [note_text(note) for note in shown]
    if len(shown) < len(status.advice):
        left = len(status.advice) - len(shown)
        notes.append(Text(f"and {left} more pieces of advice: headgate status", style="dim"))
    return notes


def _body(picture: Picture, status: StatusDoc, canvas: Canvas, height: int) -> Group:
    databases, left_out = fitted(status.databases, height - MIN_CLIENT_LINES)
    parts = database_blocks(databases, canvas, picture.recent, trees=False)
    if left_out:
        parts.append(Text(f"  and {left_out} more metrics, all of them healthy", style="dim"))
    used = sum(_lines(database) for database in databases) + bool(left_out)
    return Group(*parts, Text(), *_clients(picture, status, canvas, height - used - 1))


def _clients(
    picture: Picture, status: StatusDoc, canvas: Canvas, height: int
) -> list[RenderableType]:
    if not status.clients:
        return [Text("no client has checked yet", style="dim")]
    clients = sorted(status.clients, key=_urgency)
    shown = clients[: max(1, height - 2)]
    parts: list[RenderableType] = [client_table(shown, canvas, picture.rates)]
    if len(shown) < len(clients):
        parts.append(Text(f"and {len(clients) - len(shown)} more clients", style="dim"))
    return parts


def _urgency(client: ClientDoc) -> tuple[float, bool, str, str]:
    """Held longest first; then by name, so that rows stay where they are."""
    rests = client.last_seen_s_ago > RESTS_S
    return (-(client.rejected_for_s or 0.0), rests, client.client, client.database)


def fitted(databases: Sequence[DatabaseDoc], height: int) -> tuple[list[DatabaseDoc], int]:
    """What fits: where not all does, healthy metrics far from their thresholds go first."""
    if sum(_lines(database) for database in databases) <= height:
        return list(databases), 0
    each = max(1, height // max(1, len(databases)) - 3)
    # What no check is judged by unless it names it goes before anything else.
    shown = [
        replace(database, metrics=_pressing(database.metrics, each), other_metrics=())
        for database in databases
    ]
    # Who rejects must be on the screen, even where most of the rest is not.
    shown.sort(key=lambda database: database.idle or database.verdict == "OK")
    before = sum(len(database.every_metric) for database in databases)
    return shown, before - sum(len(database.every_metric) for database in shown)


def _pressing(metrics: Sequence[MetricDoc], count: int) -> list[MetricDoc]:
    """All that reject checks, and of the others as many as there is room for, in their order."""
    by_urgency = sorted(
        metrics, key=lambda m: (m.state not in ("breached", "unavailable"), -(m.share or 0.0))
    )
    rejecting = sum(m.state in ("breached", "unavailable") for m in metrics)
    kept = {m.metric for m in by_urgency[: max(count, rejecting)]}
    return [m for m in metrics if m.metric in kept]


def _lines(database: DatabaseDoc) -> int:
    """An estimate: rows, and two lines for a message that goes beneath them."""
    every = database.every_metric
    messages = {metric.detail for metric in every if len(metric.detail) > LONG_CHARS}
    shard = 0 if database.shard is None else 1 + len(database.shard.members) // MEMBERS_A_LINE
    resting = database.activity != "awake"
    told = sum(
        0 < len(m.detail) <= LONG_CHARS and m.state not in ("unavailable", "idle") for m in every
    )
    rows = bool(database.other_metrics) + max(1, len(every)) + 2 * len(messages) + told
    paced = 0 if database.pace is None else 1 + bool(database.pace.clients_total)
    return 3 + rows + shard + resting + paced
