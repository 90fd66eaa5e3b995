"""What `top` makes of a key.   (State, key, what was shown) ──► State, and an errand or none

Pure: the screen, the agent and the clock are top.py's. What an errand brings back comes in
through `heard`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headgate.cli.top_actions import DEFAULT_FOR, Action, Drawn, Prepared, Question, parse_question
from headgate.cli.top_clients import ORDERS, Wanted
from headgate.cli.top_feed import Scene
from headgate.cli.top_layout import Cursor, Extent
from headgate.cli.top_views import BY_KEY, VIEWS
from headgate.wire.status import StatusDoc as Status

MAX_TYPED_CHARS = 500
MOTIONS = frozenset({"up", "down", "pageup", "pagedown", "home", "end", "k", "j", "g", "G"})


@dataclass(frozen=True, slots=True)
class Prompt:
    """A line to type into."""

    kind: str
    """`filter`, `save`, `explain`, `for` or `reason`."""
    label: str
    text: str = ""
    action: Action | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """Over the view: help, a client's hour, or what is asked back."""

    title: str
    page: Drawn
    prepared: Prepared | None = None
    """To be confirmed."""


@dataclass(frozen=True, slots=True)
class Flash:
    text: str
    is_bad: bool = False


@dataclass(frozen=True, slots=True)
class State:
    view: str = "overview"
    cursors: Mapping[str, Cursor] = field(default_factory=dict)
    firsts: Mapping[str, int] = field(default_factory=dict)
    """Per view, the first row that was shown: the list does not jump."""
    filter: str = ""
    order: str = next(iter(ORDERS))
    as_tree: bool = True
    tab: int = 0
    prompt: Prompt | None = None
    panel: Panel | None = None
    panel_at: int = 0
    flash: Flash | None = None
    paused: Scene | None = None
    paused_at: str = ""
    """By the clock on the wall."""
    explained: Drawn | None = None
    asked: Question | None = None
    busy: str = ""
    """What is being asked of the agent."""

    @property
    def cursor(self) -> Cursor:
        return self.cursors.get(self.view, Cursor())

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.filter, self.order, self.as_tree, self.cursor.key)


# --- errands -----------------------------------------------------------------------------------


class Leave:
    pass


class Redraw:
    pass


@dataclass(frozen=True, slots=True)
class Save:
    path: str


@dataclass(frozen=True, slots=True)
class Hour:
    app: str


@dataclass(frozen=True, slots=True)
class Explain:
    question: Question


@dataclass(frozen=True, slots=True)
class Prepare:
    action: Action


@dataclass(frozen=True, slots=True)
class CarryOut:
    prepared: Prepared


Errand = Leave | Redraw | Save | Hour | Explain | Prepare | CarryOut
Next = tuple[State, Errand | None]


@dataclass(frozen=True, slots=True)
class Seen:
    """What the key was pressed at."""

    scene: Scene
    extent: Extent
    save_as: str
    """The name that is proposed for a snapshot."""
    clock: str

    @property
    def status(self) -> Status | None:
        return self.scene.view.status

    @property
    def databases(self) -> Sequence[str]:
        return [one.database for one in self.status.databases] if self.status is not None else ()


def press(state: State, key: str, seen: Seen) -> Next:
    if key == "leave":
        return state, Leave()
    if key == "redraw":
        return state, Redraw()
    if state.prompt is not None:
        return _typed(state, state.prompt, key, seen)
    state = replace(state, flash=None)
    if state.panel is not None:
        return _at_panel(state, state.panel, key, seen)
    return _at_view(state, key, seen)


# --- typing ------------------------------------------------------------------------------------


def _typed(state: State, prompt: Prompt, key: str, seen: Seen) -> Next:
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


