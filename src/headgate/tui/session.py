"""The loop behind a live screen: draw, read keys, run actions in threads.

Threads talk to the agent, so that one that hangs hangs no key and no resize. They ring a bell when
there is news: between two rings nothing runs here.
"""

from __future__ import annotations

import gc
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console, Group, RenderableType
from rich.text import Text

from headgate.base.paths import expanded
from headgate.budgets.api import StatementExplainDoc
from headgate.check.reasons import duration
from headgate.cli.api import Answered, Api, database_path
from headgate.cli.documents import plain, read, read_list
from headgate.cli.history import last_hour, unthrottled
from headgate.cli.options import preview_line, reached_line
from headgate.cli.render import Canvas, drawn, marks_for
from headgate.cli.rules import RULES, rule_path
from headgate.client.routes import MAX_HOPS
from headgate.errors import HeadgateError, InvalidRequest
from headgate.history.api import TimelineDoc
from headgate.present.budgets import explained_view
from headgate.present.explain import explain_view
from headgate.present.history import timeline_view
from headgate.present.rules import changed_view
from headgate.rules.api import ExplainDoc, RuleDoc, RulesDoc
from headgate.tui.layout import Drawn, Extent, View
from headgate.tui.page import Moment, ScreenContext, ScreenFrame, compose, with_window
from headgate.tui.poller import Poller
from headgate.tui.sources import DOCUMENTS, Scene, budget_path
from headgate.tui.state import (
    Action,
    Brought,
    CarryOut,
    Cue,
    Errand,
    Explain,
    ExplainInput,
    Flash,
    Hour,
    KeyContext,
    Prepare,
    Prepared,
    Quit,
    Redraw,
    Save,
    ScreenState,
    heard,
    press,
)
from headgate.tui.terminal import Terminal

REDRAW_S = 1.2
"""Redraw at least this often: ages grow without any news."""
LEAST_FRAME_S = 0.25
"""News that come together are drawn together; a key is answered at once."""
REST_TIMES, MAX_FRAME_S = 150, 3.0
"""News waits this many times what the last frame cost, so that hundreds of clients need less than
1 % of a core, too. A key does not wait."""
NEWER_FRAME_S = REDRAW_S
"""A newer list or strip in place of one that is shown waits for the next status, to be drawn with
it; the first one does not. Shorter than a status takes, each would be drawn alone."""
MAX_YOUNG = 20_000
"""Objects made between two looks of the garbage collector: a status of 500 clients has as many."""
MAX_ERRANDS = 3
"""Under way at a time: each has its deadline, and one that hangs must not get another request."""


class Guide(Struct, frozen=True):
    """Who shows the screen along with something of its own, as the demo does."""

    strip: Callable[[Canvas, int], Sequence[RenderableType]]
    hints: Sequence[str]
    cues: Mapping[str, str]
    """Its keys; with a label, what is to be typed after them."""
    on_cue: Callable[[Cue], None]
    goes_on: Callable[[], bool] = lambda: True


class Errands:
    """Runs what a key asked for, beside the screen."""

    def __init__(
        self,
        api: Api,
        on_done: Callable[[], None] = lambda: None,
        documents: Mapping[str, str] = DOCUMENTS,
    ) -> None:
        """`documents`: what is saved as JSON, by name and path."""
        self._api = api
        self._documents = documents
        self._on_done = on_done
        self._done: deque[Brought] = deque()
        self._running: list[threading.Thread] = []

    def start(self, errand: Errand) -> bool:
        """False: too many are still under way."""
        if self.are_full:
            return False
        thread = threading.Thread(target=self._run, args=(errand,), daemon=True)
        self._running.append(thread)
        thread.start()
        return True

    @property
    def are_full(self) -> bool:
        self._running = [one for one in self._running if one.is_alive()]
        return len(self._running) >= MAX_ERRANDS

    def done(self) -> list[Brought]:
        found = []
        while self._done:
            found.append(self._done.popleft())
        return found

    def _run(self, errand: Errand) -> None:

        try:
            self._done.append(self._brought(errand))
        except HeadgateError as error:
            self._done.append(Brought(errand, text=hint_for(error), is_bad=True))
        self._on_done()

    def _brought(self, errand: Errand) -> Brought:

        if isinstance(errand, Prepare):
            return Brought(errand, prepared=prepare(self._api, errand.action))
        if isinstance(errand, CarryOut):
            return Brought(errand, text=carry_out(self._api, errand.prepared))
        if isinstance(errand, Explain):
            return Brought(errand, page=explained(self._api, errand.question))
        if isinstance(errand, Save):
            return _written(errand, self._save_document)
        assert isinstance(errand, Hour)
        return Brought(errand, page=hour_of(self._api, errand.app))

    def _save_document(self, path: Path) -> None:
        from headgate.tui.export import save_document

        save_document(path, self._api, self._documents)


