"""What the live screen makes of a key.

    (ScreenState, key, what was shown) ──► ScreenState, errand or none

Pure: the terminal, the agent and the clock are session.py's. What an errand brings back comes in
through `heard`. A view's own keys are in views.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from headgate.check.api import StatusDoc
from headgate.tui.layout import Drawn, Extent, RowCursor, View
from headgate.tui.sources import Scene

MAX_TYPED_CHARS = 500
MOTIONS = frozenset(
    {"up", "down", "pageup", "pagedown", "home", "end", "k", "j", "g", "G", "wheelup", "wheeldown"}
)
WHEEL_LINES = 3
DEFAULT_FOR = "1h"
FIRST_ORDER = "throttled"


class Action(Struct, frozen=True):
    kind: str
    """`lift`, `extend`, `hold` or `wake`."""
    target: str
    """A rule's id; of a hold, the client; of a wake, which databases, by commas."""
    for_text: str = DEFAULT_FOR
    reason: str = ""
    database: str | None = None


class Prepared(Struct, frozen=True):
    """Tried, and ready to be done as it was seen."""

    action: Action
    question: str
    page: Drawn
    etag: str | None = None
    undo: str = ""


class ExplainInput(Struct, frozen=True):
    text: str
    """A client's name, or a statement."""
    database: str

    @property
    def is_statement(self) -> bool:
        return _STATEMENT.match(self.text) is not None and " " in self.text


_STATEMENT = re.compile(
    r"(select|insert|update|delete|with|merge|copy|call|create|alter)\b", re.IGNORECASE
)
_ELSEWHERE = re.compile(r"(.+)\s@([\w.-]+)", re.DOTALL)


def parse_question(typed: str, databases: Sequence[str]) -> ExplainInput:
    """`etl:nightly main`, `select 1 @main`; without a place, the first database is meant."""
    text = " ".join(typed.split())
    place = databases[0] if databases else ""
    if found := _ELSEWHERE.fullmatch(text):
        return ExplainInput(found[1], found[2])
    if not ExplainInput(text, "").is_statement and " " in text:
        text, _, place = text.rpartition(" ")
    return ExplainInput(text, place)


# --- the state ---------------------------------------------------------------------------------


class Prompt(Struct, frozen=True):
    """A line to type into."""

    kind: str
    """`filter`, `save`, `explain`, `for`, `reason`, or a cue's key."""
    label: str
    text: str = ""
    action: Action | None = None


class Panel(Struct, frozen=True):
    """Over the view: help, a client's hour, or what is to be confirmed."""

    title: str
    page: Drawn
    prepared: Prepared | None = None
    """To be confirmed."""


class Flash(Struct, frozen=True):
    text: str
    is_bad: bool = False


class ScreenState(Struct, frozen=True):
    view: str = "overview"
    cursors: Mapping[str, RowCursor] = {}
    firsts: Mapping[str, int] = {}
    """Per view, the first row that was shown: the list does not jump."""
    filter: str = ""
    order: str = FIRST_ORDER
    as_tree: bool = True
    tab: int = 0
    mouse: bool = True
    prompt: Prompt | None = None
    panel: Panel | None = None
    panel_at: int = 0
    flash: Flash | None = None
    paused: Scene | None = None
    paused_at: str = ""
    """By the clock on the wall."""
    explained: Drawn | None = None
    asked: ExplainInput | None = None
    busy: str = ""
    """What the agent is working on."""

    @property
    def cursor(self) -> RowCursor:
        return self.cursors.get(self.view, RowCursor())


# --- errands -----------------------------------------------------------------------------------


class Quit(Struct, frozen=True):
    pass


class Redraw(Struct, frozen=True):
    pass


class Save(Struct, frozen=True):
    path: str


class Hour(Struct, frozen=True):
    app: str


class Explain(Struct, frozen=True):
    question: ExplainInput


class Prepare(Struct, frozen=True):
    action: Action


class CarryOut(Struct, frozen=True):
    prepared: Prepared


class Cue(Struct, frozen=True):
    """A key that is not the screen's own: the guide knows what it does."""

    key: str
    typed: str = ""


Errand = Quit | Redraw | Save | Hour | Explain | Prepare | CarryOut | Cue
Next = tuple[ScreenState, Errand | None]


class KeyContext(Struct, frozen=True):
    """What the key was pressed at."""

    scene: Scene
    extent: Extent
    views: Mapping[str, View]
    save_as: str
    """The name that is proposed for a snapshot."""
    clock: str
    cues: Mapping[str, str] = {}
    """Keys beside the screen's own; with a label, what is to be typed after them."""

    @property
    def status(self) -> StatusDoc | None:
        return self.scene.picture.status

    @property
    def databases(self) -> Sequence[str]:
        return [one.database for one in self.status.databases] if self.status is not None else ()

    @property
    def chosen(self) -> str:
        """The key of the chosen row."""
        return self.extent.keys[self.extent.at] if self.extent.keys else ""


