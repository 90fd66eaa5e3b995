"""A whole frame: head, what is wrong, the view or a panel over it, keys. Pure.

ScreenState + Scene + size ──compose──► lines, and what of them can be moved within or clicked on
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from headgate.check.answer_api import MetricDoc
from headgate.check.api import ClientDoc, DatabaseDoc, StatusDoc
from headgate.check.reasons import WAKES, duration
from headgate.cli.documents import plain
from headgate.cli.pages import (
    INDENT,
    agent_line,
    database_blocks,
)
from headgate.cli.render import Canvas, Marks, drawn, note_text
from headgate.cli.tree import curves, shard_tree
from headgate.present.clients import NOBODY, clients_table
from headgate.present.metrics import UNSPOKEN
from headgate.present.rules import not_here
from headgate.present.shard import in_a_line
from headgate.present.status import agent_notes
from headgate.present.words import advice_of, is_loud
from headgate.rules.api import RulesDoc
from headgate.tui.layout import (
    Button,
    Drawn,
    Extent,
    RowCursor,
    ScreenPage,
    View,
    ViewRequest,
    laid_out,
)
from headgate.tui.paint import Line, Lines, Ruler, dimmed
from headgate.tui.sources import LastAnswer, Scene
from headgate.tui.state import Flash, ScreenState
from headgate.tui.trend import Picture

MIN_COLUMNS, MIN_LINES = 20, 4
MAX_LOST_LINES = 3
ALWAYS = ("? help", "q quit")


class Moment(Struct, frozen=True):
    """When it is drawn."""

    mono_s: float
    wall: datetime

    @property
    def clock(self) -> str:
        return f"{self.wall:%H:%M:%S}"


class ScreenFrame(Struct, frozen=True):
    lines: Sequence[Line]
    extent: Extent


class ScreenContext(Struct, frozen=True):
    """What is on every frame, whatever is known: the terminal's marks, the views, a strip."""

    views: Mapping[str, View]
    marks: Marks
    strip: Callable[[Canvas, int], Sequence[RenderableType]] | None = None
    """Above every view, in at most so many lines."""
    hints: Sequence[str] = ()
    """Keys of the guide, such as the demo."""


