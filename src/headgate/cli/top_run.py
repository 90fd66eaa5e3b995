"""The loop behind `headgate top` on a terminal: draw, read keys, run errands in threads."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from rich.console import Console

from headgate.cli.api import Api
from headgate.cli.bars import marks_for
from headgate.cli.keys import Keys
from headgate.cli.poller import Poller
from headgate.cli.signals import ending_on_signals
from headgate.cli.snapshot import save_lines
from headgate.cli.top_actions import carry_out, explained, hint_for, hour_of, prepare
from headgate.cli.top_feed import Scene
from headgate.cli.top_layout import Extent
from headgate.cli.top_page import Frame, Moment, compose, with_window
from headgate.cli.top_screen import Screen
from headgate.cli.top_state import (
    Brought,
    CarryOut,
    Errand,
    Explain,
    Flash,
    Hour,
    Leave,
    Prepare,
    Redraw,
    Save,
    Seen,
    State,
    heard,
    press,
)
from headgate.cli.top_views import VIEWS
from headgate.errors import HeadgateError
from headgate.paths import expanded

KEY_SLICE_S = 0.1
REDRAW_S = 1.0
"""Redraw at least this often: ages grow although nothing was heard."""
MAX_ERRANDS = 3
"""Under way at a time: each has its deadline, and one that hangs must not be asked again."""


class Errands:
    """Runs what a key asked for, beside the screen."""

    def __init__(self, api: Api) -> None:
        self._api = api
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

    def _brought(self, errand: Errand) -> Brought:
        if isinstance(errand, Prepare):
            return Brought(errand, prepared=prepare(self._api, errand.action))
        if isinstance(errand, CarryOut):
            return Brought(errand, text=carry_out(self._api, errand.prepared))
        if isinstance(errand, Explain):
            return Brought(errand, page=explained(self._api, errand.question))
        assert isinstance(errand, Hour)
        return Brought(errand, page=hour_of(self._api, errand.app))


class Session:
    def __init__(self, console: Console, poller: Poller, api: Api, view: str) -> None:
        self._console = console
        self._marks = marks_for(console.encoding)
        self._poller = poller
        self._errands = Errands(api)
        self._state = State(view)
        self._frame = Frame((), Extent())
        self._drawn: object = None
        self._drawn_at_s = float("-inf")

    def run(self) -> None:
        keys = Keys()
        screen = Screen(self._console, keys)
        with ending_on_signals(), suppress(KeyboardInterrupt), keys, screen:
            while self._turn(screen, keys):
                pass

    def _turn(self, screen: Screen, keys: Keys) -> bool:
        """Draw where something differs, and take what was pressed; False: leave."""
        for brought in self._errands.done():
            self._state = heard(self._state, brought)
            if isinstance(brought.errand, CarryOut):
                self._poller.ask_again()
        size, scene, newest = screen.size, self._scene, self._poller.scene
        self._want()
        state = (self._state, scene.view, newest.told, newest.strips, size)
        if not self._is_drawn(state) or time.monotonic() - self._drawn_at_s >= REDRAW_S:
            self._draw(screen, scene, size)
            self._drawn = (self._state, *state[1:])
        return all(
            self._press(key, screen, is_first=at == 0)
            for at, key in enumerate(keys.pressed(KEY_SLICE_S))
        )

    def _is_drawn(self, state: tuple[object, ...]) -> bool:
        """By identity: comparing whole pictures would cost more than drawing one."""
        before = self._drawn
        return isinstance(before, tuple) and all(
            a is b or (isinstance(a, tuple) and a == b) for a, b in zip(before, state, strict=True)
        )

    @property
    def _scene(self) -> Scene:
        now, paused = self._poller.scene, self._state.paused
        if paused is None:
            return now
        # A view that was not open then has nothing to hold still: it shows what there is.
        told, strips = {**now.told, **paused.told}, {**now.strips, **paused.strips}
        return Scene(paused.view, told, strips)

    def _want(self) -> None:
        view = VIEWS[self._state.view]
        keys = self._frame.extent.shown if view.name == "clients" else ()
        self._poller.want(view.sources, [key.partition(" ")[0] for key in keys])

    def _draw(self, screen: Screen, scene: Scene, size: tuple[int, int]) -> None:
        at = _moment()
        self._frame = compose(self._state, scene, size, self._marks, at)
        if self._state.panel is None:
            self._state = with_window(self._state, self._frame.extent)
        screen.draw(self._frame.lines, size)
        self._drawn_at_s = at.mono_s

    def _press(self, key: str, screen: Screen, *, is_first: bool) -> bool:
        if not is_first and self._state.prompt is None:
            # Whoever presses fast means what the last key has made of the screen.
            self._frame = compose(self._state, self._scene, screen.size, self._marks, _moment())
        seen = Seen(self._scene, self._frame.extent, _proposed_name(), _moment().clock)
        self._state, errand = press(self._state, key, seen)
        if isinstance(errand, Leave):
            return False
        if isinstance(errand, Redraw):
            screen.forget()
            self._drawn = None
        elif isinstance(errand, Save):
            self._save(errand.path, screen.size)
        elif errand is not None and not self._errands.start(errand):
            told = "the agent has not answered the last questions yet: nothing was asked"
            self._state = replace(self._state, busy="", flash=Flash(told, is_bad=True))
        return True

    def _save(self, typed: str, size: tuple[int, int]) -> None:
        frame = compose(
            replace(self._state, prompt=None, flash=None), self._scene, size, self._marks, _moment()
        )
        path = Path(typed)
        try:
            path = expanded(typed)
            save_lines(path, frame.lines, size)
        except FileExistsError:
            flash = Flash(f"{path} exists, and is left as it is: give another name", is_bad=True)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            flash = Flash(f"{path} cannot be written: {why}", is_bad=True)
        else:
            flash = Flash(f"written to {path.absolute()}")
        self._state = replace(self._state, flash=flash)


def _moment() -> Moment:
    return Moment(time.monotonic(), datetime.now().astimezone())


def _proposed_name() -> str:
    return f"headgate-top-{time.strftime('%Y%m%d-%H%M%S')}.svg"
