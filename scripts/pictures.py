"""Make the docs' pictures from a real run of the demo.

.venv/bin/python scripts/pictures.py [FOLDER [MINUTES]]      docs/images, unless another is named

The page by a real Chromium, as every agent serves it (without the demo's strip); the terminal as
the demo, `headgate top` and `headgate status` draw it. What is seen is what there is. Takes some
three minutes, and before that MINUTES (15) of real load, so that there is a history to show.
docs/images' other pictures (idea, tiers, herd) are drawn by hand or by bench/.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, TypeVar

from playwright.sync_api import Page, sync_playwright
from rich.console import Console, RenderableType
from rich.text import Text

from headgate.cli.render import UNICODE
from headgate.demo.agents import LAG_THRESHOLD_S
from headgate.demo.live import (
    FRAME_S,
    HINTS,
    POLL_S,
    Director,
    Looker,
    speakers_api,
    strip,
    views_of,
)
from headgate.demo.scenes.flood import REPLAY_SHARE
from headgate.demo.stage import Frame, Scenery, Stage, set_up
from headgate.tui.page import Moment, ScreenContext, compose
from headgate.tui.paint import Lines
from headgate.tui.poller import Poller
from headgate.tui.state import ScreenState

WIDTH, HEIGHT, TALL = 1280, 760, 1080
COLUMNS, ROWS = 118, 30
QUIET = (
    "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update "
    "--disable-sync --no-first-run"
)
HEALTHY, FLOOD, FAVOR, ROGUE = 1, 2, 3, 4
TERMINAL = {"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
HEADGATE = [sys.executable, "-m", "headgate"]
COMMANDS = (
    ["status"],
    ["check", "--as", "etl:nightly", "--database", "main", "--metrics", "shard/lag"],
)
NO_GUIDE = "http://127.0.0.1:1"
WITHIN_S = 90.0
TRIES = 8
RULE = "/rules/new?kind=ratio&target=etl&ratio=0.5&for=30m&reason=INC-42"

T = TypeVar("T")


def main(folder: Path, warm_s: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with set_up(print, NO_GUIDE) as stage, showing(stage) as show, signed_in(stage) as page:
        camera = Camera(folder, stage, show, page)
        show.play(HEALTHY)
        night(folder / "night.svg", show, warm_s)
        show.at_rejection(camera.overview)
        lagging = show.at_rejection(camera.screen)
        told = show.at_rejection(camera.commands)
        show.at_rejection(camera.top)
        show.until(lambda frame: not show.director.tour.busy)
        camera.take("client", "/clients/etl:nightly?since=1h")
        camera.take("metric", "/databases/main/metrics/lag")
        show.play(FAVOR)
        camera.rule()
        show.play(ROGUE)
        camera.take("budgets", "/budgets/main")
        show.play(HEALTHY)
        promoted = show.promoted(camera.screen)
    _save(folder / "demo.svg", "./scripts/demo", lagging, Text("─" * COLUMNS, "dim"), promoted)
    _save(folder / "status.svg", "headgate status, and a rejected check", Text.from_ansi(told))


class Show:
    """The demo as it runs in a terminal, without one."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.director = Director(stage)
        # Without the token that the demo of the reader will not have.
        self.director.token = "…"
        self._api = speakers_api(stage)
        self._poller, self._looker = Poller(self._api, POLL_S), Looker(self.director)
        self._poller.__enter__()
        self._looker.__enter__()

    @property
    def frame(self) -> Frame:
        self._api.url = self.stage.speaker.url
        self.director.tend()
        return self._looker.frame

    def screen(self) -> Lines:
        """As the terminal has it now."""
        shown = self.director.shown(self.frame)
        views = views_of(lambda: shown)
        around = ScreenContext(views, UNICODE, lambda _, room: strip(shown, room), HINTS)
        at = Moment(time.monotonic(), datetime.now().astimezone())
        scene = self._poller.scene
        return Lines(compose(ScreenState("demo"), scene, (COLUMNS, ROWS), around, at).lines)

    def end(self) -> None:
        self._looker.__exit__()
        self._poller.__exit__(None, None, None)
        self.director.leave()

    def until(self, fits: Callable[[Frame], bool]) -> Frame:
        deadline = time.monotonic() + WITHIN_S
        while not fits(frame := self.frame):
            if time.monotonic() > deadline:
                sys.exit(f"the moment to draw did not come within {WITHIN_S:g} s")
            time.sleep(FRAME_S / 3)
        return frame

    def play(self, number: int) -> None:
        self.director.tour.go(number)
        self.until(lambda frame: not self.director.tour.busy)

    def at_rejection(self, take: Callable[[Frame], T | None]) -> T:
        """What was taken while the jobs were held: that may be over before it was."""
        for _ in range(TRIES):
            self.director.tour.go(FLOOD)
            taken = take(self.until(_all_held))
            if taken is not None:
                return taken
        sys.exit(f"the jobs were not held for long enough, {TRIES} times")

    def promoted(self, take: Callable[[Frame], T]) -> T:
        new = self.stage.replicas[0].name
        self.director.press("p")
        return take(self.until(lambda frame: self._is_led_by(new, frame)))

    def _is_led_by(self, name: str, frame: Frame) -> bool:
        return (
            frame.leader == name
            and all(desk.told_by == name and desk.chunks for desk in frame.desks)
            and self.director.shown(frame).changing is None
        )