def compose(
    state: ScreenState, scene: Scene, size: tuple[int, int], around: ScreenContext, at: Moment
) -> ScreenFrame:
    """Exactly as many lines as the screen has, the last of them the keys."""
    width, height = max(MIN_COLUMNS, size[0]), max(MIN_LINES, size[1])
    canvas, ruler = Canvas(width, around.marks), Ruler(width)
    above = _above(state, scene, canvas, ruler, at)
    if around.strip is not None:
        above += ruler.lines(*around.strip(canvas, height // 3))[: height // 3]
    below, buttons = _below(state, around, ruler)
    room = max(1, height - len(above) - len(below))
    body, extent = _body(state, scene, around.views, canvas, room, at)
    is_own = state.panel is not None or around.views[state.view].is_own
    if scene.picture.lost is not None and not is_own:
        body = dimmed(body)
    body = [*body[:room], *([()] * (room - len(body)))]
    first = max(0, height - len(below))
    lines = [*[*above, *body][:first], *below][:height]
    extent = replace(extent, top=extent.top + len(above), buttons=_moved_down(buttons, first))
    return ScreenFrame(lines, extent)


def still(
    view: View, scene: Scene, canvas: Canvas, height: int, at: Moment
) -> list[RenderableType]:
    """One frame without keys, no longer than it has to be: for a pipe, a file, `--once`."""
    state = ScreenState(view.name)
    ruler = Ruler(canvas.width)
    above = _above(state, scene, canvas, ruler, at)
    ask = ViewRequest(canvas, max(1, height - len(above)), at.mono_s, at.wall, order=state.order)
    body = _everything(view.draw(scene, ask), canvas, ask.height)
    return [Lines([*above, *(dimmed(body) if scene.picture.lost is not None else body)])]


# --- above and below ---------------------------------------------------------------------------


def _above(
    state: ScreenState, scene: Scene, canvas: Canvas, ruler: Ruler, at: Moment
) -> list[Line]:
    corner = f"PAUSED since {state.paused_at}" if state.paused is not None else at.clock
    lines = ruler.lines(head(scene.picture, canvas, corner))[:1]
    if scene.picture.lost is not None:
        told = ruler.lines(lost_line(scene.picture, at.mono_s))
        # Its last line dates the picture below.
        lines += told if len(told) <= MAX_LOST_LINES else [*told[: MAX_LOST_LINES - 1], told[-1]]
    return lines


Buttons = list[Button]


def _moved_down(buttons: Buttons, lines: int) -> Buttons:
    return [one._replace(line=one.line + lines) for one in buttons]


def _below(state: ScreenState, around: ScreenContext, ruler: Ruler) -> tuple[list[Line], Buttons]:
    lines: list[Line] = []
    if state.prompt is not None:
        return [_prompt_line(state.prompt.label, state.prompt.text, ruler)], []
    if state.panel is not None:
        return [*_flash(state.flash, ruler), *_panel_keys(state, ruler)], []
    lines += _flash(state.flash, ruler)
    if state.busy:
        lines += ruler.lines(_one_line(f"{plain(state.busy)} ...", "bold yellow"))
    keys, buttons = footer(around.views, state.view, ruler.width, around.hints)
    drawn = ruler.lines(*keys)
    return [*lines, *drawn], _moved_down(buttons, len(lines))


def _flash(flash: Flash | None, ruler: Ruler) -> list[Line]:
    if flash is None:
        return []
    style = "bold red" if flash.is_bad else "bold green"
    return ruler.lines(Text(plain(flash.text), style=style))[:3]


def _prompt_line(label: str, text: str, ruler: Ruler) -> Line:
    """The end of what is typed stays to be seen."""
    room = max(1, ruler.width - len(label) - 1)
    line = Text(no_wrap=True, overflow="crop", end="").append(plain(label), style="bold")
    line.append(plain(text[-room:])).append(" ", style="reverse")
    return ruler.lines(line)[0]


def _panel_keys(state: ScreenState, ruler: Ruler) -> list[Line]:
    assert state.panel is not None
    if state.panel.prepared is None:
        return ruler.lines(_one_line("Esc back  j k move", "dim"))
    question = Text(plain(state.panel.prepared.question), style="bold yellow")
    return ruler.lines(question.append(" y/N", style="bold reverse"))


def _one_line(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis", end="")


def footer(
    views: Mapping[str, View], opened: str, width: int, more: Sequence[str] = ()
) -> tuple[list[Text], Buttons]:
    """One line, and one for `more`: how to leave and where help is always; then what this view
    can, then names. With where to click."""
    hints = [*ALWAYS, *views[opened].hints, "space pause", "s save"]
    wanted = len("  ".join([*ALWAYS, *views[opened].hints])) + 2
    line, buttons = _names(views, opened, short=False)
    if line.cell_len + wanted > width:
        line, buttons = _names(views, opened, short=True)
    lines = [_hinted(line, hints, width, buttons)]
    if more:
        second = Text(no_wrap=True, overflow="crop", end="")
        buttons = _moved_down(buttons, 1)
        lines.insert(0, _hinted(second, more, width, buttons))
    return lines, buttons


def _hinted(line: Text, hints: Sequence[str], width: int, buttons: Buttons) -> Text:
    for index, hint in enumerate(hints):
        gap = "  " if index else ""
        if line.cell_len + len(gap) + len(hint) <= width or hint in ALWAYS:
            begins = line.cell_len + len(gap)
            line.append(gap + hint, style="dim")
            key = hint.partition(" ")[0].lower()
            key = {"space": " "}.get(key, key)
            buttons.append(Button(0, begins, begins + len(hint), key))
    return line


def _names(views: Mapping[str, View], opened: str, *, short: bool) -> tuple[Text, Buttons]:
    line, buttons = Text(no_wrap=True, overflow="crop", end=""), Buttons()
    for view in views.values():
        is_open = view.name == opened
        shown = f"{view.key} {view.name}" if is_open or not short else view.key
        buttons.append(Button(0, line.cell_len, line.cell_len + len(shown), view.key))
        line.append(shown, style="bold reverse" if is_open else "dim").append(" ")
    return line, buttons


# --- between -----------------------------------------------------------------------------------


def _body(
    state: ScreenState,
    scene: Scene,
    views: Mapping[str, View],
    canvas: Canvas,
    room: int,
    at: Moment,
) -> tuple[list[Line], Extent]:
    if state.panel is not None:
        page = _panel_page(state, canvas)
        return laid_out(page, RowCursor("", state.panel_at), (canvas.width, room))
    ask = ViewRequest(
        canvas, room, at.mono_s, at.wall, state.filter, state.order, state.as_tree,
        state.cursor.key, state.tab, state.explained,
    )  # fmt: skip
    page = views[state.view].draw(scene, ask)
    first = state.firsts.get(state.view, 0)
    return laid_out(page, state.cursor, (canvas.width, room), first=first)


def _panel_page(state: ScreenState, canvas: Canvas) -> ScreenPage:
    assert state.panel is not None
    title = Text(plain(state.panel.title), style="bold", no_wrap=True, overflow="ellipsis")
    lines = Ruler(canvas.width).lines(state.panel.page(canvas))
    # A prompt is below, where the answer goes.
    return ScreenPage([] if state.panel.prepared is not None else [title, Text()], lines=lines)


def _everything(page: ScreenPage, canvas: Canvas, room: int) -> list[Line]:
    """Nobody chooses anything here, and nobody scrolls."""
    ruler = Ruler(canvas.width)
    fixed = ruler.lines(*page.fixed)
    room = max(1, room - len(fixed))
    rows = [ruler.cropped([Segment("  "), *one.draw()]) for one in page.rows[:room]]
    left = len(page.rows) - len(rows)
    more = ruler.lines(Text(f"  and {left:,} more", style="dim")) if left > 0 else []
    lines = list(page.lines[:room])
    return [*fixed, *rows, *lines, *more]


def with_window(state: ScreenState, extent: Extent) -> ScreenState:
    """Remember where the list was, so that the next frame's does not jump."""
    if state.firsts.get(state.view) == extent.first:
        return state
    return replace(state, firsts={**state.firsts, state.view: extent.first})


# --- help --------------------------------------------------------------------------------------

KEYS: tuple[tuple[str, str], ...] = (
    ("j k ↓ ↑", "move; PgUp PgDn g G and the mouse wheel as well"),
    ("Tab ← →", "the next view, the one before; in 6, Tab changes lists"),
    ("Enter", "in 3, the chosen client's own last hour; in 7, explain"),
    ("click", "choose a row, and open it by a second click; a view, below"),
    ("Esc", "back; clear the filter; end a pause"),
    ("/", "filter: names, databases, rules, what throttles, `throttled`"),
    ("o t", "in 3, another order; tree or list"),
    ("x", "explain: in 3, why the chosen client is answered as it is"),
    ("space", "freeze the screen, or continue"),
    ("s", "write what is on the screen to a file: .svg, .html, text; .json has everything"),
    ("m", "give the mouse to the terminal, to select text, and take it back"),
    ("w", "wake databases that are idle; looking alone wakes none"),
    ("l e", "in 4, lift or extend the chosen rule"),
    ("h", "in 3, hold the chosen client, or the whole level"),
    ("r", "in 7, explain again; elsewhere, draw again"),
    ("q", "quit; Ctrl-C as well"),
)
NOTES = (
    "A change is tried first: you see what it would do, and y does it. Every other key does not.",
    "A bar's end is the threshold; beyond it the bar is red. Curves: the worst of each quarter of",
    "a minute, the newest at the right. Last hour: blank did not check, a dot was admitted, and",
    "the higher the mark the more of its checks were rejected.",
)


def help_page(views: Mapping[str, View]) -> Drawn:
    def draw(canvas: Canvas) -> RenderableType:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column()
        for view in views.values():
            table.add_row(Text(view.key, style="bold"), Text(f"{view.name}: {view.about}"))
        table.add_row(Text(), Text())
        for keys, about in KEYS:
            table.add_row(Text(_plain(keys, canvas), style="bold"), Text(about))
        return Group(table, Text(), Text(" ".join(NOTES), style="dim"))

    return draw


def _plain(keys: str, canvas: Canvas) -> str:
    if canvas.marks.arrow == "->":
        return keys.replace("↓ ↑", "arrows").replace("← →", "arrows")
    return keys


# --- overview ------------------------------------------------------------------------------------

# The views of the whole and of shards: what is unhealthy, who is throttled, by what. Pure.

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
    return [*notes, _overview_body(picture, status, canvas, height - _height(notes, canvas.width))]


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


def _overview_body(picture: Picture, status: StatusDoc, canvas: Canvas, height: int) -> Group:
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
        return [Text(NOBODY, style="dim")]
    clients = sorted(status.clients, key=_urgency)
    shown = clients[: max(1, height - 2)]
    parts: list[RenderableType] = [drawn([clients_table(shown, picture.rates)], canvas)]
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
    # Metrics that count only for checks that name them go first.
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
    shard = 0 if database.shard is None else 1 + len(in_a_line(database.shard)[0]) // MEMBERS_A_LINE
    resting = database.activity != "awake"
    told = sum(
        0 < len(m.detail) <= LONG_CHARS and m.state not in ("unavailable", "idle") for m in every
    )
    rows = bool(database.other_metrics) + max(1, len(every)) + 2 * len(messages) + told
    paced = 0 if database.pace is None else 1 + bool(database.pace.clients_total)
    return 3 + rows + shard + resting + paced