def _entered(state: State, prompt: Prompt, seen: Seen) -> Next:
    text, action = prompt.text.strip(), prompt.action
    if prompt.kind == "filter":
        return replace(state, filter=text), None
    if not text:
        return _told(state, "nothing was typed: nothing is done"), None
    if prompt.kind == "save":
        return state, Save(text)
    if prompt.kind == "explain":
        question = parse_question(text, seen.databases)
        return replace(state, asked=question, busy="asking"), Explain(question)
    assert action is not None
    if prompt.kind == "for":
        action = replace(action, for_text=text)
        if action.kind == "hold":
            label = f"why is {action.target} held? "
            return replace(state, prompt=Prompt("reason", label, "", action)), None
    else:
        action = replace(action, reason=text)
    return replace(state, busy="trying"), Prepare(action)


def _told(state: State, text: str, *, bad: bool = False) -> State:
    return replace(state, flash=Flash(text, bad))


# --- a panel -----------------------------------------------------------------------------------


def _at_panel(state: State, panel: Panel, key: str, seen: Seen) -> Next:
    if key in MOTIONS:
        return replace(state, panel_at=_moved(seen.extent.at, key, seen.extent)), None
    shut = replace(state, panel=None, panel_at=0)
    if panel.prepared is not None:
        if key in ("y", "Y"):
            return replace(shut, busy="doing"), CarryOut(panel.prepared)
        if key in ("n", "N", "esc", "enter", "q", "Q"):
            return _told(shut, "nothing was changed"), None
        return state, None
    if key in ("q", "Q", "esc", "enter", "?", "backspace", "left"):
        return shut, None
    return _at_view(shut, key, seen) if key in BY_KEY else (state, None)


# --- a view ------------------------------------------------------------------------------------


def _at_view(state: State, key: str, seen: Seen) -> Next:
    if key in ("q", "Q"):
        return state, Leave()
    if key in BY_KEY:
        return replace(state, view=BY_KEY[key]), None
    if key in MOTIONS:
        return _with_cursor(state, _moved(seen.extent.at, key, seen.extent), seen.extent), None
    act = _ACTS.get(key)
    return act(state, seen) if act is not None else (state, None)


def _moved(at: int, key: str, extent: Extent) -> int:
    steps = {
        "up": -1, "k": -1, "down": 1, "j": 1,
        "pageup": -extent.room, "pagedown": extent.room,
        "home": -extent.lines, "g": -extent.lines, "end": extent.lines, "G": extent.lines,
    }  # fmt: skip
    last = extent.lines - 1 if extent.keys else extent.lines - extent.room
    return max(0, min(at + steps[key], last))


def _with_cursor(state: State, at: int, extent: Extent) -> State:
    key = extent.keys[at] if extent.keys else ""
    return replace(state, cursors={**state.cursors, state.view: Cursor(key, at)})


def _chosen(seen: Seen) -> str:
    keys = seen.extent.keys
    return keys[seen.extent.at] if keys else ""


def _help(state: State, _: Seen) -> Next:
    from headgate.cli.top_help import help_page

    return replace(state, panel=Panel("help", help_page)), None


def _next_view(state: State, _: Seen) -> Next:
    if state.view == "past":
        return replace(state, tab=1 - state.tab, cursors={**state.cursors, "past": Cursor()}), None
    return _stepped(state, 1), None


def _stepped(state: State, by: int) -> State:
    names = list(VIEWS)
    return replace(state, view=names[(names.index(state.view) + by) % len(names)])


def _back(state: State, _: Seen) -> Next:
    if state.paused is not None:
        return replace(state, paused=None), None
    return replace(state, filter="", busy=""), None


def _pause(state: State, seen: Seen) -> Next:
    if state.paused is not None:
        return replace(state, paused=None), None
    return replace(state, paused=seen.scene, paused_at=seen.clock), None


def _filter(state: State, _: Seen) -> Next:
    return replace(state, prompt=Prompt("filter", "/", state.filter)), None


def _order(state: State, _: Seen) -> Next:
    names = list(ORDERS)
    return replace(state, order=names[(names.index(state.order) + 1) % len(names)]), None


def _tree(state: State, _: Seen) -> Next:
    return replace(state, as_tree=not state.as_tree), None


def _save(state: State, seen: Seen) -> Next:
    return replace(state, prompt=Prompt("save", "write to (.svg .html .txt): ", seen.save_as)), None


