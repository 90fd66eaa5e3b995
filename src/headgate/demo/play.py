"""The playground: a shard of three real servers, an agent beside each, greedy jobs, a rogue.

`headgate demo` in a terminal shows it live, scene by scene, with keys to step through them and
to break things; `--headless --for 60s` plays all scenes once, and fails if what one of them
promises did not happen.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from textwrap import wrap
from types import FrameType

from headgate.demo import live, servers
from headgate.demo.scenes import SCENES
from headgate.demo.show import crowd_line, header, line, show
from headgate.demo.stage import Frame, Stage, set_up
from headgate.demo.tour import Promise, Tour, TourScene, TourServer, open_server, score

# --- without a terminal --------------------------------------------------------------------
# The scenes, played once without a person: what they promise, and whether it happened.

FRAME_S = 0.5
WHOLE_S = 60.0
"""What all scenes take at their own pace, about."""
LEAST_PACE = 0.5
WIDTH = 100
NOT_ALL = 3
"""The exit code where nothing was broken and not all could be tried."""
LINGER_S = 12.0
"""What has to be left to go on after the last scene."""


def play_through(stage: Stage, total_s: float, guide: TourServer) -> int:
    """Returns 0 if the scenes did what they promise, NOT_ALL where not all could be tried."""
    began_at = time.monotonic()
    pace = min(1.0, max(LEAST_PACE, total_s / WHOLE_S))
    tour = Tour(stage, SCENES, _tell, pace)
    guide.begin(tour)
    try:
        for number, scene in enumerate(SCENES, 1):
            _play(tour, number, scene)
            if tour.failure:
                break
        left_s = total_s - (time.monotonic() - began_at)
        if left_s > LINGER_S and not tour.failure:
            _linger(tour, left_s)
    finally:
        tour.leave()
    return _summary(tour, time.monotonic() - began_at)


def _play(tour: Tour, number: int, scene: TourScene) -> None:
    _print("", f"scene {number}: {scene.title}", *wrap(scene.says(tour.stage), WIDTH))
    pages = ", ".join(look.path for look in scene.looks(tour.stage))
    _print(f"look at {scene.watch}; in the page at {pages}")
    tour.go(number)
    frames: list[Frame] = []
    due = time.monotonic()
    while tour.busy:
        due = max(due + FRAME_S, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        _show(tour, frames)


def _show(tour: Tour, before: list[Frame]) -> None:
    frame = tour.stage.look()
    if not before or _names(frame) != _names(before[-1]):
        show(header(frame))
    show(line(frame))
    if frame.crowd is not None and frame.crowd.rogues:
        show(crowd_line(frame.crowd))
    before[:] = [frame]
    tour.hear(frame)


def _names(frame: Frame) -> list[str]:
    return [desk.name for desk in frame.desks]


def _linger(tour: Tour, seconds: float) -> None:
    _print("", "the shard goes on; Ctrl-C ends it and leaves nothing behind. Elsewhere, try")
    _print(f"    headgate status --url {tour.stage.speaker.url}")
    ends, frames = time.monotonic() + seconds, list[Frame]()
    while time.monotonic() < ends:
        time.sleep(FRAME_S)
        _show(tour, frames)


def _summary(tour: Tour, took_s: float) -> int:
    _print("")
    made = [(n, promise) for n, made in sorted(tour.promises.items()) for promise in made]
    for number, promise in made:
        _print(f"  {number}  {_outcome(promise)}: {promise.text}")
    missing = [f"scene {n}" for n in range(1, len(SCENES) + 1) if n not in tour.promises]
    if missing:
        _print(f"  PROMISE BROKEN: not played to the end: {', '.join(missing)} {tour.failure}")
    promises = [promise for _, promise in made]
    _print(f"{score(promises)}, in {took_s:.0f} s")
    if missing or any(promise.tried and not promise.kept for promise in promises):
        return 1
    if all(promise.tried for promise in promises):
        return 0
    _print(f"not tried: {tour.stage.traffic.words()}")
    return NOT_ALL


def _outcome(promise: Promise) -> str:
    if not promise.tried:
        return "not tried"
    return "kept" if promise.kept else "PROMISE BROKEN"


def _tell(text: str) -> None:
    _print(f"  » {text}")


def _print(*lines: str) -> None:
    for told in lines:
        print(told, flush=True)


# --- the user's own environment ------------------------------------------------------------
# What the shell of a demo's user says about other servers and agents, and is none of its own.

# libpq and the drivers of MySQL read theirs, our agents and commands theirs; the rest is what a
# service manager says to a service, and the settings of trace exporters.
PREFIXES = ("PG", "MYSQL_", "MARIADB_", "HEADGATE_", "OTEL_", "LISTEN_", "WATCHDOG_", "NOTIFY_")


def forget_others() -> None:
    """PGSSLMODE or PGSERVICE would keep us from our servers, HEADGATE_LISTEN would be the address
    of all three agents. What we start inherits that they are gone."""
    for name in [name for name in os.environ if name.startswith(PREFIXES)]:  # noqa: TID251
        del os.environ[name]  # noqa: TID251


# --- the demo ------------------------------------------------------------------------------


HEADLESS_S = 60.0
LONG_S = 3600.0


def main(
    *, seconds: float | None = None, headless: bool = False, ports: tuple[int, int] | None = None
) -> int:
    """Returns 0 if the demo did what it promises, and where it was ended by its user."""
    forget_others()
    if ports is not None:
        servers.use_ports(*ports)
    # What the jobs' SDK has to say is on the screen already, and a log would spoil that.
    logging.getLogger("headgate.client").addHandler(logging.NullHandler())
    total_s = seconds if seconds is not None else (HEADLESS_S if headless else LONG_S)
    run = live.play if not headless and live.can_show() else play_through
    before = {number: signal.signal(number, _interrupt) for number in _endings()}
    try:
        with closing_server() as guide, set_up(_say, guide.url) as stage:
            # The token is in the fragment, which a browser sends to nobody and no log has.
            _say(f"the page: {stage.sign_in_url(stage.tokens.operator)}")
            _say(f"    to look only: {stage.sign_in_url(stage.tokens.viewer)}")
            return run(stage, total_s, guide)
    except KeyboardInterrupt:
        _say("stopped; nothing is left behind")
        return 0
    except servers.ServerFailed as error:
        _say(f"the demo's servers failed: {error}")
        return 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def closing_server() -> Iterator[TourServer]:
    guide = open_server()
    try:
        yield guide
    finally:
        guide.end()


def _endings() -> list[signal.Signals]:
    """Without SIGHUP under `nohup`: the user who starts it so wants it to go on."""
    ends = (signal.SIGTERM, signal.SIGHUP)
    return [number for number in ends if signal.getsignal(number) is not signal.SIG_IGN]


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    with suppress(OSError):  # The terminal may be gone; what is left then is to clean up.
        print(text, flush=True)
