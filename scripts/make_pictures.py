"""Draw the README's pictures from a real run of the demo: scripts/make_pictures.py.

Writes docs/images/demo.svg (the screen: a replica that lags, and after a promotion) and
docs/images/status.svg (the command line at the first of those moments).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from headgate.demo.live import Director
from headgate.demo.screen import draw
from headgate.demo.stage import Frame, Stage, set_up

IMAGES = Path(__file__).parent.parent / "docs" / "images"
WIDTH, HEIGHT = 118, 27
ENVIRONMENT = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
HEADGATE = [sys.executable, "-m", "headgate"]
FRAME_S = 0.3
WITHIN_S = 60.0
COMMANDS = (
    ["status"],
    ["check", "--app", "etl:nightly", "--database", "main", "--metrics", "shard/lag"],
)


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with set_up(print) as stage:
        for job in stage.jobs:
            job.asks = True
            job.start()
        stage.measure_full_rate()
        told = ""
        while "REFUSES" not in told or "ask again" not in told:  # It may be over too soon.
            director = Director(stage)
            director.press("l")
            held = _until(stage, director, lambda frame: all(d.refused_for_s for d in frame.desks))
            told = _ask(stage.agents[stage.primary.name].url)
        lagging = draw(director.view(held), WIDTH, HEIGHT)
        try:
            promoted = _promotion(stage, director)
        finally:
            director.leave()
    _save("demo.svg", "./scripts/demo", lagging, Text("─" * WIDTH, "dim"), promoted)
    _save("status.svg", "headgate status, and a refused check", Text.from_ansi(told))


def _promotion(stage: Stage, director: Director) -> RenderableType:
    new = stage.replicas[0].name
    director.press("p")
    moved = _until(
        stage,
        director,
        lambda frame: (
            frame.leader == new
            and all(desk.told_by == new and desk.chunks for desk in frame.desks)
            and director.view(frame).changing is None
        ),
    )
    return draw(director.view(moved), WIDTH, HEIGHT)


def _until(stage: Stage, director: Director, fits: Callable[[Frame], bool]) -> Frame:
    frame, deadline = stage.look(), time.monotonic() + WITHIN_S
    while not fits(frame):
        if time.monotonic() > deadline:
            sys.exit(f"the moment to draw did not come within {WITHIN_S:g} s")
        time.sleep(FRAME_S)
        director.tend()
        before, frame = frame, stage.look()
        director.note(before, frame)
    return frame


def _ask(url: str) -> str:
    asked = [
        subprocess.Popen(
            [*HEADGATE, *words, "--url", url],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=ENVIRONMENT,
        )
        for words in COMMANDS
    ]
    told = []
    for words, command in zip(COMMANDS, asked, strict=True):
        said, _ = command.communicate(timeout=30)
        shown = " ".join(["$ headgate", *words])
        told.append(f"\x1b[1m{shown}\x1b[0m\n{said.rstrip()}\n")
    return re.sub(r"[^ ]*/headgate-demo-\w+", "/tmp/headgate-demo", "\n".join(told))


def _save(name: str, title: str, *parts: RenderableType) -> None:
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, highlight=False)
        for part in parts:
            console.print(part)
        drawn = console.export_svg(title=title)
    # The fonts would be fetched from elsewhere: the reader's own monospace serves.
    (IMAGES / name).write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL))


if __name__ == "__main__":
    main()