def _open(state: State, seen: Seen) -> Next:
    if state.view == "clients" and _chosen(seen):
        app = _chosen(seen).partition(" ")[0]
        return replace(state, busy=f"asking for the last hour of {app}"), Hour(app)
    if state.view == "explain":
        before = f"{state.asked.text} @{state.asked.database}" if state.asked else ""
        return replace(state, prompt=Prompt("explain", "who (and @where): ", before)), None
    return state, None


def _again(state: State, _: Seen) -> Next:
    if state.view == "explain" and state.asked is not None:
        return replace(state, busy="asking"), Explain(state.asked)
    return state, Redraw()


def _explain_chosen(state: State, seen: Seen) -> Next:
    """Of the chosen client: why is it answered so?"""
    app, _, database = _chosen(seen).partition(" ")
    if state.view != "clients" or not app:
        return _open(replace(state, view="explain"), seen)
    question = Question(app, database or (seen.databases[0] if seen.databases else ""))
    return replace(state, view="explain", asked=question, busy="asking"), Explain(question)


def _wake(state: State, seen: Seen) -> Next:
    resting = [
        one.database
        for one in (seen.status.databases if seen.status is not None else ())
        if one.activity != "normal"
    ]
    if not resting:
        return _told(state, "no database rests: there is nobody to wake"), None
    return replace(state, busy="trying"), Prepare(Action("wake", ",".join(resting)))


def _lift(state: State, seen: Seen) -> Next:
    if state.view != "rules" or not _chosen(seen):
        return _told(state, "l lifts a rule: choose one in 4"), None
    return replace(state, busy="trying"), Prepare(Action("lift", _chosen(seen)))


def _extend(state: State, seen: Seen) -> Next:
    if state.view != "rules" or not _chosen(seen):
        return _told(state, "e extends a rule: choose one in 4"), None
    action = Action("extend", _chosen(seen))
    label = f"extend {action.target} for, from now: "
    return replace(state, prompt=Prompt("for", label, DEFAULT_FOR, action)), None


def _hold(state: State, seen: Seen) -> Next:
    if state.view != "clients" or not _chosen(seen):
        return _told(state, "h holds a client, or a level: choose one in 3"), None
    app, _, database = _chosen(seen).partition(" ")
    action = Action("hold", app, database=database or None)
    where = f" on {database}" if database else ""
    label = f"hold {app}{where} for: "
    return replace(state, prompt=Prompt("for", label, DEFAULT_FOR, action)), None


Act = Callable[[State, Seen], Next]


def _on(by: int) -> Act:
    return lambda state, _: (_stepped(state, by), None)


_ACTS: Mapping[str, Act] = {
    "?": _help, "tab": _next_view, "esc": _back, " ": _pause, "/": _filter, "o": _order,
    "t": _tree, "s": _save, "enter": _open, "r": _again, "x": _explain_chosen, "w": _wake,
    "l": _lift, "e": _extend, "h": _hold,
    "right": _on(1), "left": _on(-1), "backtab": _on(-1),
}  # fmt: skip


# --- what an errand brought back ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Brought:
    """Of an errand: what to show, or to ask back, or to say."""

    errand: Errand
    page: Drawn | None = None
    prepared: Prepared | None = None
    text: str = ""
    is_bad: bool = False


def heard(state: State, brought: Brought) -> State:
    waited, state = bool(state.busy), replace(state, busy="")
    if brought.is_bad or brought.text:
        return replace(state, flash=Flash(brought.text, brought.is_bad))
    if brought.prepared is not None:
        if state.prompt is not None or state.panel is not None or not waited:
            # A key for something else must not be taken for a yes.
            return _told(state, f"{brought.prepared.question} Not asked any more: press it again")
        panel = Panel(brought.prepared.question, brought.prepared.page, brought.prepared)
        return replace(state, panel=panel, panel_at=0)
    if isinstance(brought.errand, Explain):
        return replace(state, explained=brought.page)
    if isinstance(brought.errand, Hour) and brought.page is not None:
        title = f"{brought.errand.app}, its last hour"
        return replace(state, panel=Panel(title, brought.page), panel_at=0)
    return state