Act = Callable[[ScreenState, KeyContext], Next]


def press(state: ScreenState, key: str, seen: KeyContext) -> Next:
    if key == "quit":
        return state, Quit()
    if key == "redraw":
        return state, Redraw()
    if state.prompt is not None:
        return _typed(state, state.prompt, key, seen)
    state = replace(state, flash=None)
    if key.startswith("click "):
        return _clicked(state, key, seen)
    if state.panel is not None:
        return _at_panel(state, state.panel, key, seen)
    return _at_view(state, key, seen)


def told(state: ScreenState, text: str, *, bad: bool = False) -> ScreenState:
    return replace(state, flash=Flash(text, bad))


# --- typing ------------------------------------------------------------------------------------


def _typed(state: ScreenState, prompt: Prompt, key: str, seen: KeyContext) -> Next:
    if key == "esc":
        was = "" if prompt.kind == "filter" else state.filter
        return replace(state, prompt=None, filter=was), None
    if key == "enter":
        return _entered(replace(state, prompt=None), prompt, seen)
    text = prompt.text
    if key == "backspace":
        text = text[:-1]
    elif key == "clear":
        text = ""
    elif len(key) == 1 and len(text) < MAX_TYPED_CHARS:
        text += key
    state = replace(state, prompt=replace(prompt, text=text))
    return (replace(state, filter=text) if prompt.kind == "filter" else state), None


def _entered(state: ScreenState, prompt: Prompt, seen: KeyContext) -> Next:
    text, action = prompt.text.strip(), prompt.action
    if prompt.kind == "filter":
        return replace(state, filter=text), None
    if not text:
        return told(state, "nothing was typed: nothing is done"), None
    if prompt.kind == "save":
        return state, Save(text)
    if prompt.kind == "explain":
        question = parse_question(text, seen.databases)
        return replace(state, asked=question, busy="asking"), Explain(question)
    if action is None:
        return state, Cue(prompt.kind, text)
    if prompt.kind == "for":
        action = replace(action, for_text=text)
        if action.kind == "hold":
            label = f"why is {action.target} on hold? "
            return replace(state, prompt=Prompt("reason", label, "", action)), None
    else:
        action = replace(action, reason=text)
    return replace(state, busy="trying"), Prepare(action)


# --- a panel -----------------------------------------------------------------------------------


def _at_panel(state: ScreenState, panel: Panel, key: str, seen: KeyContext) -> Next:
    if key in MOTIONS:
        return replace(state, panel_at=_moved(seen.extent.at, key, seen.extent)), None
    shut = replace(state, panel=None, panel_at=0)
    if panel.prepared is not None:
        if key in ("y", "Y"):
            return replace(shut, busy="doing"), CarryOut(panel.prepared)
        if key in ("n", "N", "esc", "enter", "q", "Q"):
            return told(shut, "nothing was changed"), None
        return state, None
    if key in ("q", "Q", "esc", "enter", "?", "backspace", "left"):
        return shut, None
    opens = any(view.key == key for view in seen.views.values())
    return _at_view(shut, key, seen) if opens else (state, None)


# --- a view ------------------------------------------------------------------------------------


def _at_view(state: ScreenState, key: str, seen: KeyContext) -> Next:
    if key in ("q", "Q"):
        return state, Quit()
    for view in seen.views.values():
        if view.key == key:
            return replace(state, view=view.name), None
    act = seen.views[state.view].acts.get(key) or _ACTS.get(key)
    if act is not None:
        return act(state, seen)
    if key in seen.cues:
        label = seen.cues[key]
        return (replace(state, prompt=Prompt(key, label)), None) if label else (state, Cue(key))
    if key in MOTIONS:
        return _with_cursor(state, _moved(seen.extent.at, key, seen.extent), seen.extent), None
    elsewhere = [f"{one.key} {one.name}" for one in seen.views.values() if key in one.acts]
    if len(key) == 1 and elsewhere:
        return told(state, f"{key} is a key of {' and '.join(elsewhere)}"), None
    return state, None


def _clicked(state: ScreenState, key: str, seen: KeyContext) -> Next:
    """On a name in the line of keys, or on a row: chosen by the first click, opened by the next."""
    _, column, line = key.split()
    x, y, extent = int(column), int(line), seen.extent
    for button in extent.buttons:
        if button.line == y and button.begins <= x < button.ends:
            return press(state, button.key, seen)
    at = extent.first + y - extent.top
    if state.panel is not None or not 0 <= y - extent.top < len(extent.shown):
        return state, None
    if at == extent.at:
        return press(state, "enter", seen)
    return _with_cursor(state, at, extent), None