class ScreenSession:
    def __init__(
        self,
        console: Console,
        poller: Poller,
        api: Api,
        views: Mapping[str, View],
        begin: str,
        guide: Guide | None = None,
        documents: Mapping[str, str] = DOCUMENTS,
    ) -> None:
        self._console = console
        self._poller = poller
        self._errands = Errands(api, poller.bell.ring, documents)
        self._guide = guide
        strip, hints = (guide.strip, guide.hints) if guide is not None else (None, ())
        self._around = ScreenContext(views, marks_for(console.encoding), strip, hints)
        self._state = ScreenState(begin)
        self._frame = ScreenFrame((), Extent())
        self._drawn: tuple[object, ...] = ()
        self._drawn_at_s = float("-inf")
        self._rest_s = LEAST_FRAME_S
        self._known = (0, 0)
        """How many lists and strips the frame was drawn of."""

    def run(self) -> None:
        terminal = Terminal(self._console, self._poller.bell)
        # What was loaded to start stays for good: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(MAX_YOUNG)
        with suppress(KeyboardInterrupt), terminal:
            while self._turn(terminal):
                pass

    def _turn(self, terminal: Terminal) -> bool:
        """Draw where something differs, and take what was pressed; False: leave."""
        for brought in self._errands.done():
            self._state = heard(self._state, brought)
            if isinstance(brought.errand, CarryOut):
                self._poller.ask_again()
        self._want()
        left_s = self._draw_if_due(terminal)
        for at, key in enumerate(terminal.pressed(left_s)):
            if not self._press(key, terminal, is_first=at == 0):
                return False
        return self._guide is None or self._guide.goes_on()

    def _draw_if_due(self, terminal: Terminal) -> float:
        """How long there is nothing to draw, without news and keys."""
        size, scene, newest = terminal.size, self._scene, self._poller.scene
        news = (scene.picture, newest.told, newest.strips)
        known = (self._state, size, *news)
        since_s = time.monotonic() - self._drawn_at_s
        redraw_s = max(REDRAW_S, self._rest_s)
        if since_s < redraw_s and len(self._drawn) == len(known):
            # By identity: comparing whole pictures would cost more than drawing one.
            same = [a is b for a, b in zip(self._drawn, known, strict=True)]
            if same[0] and self._drawn[1] == size:
                if all(same[2:]) and self._guide is None:
                    return redraw_s - since_s
                has_status = not same[2] or self._guide is not None
                wait_s = self._rest_s if has_status else self._wait_s(newest)
                if since_s < wait_s:
                    return wait_s - since_s
        self._draw(terminal, scene, size)
        self._drawn = (self._state, size, *news)
        self._known = (len(newest.told), len(newest.strips))
        return max(REDRAW_S, self._rest_s) if self._guide is None else self._rest_s

    def _wait_s(self, newest: Scene) -> float:
        is_first = self._known != (len(newest.told), len(newest.strips))
        return LEAST_FRAME_S if is_first else NEWER_FRAME_S

    @property
    def _scene(self) -> Scene:
        now, paused = self._poller.scene, self._state.paused
        if paused is None:
            return now
        # A view that was not open then has nothing to hold still: it shows what there is.
        told, strips = {**now.told, **paused.told}, {**now.strips, **paused.strips}
        return Scene(paused.picture, told, strips)

    def _want(self) -> None:
        view = self._around.views[self._state.view]
        keys = self._frame.extent.shown if view.name == "clients" else ()
        clients = [key.partition(" ")[0] for key in keys]
        self._poller.want((*view.sources, *view.extras), clients)

    def _draw(self, terminal: Terminal, scene: Scene, size: tuple[int, int]) -> None:
        at, began_s = _moment(), time.thread_time()
        self._frame = compose(self._state, scene, size, self._around, at)
        if self._state.panel is None:
            self._state = with_window(self._state, self._frame.extent)
        terminal.draw(self._frame.lines, size)
        self._drawn_at_s = at.mono_s
        if self._guide is None:
            cost_s = time.thread_time() - began_s
            self._rest_s = max(LEAST_FRAME_S, min(MAX_FRAME_S, REST_TIMES * cost_s))

    def _press(self, key: str, terminal: Terminal, *, is_first: bool) -> bool:
        if not is_first and self._state.prompt is None:
            # A key pressed fast is for the screen that the last key has made.
            self._frame = compose(self._state, self._scene, terminal.size, self._around, _moment())
        cues = self._guide.cues if self._guide is not None else {}
        seen = KeyContext(
            self._scene, self._frame.extent, self._around.views, _proposed_name(),
            _moment().clock, cues,
        )  # fmt: skip
        self._state, errand = press(self._state, key, seen)
        terminal.use_mouse(self._state.mouse)
        if isinstance(errand, Quit):
            return False
        if isinstance(errand, Redraw):
            terminal.forget()
            self._drawn = ()
        elif isinstance(errand, Cue) and self._guide is not None:
            self._guide.on_cue(errand)
        elif isinstance(errand, Save) and not errand.path.lower().endswith(".json"):
            self._save(errand, terminal.size)
        elif errand is not None and not self._errands.start(errand):
            told = "the agent has not answered the last requests yet: this one was not sent"
            self._state = replace(self._state, busy="", flash=Flash(told, is_bad=True))
        return True

    def _save(self, errand: Save, size: tuple[int, int]) -> None:
        from headgate.tui.export import save_lines

        bare = replace(self._state, prompt=None, flash=None)
        frame = compose(bare, self._scene, size, self._around, _moment())
        brought = _written(errand, lambda path: save_lines(path, frame.lines, size))
        self._state = replace(self._state, flash=Flash(brought.text, brought.is_bad))


