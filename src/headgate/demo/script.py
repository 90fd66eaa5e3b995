"""The scenes, played once without a person: what they promise, and whether it happened."""

from __future__ import annotations

import time
from textwrap import wrap

from headgate.demo.scenes import SCENES
from headgate.demo.show import crowd_line, header, line, show
from headgate.demo.stage import Frame, Stage
from headgate.demo.tour import Promise, Tour, TourScene, score
from headgate.demo.tourserver import TourServer

FRAME_S = 0.5
WHOLE_S = 60.0
"""What all scenes take at their own pace, about."""
LEAST_PACE = 0.5
WIDTH = 100
NOT_ALL = 3
"""The exit code where nothing was broken and not all could be tried."""
LINGER_S = 12.0
"""What has to be left to go on after the last scene."""


def play(stage: Stage, total_s: float, guide: TourServer) -> int:
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
    _say("", f"scene {number}: {scene.title}", *wrap(scene.says(tour.stage), WIDTH))
    pages = ", ".join(look.path for look in scene.looks(tour.stage))
    _say(f"look at {scene.watch}; in the page at {pages}")
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
    _say("", "the shard goes on; Ctrl-C ends it and leaves nothing behind. Elsewhere, try")
    _say(f"    headgate status --url {tour.stage.speaker.url}")
    ends, frames = time.monotonic() + seconds, list[Frame]()
    while time.monotonic() < ends:
        time.sleep(FRAME_S)
        _show(tour, frames)


def _summary(tour: Tour, took_s: float) -> int:
    _say("")
    made = [(n, promise) for n, made in sorted(tour.promises.items()) for promise in made]
    for number, promise in made:
        _say(f"  {number}  {_outcome(promise)}: {promise.text}")
    missing = [f"scene {n}" for n in range(1, len(SCENES) + 1) if n not in tour.promises]
    if missing:
        _say(f"  PROMISE BROKEN: not played to the end: {', '.join(missing)} {tour.failure}")
    promises = [promise for _, promise in made]
    _say(f"{score(promises)}, in {took_s:.0f} s")
    if missing or any(promise.tried and not promise.kept for promise in promises):
        return 1
    if all(promise.tried for promise in promises):
        return 0
    _say(f"not tried: {tour.stage.traffic.words()}")
    return NOT_ALL


def _outcome(promise: Promise) -> str:
    if not promise.tried:
        return "not tried"
    return "kept" if promise.kept else "PROMISE BROKEN"


def _tell(text: str) -> None:
    _say(f"  » {text}")


def _say(*lines: str) -> None:
    for told in lines:
        print(told, flush=True)