def _moved(at: int, key: str, extent: Extent) -> int:
    steps = {
        "up": -1, "k": -1, "down": 1, "j": 1, "wheelup": -WHEEL_LINES, "wheeldown": WHEEL_LINES,
        "pageup": -extent.room, "pagedown": extent.room,
        "home": -extent.lines, "g": -extent.lines, "end": extent.lines, "G": extent.lines,
    }  # fmt: skip
    last = extent.lines - 1 if extent.keys else extent.lines - extent.room
    return max(0, min(at + steps[key], last))


def _with_cursor(state: ScreenState, at: int, extent: Extent) -> ScreenState:
    key = extent.keys[at] if extent.keys else ""
    return replace(state, cursors={**state.cursors, state.view: RowCursor(key, at)})


def _help(state: ScreenState, seen: KeyContext) -> Next:
    from headgate.tui.page import help_page

    return replace(state, panel=Panel("help", help_page(seen.views))), None


def stepped(state: ScreenState, by: int, seen: KeyContext) -> ScreenState:
    names = list(seen.views)
    return replace(state, view=names[(names.index(state.view) + by) % len(names)])


def _on(by: int) -> Act:
    return lambda state, seen: (stepped(state, by, seen), None)


def _back(state: ScreenState, _: KeyContext) -> Next:
    if state.paused is not None:
        return replace(state, paused=None), None
    return replace(state, filter="", busy=""), None


def _pause(state: ScreenState, seen: KeyContext) -> Next:
    if state.paused is not None:
        return replace(state, paused=None), None
    return replace(state, paused=seen.scene, paused_at=seen.clock), None


def _filter(state: ScreenState, _: KeyContext) -> Next:
    return replace(state, prompt=Prompt("filter", "/", state.filter)), None


def _save(state: ScreenState, seen: KeyContext) -> Next:
    label = "write to (.svg .html .json .txt): "
    return replace(state, prompt=Prompt("save", label, seen.save_as)), None


def _mouse(state: ScreenState, _: KeyContext) -> Next:
    state = replace(state, mouse=not state.mouse)
    words = "the mouse chooses rows" if state.mouse else "the mouse selects text; m takes it back"
    return told(state, words), None


def _wake(state: ScreenState, seen: KeyContext) -> Next:
    resting = [
        one.database
        for one in (seen.status.databases if seen.status is not None else ())
        if one.activity != "awake"
    ]
    if not resting:
        return told(state, "no database is idle: there is nothing to wake"), None
    return replace(state, busy="trying"), Prepare(Action("wake", ",".join(resting)))


def type_question(state: ScreenState, seen: KeyContext) -> Next:
    if "explain" not in seen.views:
        return told(state, "x explains a check at an agent; this is a proxy"), None
    before = f"{state.asked.text} @{state.asked.database}" if state.asked else ""
    prompt = Prompt("explain", "client (and @database): ", before)
    return replace(state, view="explain", prompt=prompt), None


def _again(state: ScreenState, _: KeyContext) -> Next:
    return state, Redraw()


_ACTS: Mapping[str, Act] = {
    "?": _help, "tab": _on(1), "esc": _back, " ": _pause, "/": _filter, "s": _save, "m": _mouse,
    "r": _again, "w": _wake, "x": type_question,
    "right": _on(1), "left": _on(-1), "backtab": _on(-1),
}  # fmt: skip


# --- what an errand brought back ---------------------------------------------------------------


class Brought(Struct, frozen=True):
    """Of an errand: what to show, to confirm or to say."""

    errand: Errand
    page: Drawn | None = None
    prepared: Prepared | None = None
    text: str = ""
    is_bad: bool = False


def heard(state: ScreenState, brought: Brought) -> ScreenState:
    waited, state = bool(state.busy), replace(state, busy="")
    if brought.is_bad or brought.text:
        return replace(state, flash=Flash(brought.text, brought.is_bad))
    if brought.prepared is not None:
        if state.prompt is not None or state.panel is not None or not waited:
            # A key for something else must not be taken for a yes.
            return told(state, f"{brought.prepared.question} Too late: press the key again")
        panel = Panel(brought.prepared.question, brought.prepared.page, brought.prepared)
        return replace(state, panel=panel, panel_at=0)
    if isinstance(brought.errand, Explain):
        return replace(state, explained=brought.page)
    if isinstance(brought.errand, Hour) and brought.page is not None:
        title = f"{brought.errand.app}, its last hour"
        return replace(state, panel=Panel(title, brought.page), panel_at=0)
    return state