def _written(errand: Save, write: Callable[[Path], None]) -> Brought:
    path = Path(errand.path)
    try:
        path = expanded(errand.path)
        write(path)
    except FileExistsError:
        told = f"{path} exists, and is left as it is: give another name"
        return Brought(errand, text=told, is_bad=True)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return Brought(errand, text=f"{path} cannot be written: {why}", is_bad=True)
    return Brought(errand, text=f"written to {path.absolute()}")


def _moment() -> Moment:
    return Moment(time.monotonic(), datetime.now().astimezone())


def _proposed_name() -> str:
    return f"headgate-top-{time.strftime('%Y%m%d-%H%M%S')}.svg"


# --- actions -------------------------------------------------------------------------------------

# What the live screen does for its user: tried first (dry run), shown, asked for, and then done.
#
# Through the agent's own routes, with the token or the socket at hand: the agent says that a viewer
# may not change anything, before there is a question.


def hint_for(error: HeadgateError) -> str:
    """A viewer learns that the role is missing."""
    told = plain(" ".join(str(error).split()))
    status = error.status if isinstance(error, InvalidRequest) else None
    if status in (401, 403):
        return f"you may look, not change: {told}"
    return told


# --- trying ------------------------------------------------------------------------------------


def prepare(api: Api, action: Action) -> Prepared:
    return _PREPARE[action.kind](api, action)


def _lift(api: Api, action: Action) -> Prepared:
    seen = api.get(rule_path(action.target))
    tried = api.change("DELETE", rule_path(action.target), etag=seen.etag, dry_run=True)
    rules = read_list(RuleDoc, tried.document, "rules")
    question = f"Lift {_names(rules)}{_reach(tried.document)}?"
    undo = f"undo: {_as_command(read(RuleDoc, seen.document))}"
    return Prepared(action, question, _page(rules, "LIFTED", tried), seen.etag, undo)


def _extend(api: Api, action: Action) -> Prepared:
    seen = api.get(rule_path(action.target))
    path, body = rule_path(action.target), {"for": action.for_text}
    tried = api.change("PATCH", path, body, etag=seen.etag, dry_run=True)
    before, after = read(RuleDoc, seen.document), read(RuleDoc, tried.document)
    left = f"{duration(before.left_s)} to {duration(after.left_s)}"
    question = f"Extend {plain(after.id)} on {plain(after.target)}, from {left} left"
    undo = f"undo: headgate rule extend {plain(after.id)} --expires-at {plain(before.expires_at)}"
    shown = _page([after], "EXTENDED", tried)
    return Prepared(action, f"{question}{_reach(tried.document)}?", shown, seen.etag, undo)


def _hold(api: Api, action: Action) -> Prepared:
    body = _hold_body(action)
    tried = api.change("POST", RULES, body, dry_run=True)
    rule = read(RuleDoc, tried.document)
    where = f" on {plain(action.database)}" if action.database else ""
    question = f"Reject every check of {plain(rule.target)}{where} for {plain(action.for_text)}?"
    return Prepared(action, question, _page([rule], "SET", tried, last_hour(api, body)))


def _hold_body(action: Action) -> dict[str, Any]:
    given = {"kind": "hold", "target": action.target, "for": action.for_text}
    given |= {"reason": action.reason, "database": action.database or ""}
    return {key: value for key, value in given.items() if value}


