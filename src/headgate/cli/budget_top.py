"""`headgate budget top`: a database's budgets, live.   poller thread ──page──► screen

As `headgate top` does it: the agent is asked in a thread, so that a hung one hangs no key.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.text import Text

from headgate.cli import views
from headgate.cli.api import Api
from headgate.cli.documents import read
from headgate.cli.output import canvas_of
from headgate.cli.words import plain
from headgate.errors import HeadgateError
from headgate.present.budgets import policy_view
from headgate.wire.budgets import PolicyDoc as PolicyView

KEY_SLICE_S = 0.1
REDRAW_S = 0.5


@dataclass(frozen=True, slots=True)
class Picture:
    policy: PolicyView | None = None
    rates: Mapping[str, float] | None = None
    lost: str = ""
    at_s: float = 0.0


def next_picture(before: Picture, ask: Callable[[], PolicyView], now_s: float) -> Picture:
    try:
        policy = ask()
    except HeadgateError as error:
        return Picture(before.policy, before.rates, str(error), before.at_s)
    return Picture(policy, _rates(before, policy, now_s), "", now_s)


def _rates(before: Picture, policy: PolicyView, now_s: float) -> dict[str, float] | None:
    """Refused a second; a counter that fell began anew."""
    if before.policy is None or now_s <= before.at_s:
        return None
    was = {b.name: b.counts.blocked_total for b in before.policy.budgets if b.counts}
    now = {b.name: b.counts.blocked_total for b in policy.budgets if b.counts}
    passed_s = now_s - before.at_s
    return {name: max(0, count - was.get(name, count)) / passed_s for name, count in now.items()}


def asker(api: Api, path: str) -> Callable[[], PolicyView]:
    return lambda: read(PolicyView, api.get(path).document)


class BudgetPoller:
    def __init__(self, ask: Callable[[], PolicyView], interval_s: float) -> None:
        self._ask = ask
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self.picture = Picture()
        # A daemon: leaving does not wait for an agent that does not answer.
        self._thread = threading.Thread(target=self._run, name="headgate-budgets", daemon=True)

    def __enter__(self) -> BudgetPoller:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()

    def wait_for_next(self, within_s: float) -> None:
        with self._changed:
            self._changed.wait(within_s)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.picture = next_picture(self.picture, self._ask, time.monotonic())
            with self._changed:
                self._changed.notify_all()
            self._stop.wait(self._interval_s)


def drawn(picture: Picture, screen: Console, hint: str = "") -> RenderableType:
    parts: list[RenderableType] = [Text(f"{time.strftime('%H:%M:%S')}{hint}", style="dim")]
    if picture.lost:
        parts.append(Text(f"AGENT UNREACHABLE: {plain(picture.lost)}", style="bold red"))
    if picture.policy is not None:
        parts.append(views.drawn(policy_view(picture.policy, picture.rates), canvas_of(screen)))
    return Group(*parts)


def run_live(screen: Console, poller: BudgetPoller) -> None:
    from headgate.cli.keys import Keys
    from headgate.cli.signals import ending_on_signals
    from headgate.cli.top_paint import Ruler
    from headgate.cli.top_screen import Screen

    keys = Keys()
    glass = Screen(screen, keys)
    with ending_on_signals(), suppress(KeyboardInterrupt), keys, glass:
        drawn_at_s = 0.0
        shown: object = None
        while True:
            state = (poller.picture, glass.size)
            if state != shown or time.monotonic() - drawn_at_s >= REDRAW_S:
                page = drawn(poller.picture, screen, "  q leaves")
                glass.draw(Ruler(glass.size[0]).lines(page), glass.size)
                shown, drawn_at_s = state, time.monotonic()
            if keys.wants_to_leave(KEY_SLICE_S):
                return


def run_scrolling(screen: Console, poller: BudgetPoller, within_s: float) -> None:
    with suppress(KeyboardInterrupt):
        while True:
            poller.wait_for_next(within_s)
            screen.print(drawn(poller.picture, screen))
            screen.print()