# --- one night: lag against its threshold, and the jobs that are throttled and released ---------

NIGHT_S = 75.0
SETTLE_S = 12.0
WARM_S = 15 * 60.0
_W, _TOP, _LAG_H, _ROW = 960, 44, 150, 34
_NIGHT = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 {height}" role="img" \
aria-labelledby="t d" font-family="system-ui, 'Liberation Sans', sans-serif" font-size="14">
<title id="t">A shard under load</title>
<desc id="d">{says}</desc>
<style>
.ground {{ fill: #ffffff }} .ink {{ fill: #1a1d21 }} .quiet {{ fill: #5b636e }}
.b {{ font-weight: 700 }}
.area {{ fill: #0b57c4; opacity: 0.16 }} .course {{ stroke: #0b57c4; fill: none; stroke-width: 2 }}
.limit {{ stroke: #b3161b; stroke-width: 1.5; stroke-dasharray: 6 4 }} .bad {{ fill: #b3161b }}
.go {{ fill: #1b6e32; opacity: 0.3 }} .stop {{ fill: #b3161b }} .axis {{ stroke: #d9dce1 }}
@media (prefers-color-scheme: dark) {{ .ground {{ fill: #14171a }} .ink {{ fill: #e6e8eb }}
.quiet {{ fill: #9aa4b0 }} .area {{ fill: #7db4ff }} .course {{ stroke: #7db4ff }}
.bad {{ fill: #ff8f8a }} .limit {{ stroke: #ff8f8a }} .go {{ fill: #7fd796 }}
.stop {{ fill: #ff8f8a }} .axis {{ stroke: #333a42 }} }}
</style>
<rect class="ground" width="960" height="{height}" rx="10"/>
{body}
</svg>
"""


class Look(NamedTuple):
    at_s: float
    lag_s: float | None
    throttled: Mapping[str, bool]


def night(path: Path, show: Show, warm_s: float) -> None:
    """What the agents measured and answered, drawn as it was: the last part of a longer time, so
    that the pages have a history."""
    quiet_until = time.monotonic() + warm_s
    while time.monotonic() < quiet_until:
        show.play(FLOOD)
        time.sleep(min(20.0, max(0.0, quiet_until - time.monotonic())))
    stage = show.stage
    stage.arrange(
        Scenery(slow_share=REPLAY_SHARE, working=frozenset(job.name for job in stage.jobs))
    )
    time.sleep(SETTLE_S)
    began, looks = time.monotonic(), list[Look]()
    while (at_s := time.monotonic() - began) < NIGHT_S:
        frame = show.frame
        desks = {desk.name: desk.rejected_for_s is not None for desk in frame.desks if desk.heard}
        looks.append(Look(at_s, frame.lag_s, desks))
        time.sleep(0.25)
    path.write_text(_night(looks))
    print(f"drew {path.name}")


def _night(looks: Sequence[Look]) -> str:
    left, right, names = 190, _W - 24, sorted({name for look in looks for name in look.throttled})
    top = max(LAG_THRESHOLD_S * 3, 0.1)

    def x(at_s: float) -> float:
        return round(left + (right - left) * at_s / NIGHT_S, 1)

    def y(lag_s: float) -> float:
        return round(_TOP + _LAG_H * (1 - min(1.0, lag_s / top)), 1)

    points = [f"{x(one.at_s)} {y(one.lag_s)}" for one in looks if one.lag_s is not None]
    base, limit = _TOP + _LAG_H, y(LAG_THRESHOLD_S)
    body = [
        f'<text class="ink b" x="24" y="{_TOP + 14}">replication lag</text>',
        f'<text class="quiet" x="24" y="{_TOP + 34}">worst of two replicas</text>',
        f'<path class="area" d="M{"L".join(points)}V{base}H{x(looks[0].at_s)}Z"/>',
        f'<path class="course" d="M{"L".join(points)}"/>',
        f'<line class="limit" x1="{left}" x2="{right}" y1="{limit}" y2="{limit}"/>',
        f'<text class="bad" x="{left - 8}" y="{limit + 5}" text-anchor="end">'
        f"threshold {LAG_THRESHOLD_S:g} s</text>",
        f'<line class="axis" x1="{left}" x2="{right}" y1="{base}" y2="{base}"/>',
    ]
    for row, name in enumerate(names):
        row_y = base + 24 + row * _ROW
        body.append(f'<text class="ink" x="24" y="{row_y + 16}">{name}</text>')
        for is_throttled, since, until in _stretches(looks, name):
            word = "stop" if is_throttled else "go"
            body.append(
                f'<rect class="{word}" x="{x(since)}" y="{row_y}" '
                f'width="{max(0.5, x(until) - x(since)):.1f}" height="22"/>'
            )
    end = base + 24 + len(names) * _ROW + 20
    body.append(
        f'<rect class="go" x="{left}" y="{end - 12}" width="14" height="14"/><text class="quiet" '
        f'x="{left + 20}" y="{end}">admitted</text><rect class="stop" x="{left + 110}" '
        f'y="{end - 12}" width="14" height="14"/><text class="quiet" x="{left + 130}" y="{end}">'
        f'throttled until the replicas have caught up</text><text class="quiet" x="{right}" '
        f'y="{end}" text-anchor="end">{NIGHT_S:g} s of ./scripts/demo, as measured</text>'
    )
    jobs = ", ".join(names)
    says = f"Lag rises above its threshold; {jobs} are throttled, and admitted again below it."
    return _NIGHT.format(height=end + 18, says=says, body="\n".join(body))


def _stretches(looks: Sequence[Look], name: str) -> Iterator[tuple[bool, float, float]]:
    """Whether it was throttled, from when, until when."""
    mine = [(one.at_s, one.throttled[name]) for one in looks if name in one.throttled]
    for is_throttled, group in groupby(mine, key=lambda one: one[1]):
        times = [at_s for at_s, _ in group]
        yield is_throttled, times[0], times[-1] + 0.3


def _all_held(frame: Frame) -> bool:
    asked = bool(frame.desks) and all(desk.asks for desk in frame.desks)
    return asked and all(desk.rejected_for_s for desk in frame.desks)


class Camera:
    """Each returns what it took, or None where the moment was over before."""

    def __init__(self, folder: Path, stage: Stage, show: Show, page: Page) -> None:
        self._folder = folder
        self._stage = stage
        self._show = show
        self._page = page

    @property
    def _url(self) -> str:
        return self._stage.speaker.url

    def take(self, name: str, path: str) -> None:
        self._page.goto(f"{self._url}{path}")
        self._page.wait_for_timeout(1500)  # Charts are drawn once their figures are there.
        self._shoot(name)

    def overview(self, frame: Frame) -> bool | None:
        self._page.goto(f"{self._url}/")
        self._page.wait_for_timeout(300)
        rejects = self._page.locator("#main").get_by_text("rejects since").first
        if not rejects.is_visible():
            return None
        self._shoot("overview")
        return rejects.is_visible() or None

    def rule(self) -> None:
        self._page.set_viewport_size({"width": WIDTH, "height": TALL})
        self._page.goto(f"{self._url}{RULE}")
        self._page.get_by_role("button", name="Preview").first.click()
        self._page.wait_for_timeout(2500)
        self._shoot("rule")
        self._page.set_viewport_size({"width": WIDTH, "height": HEIGHT})

    def _shoot(self, name: str) -> None:
        self._page.screenshot(path=self._folder / f"page-{name}.png")
        print(f"took page-{name}.png")

    def screen(self, frame: Frame) -> Lines:
        return self._show.screen()

    def commands(self, frame: Frame) -> str | None:
        asked = [_start([*words, "--url", self._url]) for words in COMMANDS]
        told = []
        for words, command in zip(COMMANDS, asked, strict=True):
            said, _ = command.communicate(timeout=30)
            shown = " ".join(["$ headgate", *words])
            told.append(f"\x1b[1m{shown}\x1b[0m\n{said.rstrip()}\n")
        whole = re.sub(r"[^ ]*/headgate-demo-\w+", "/tmp/headgate-demo", "\n".join(told))
        return whole if "REJECTS" in whole and "retry" in whole.lower() else None

    def top(self, frame: Frame) -> bool | None:
        drawn = self._folder / "top.svg"
        _start(["top", "--url", self._url, "--snapshot", str(drawn)]).communicate(timeout=30)
        return "REJECTS" in drawn.read_text() or None


def _start(words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*HEADGATE, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **TERMINAL},
    )


@contextmanager
def showing(stage: Stage) -> Iterator[Show]:
    show = Show(stage)
    try:
        yield show
    finally:
        show.end()


@contextmanager
def signed_in(stage: Stage) -> Iterator[Page]:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        raise SystemExit("there is no Chromium; run: sudo apt-get install -y chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=QUIET.split())
        page = browser.new_page(color_scheme="light", viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(stage.sign_in_url(stage.tokens.operator))
        page.wait_for_url(f"{stage.speaker.url}/")
        yield page
        browser.close()


def _save(path: Path, title: str, *parts: RenderableType) -> None:
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, highlight=False)
        for part in parts:
            console.print(part)
        drawn = console.export_svg(title=title)
    # The fonts would be fetched from elsewhere: the reader's own monospace serves.
    path.write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL))


if __name__ == "__main__":
    main(
        Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/images"),
        float(sys.argv[2]) * 60 if len(sys.argv) > 2 else WARM_S,
    )