def _wake(_api: Api, action: Action) -> Prepared:
    names = action.target.replace(",", ", ")
    told = f"{plain(names)} will be measured as after a check, for a while"
    return Prepared(action, f"Wake {plain(names)}?", lambda _: Text(told))


_PREPARE = {"lift": _lift, "extend": _extend, "hold": _hold, "wake": _wake}


def _page(rules: Sequence[RuleDoc], done: str, tried: Answered, past: str = "") -> Drawn:
    reached = reached_line(tried.document)
    view = changed_view(RulesDoc(rules), done, dry_run=True, reached=reached, past=past)
    return lambda canvas: drawn(view, canvas)


def _names(rules: Sequence[RuleDoc]) -> str:
    return " and ".join(f"{plain(one.id)} ({plain(one.says)})" for one in rules)


def _reach(document: Mapping[str, Any]) -> str:
    """Of a rule for the fleet: which agents it reaches."""
    return f", {preview_line(document)}" if document.get("reached") else ""


def _as_command(rule: RuleDoc) -> str:
    """What would set such a rule again; what it cannot say, the audit has."""
    target, left = plain(rule.target), f"--for {max(1, round(rule.left_s))}s"
    if rule.kind == "hold":
        where = f"--database {plain(rule.database or 'all')}"
        return f"headgate rule hold {target} --reason {plain(rule.reason)!r} {left} {where}"
    return f"headgate audit has what it was; {left} were left"


# --- doing -------------------------------------------------------------------------------------


def carry_out(api: Api, prepared: Prepared) -> str:
    """What was done, in a line, and how to undo it."""
    return _DO[prepared.action.kind](api, prepared)


def _do_lift(api: Api, prepared: Prepared) -> str:
    path = rule_path(prepared.action.target)
    done = api.change("DELETE", path, etag=prepared.etag)
    lifted = ", ".join(plain(one.id) for one in read_list(RuleDoc, done.document, "rules"))
    return f"LIFTED {lifted}; {prepared.undo}"


def _do_extend(api: Api, prepared: Prepared) -> str:
    action = prepared.action
    body = {"for": action.for_text}
    done = api.change("PATCH", rule_path(action.target), body, etag=prepared.etag)
    rule = read(RuleDoc, done.document)
    left = duration(rule.left_s)
    return f"EXTENDED {plain(rule.id)}: {left} left; {prepared.undo}"


def _do_hold(api: Api, prepared: Prepared) -> str:
    rule = read(RuleDoc, api.change("POST", RULES, _hold_body(prepared.action)).document)
    told = f"SET {plain(rule.id)}: {plain(rule.target)} is held for {duration(rule.left_s)}"
    return f"{told}; undo: l on it in 4, or headgate rule lift {plain(rule.id)}"


def _do_wake(api: Api, prepared: Prepared) -> str:
    names = prepared.action.target.split(",")
    for name in names:
        api.change("POST", database_path(name, "wake"), {})
    return f"WOKEN {plain(', '.join(names))}: it hibernates again without checks"


_DO = {"lift": _do_lift, "extend": _do_extend, "hold": _do_hold, "wake": _do_wake}


# --- looking -----------------------------------------------------------------------------------


def hour_of(api: Api, app: str) -> Drawn:
    """A client's, or a level's, own timeline."""
    told = api.get("/v1/history/timeline", app=app, since="1h", step="2m").document
    timeline, without = read(TimelineDoc, told), unthrottled(api, app, 60)
    view = timeline_view(timeline, without=without)
    return lambda canvas: drawn(view, canvas)


def explained(api: Api, question: ExplainInput) -> Drawn:
    if question.is_statement:
        path = budget_path(question.database, "explain")
        told = api.change("POST", path, {"sql": question.text}).document
        found = read(StatementExplainDoc, told)
        return lambda canvas: drawn(explained_view(found), canvas)
    asked, sent = _following(api, question)
    answer = read(ExplainDoc, asked.document)
    return lambda canvas: Group(
        *(Text(line, style="dim") for line in sent),
        drawn(explain_view(answer), canvas),
    )


def _following(api: Api, question: ExplainInput) -> tuple[Answered, list[str]]:
    """From the agent that this one names, as the SDK does it; and which that was."""
    sent: list[str] = []
    database = question.database
    asked = api.ask("/v1/explain", app=question.text, database=database)
    for _ in range(MAX_HOPS):
        onward = api.onward(asked.document.get("check_at"))
        if asked.document.get("verdict") != "WRONG_AGENT" or onward is None:
            break
        sent.append(f"{plain(api.url)} sends us to {plain(onward.url)}")
        database = str(asked.document.get("check_at_database") or database)
        api, asked = onward, onward.ask("/v1/explain", app=question.text, database=database)
    return asked, sent
