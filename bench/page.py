"""The page in a real Chromium: first paint, script time, layout shift, memory while it lives.

.venv/bin/python -m bench.page [--clients 500] [--minutes 3]

A real listener with a day of history (six databases, three metrics each) and many clients; what
is measured is scripted, so that nothing but the page takes time. `--minutes 60` is the hour that
the page must live through without growing.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import CDPSession, Page, sync_playwright
from tests.http.serving import LOOPS, OPERATOR, Plan, Served, serving

from bench.report import table
from headgate.history.records import MetricMinute

DATABASES = ("main", "orders", "carts", "users", "search", "audit")
METRICS = (("lag", 0.25, 5.0), ("threads_running", 3.0, 100.0), ("pool_usage", 0.1, 1.0))
DAY_MINUTES = 24 * 60
PAGES = ("/?range=24h", "/clients", "/clients/etl?since=24h", "/rules", "/audit")
ARGS = (
    "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update "
    "--disable-sync --no-first-run --js-flags=--expose-gc"
)
SHIFTS = """() => {
  window.shifted = 0;
  const unasked = (list) => list.getEntries().filter((entry) => !entry.hadRecentInput);
  const add = (list) => { for (const one of unasked(list)) window.shifted += one.value; };
  new PerformanceObserver(add).observe({ type: "layout-shift", buffered: false });
}"""
MAX_SCRIPT_MS, MAX_PAINT_MS, MAX_SHIFT, MAX_GROWTH = 300.0, 1000.0, 0.01, 1.15


class Loaded(NamedTuple):
    path: str
    paint_ms: float
    script_ms: float
    kilobytes: float


class Lived(NamedTuple):
    minute: int
    heap_mb: float
    nodes: int
    listeners: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--minutes", type=int, default=3)
    given = parser.parse_args()
    plan = Plan(databases=DATABASES)
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(LOOPS["uvloop"], Path(folder), plan) as served,
        kept_busy(served, given.clients),
        browsing(served) as (page, probe),
    ):
        loads = [loaded(served, page, probe, path) for path in PAGES]
        shown_loads(loads)
        lives, shifted = lived(served, page, probe, given.minutes)
    shown_lives(lives, shifted)
    return 0 if all(goals(loads, lives, shifted)) else 1


# --- what is looked at --------------------------------------------------------------------------


@contextmanager
def kept_busy(served: Served, clients: int) -> Iterator[None]:
    """A day of history, and from now on readings and checks."""
    dice = random.Random(9)
    served.run_there(lambda: served.store.history.add_metric_minutes(a_day(served, dice)))
    names = [f"j{n}:etl:nightly" if n % 2 else f"j{n}:web:orders" for n in range(clients)]
    for name in names:
        served.ask("GET", f"/v1/check?app={name}&database=main")
    stop = threading.Event()
    worker = threading.Thread(target=work, args=(served, names, dice, stop))
    worker.start()
    try:
        yield
    finally:
        stop.set()
        worker.join()


def a_day(served: Served, dice: random.Random) -> list[MetricMinute]:
    now = int(served.clock.now().wall_s // 60)
    found = []
    for database in DATABASES:
        for name, base, threshold in METRICS:
            for ago in range(DAY_MINUTES, 0, -1):
                value = base * (1 + 0.4 * math.sin(ago / 90) + 0.15 * dice.random())
                if 20 < ago < 45 or 700 < ago < 760:
                    value = threshold * 1.6
                breached = 60 if value > threshold else 0
                figures = (60, 0, breached, value * 60, value * 0.8, value * 1.2, threshold)
                found.append(MetricMinute(now - ago, database, name, *figures))
    return found


def work(served: Served, names: list[str], dice: random.Random, stop: threading.Event) -> None:
    while not stop.wait(0.5):
        served.measure(**{name: base * (1 + 0.1 * dice.random()) for name, base, _ in METRICS})
        served.ask("GET", f"/v1/check?app={dice.choice(names)}&database=main")


# --- the browser --------------------------------------------------------------------------------


@contextmanager
def browsing(served: Served) -> Iterator[tuple[Page, CDPSession]]:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        raise SystemExit("there is no Chromium; run: sudo apt-get install -y chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=ARGS.split())
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        page.goto(f"{served.base_url}/sign-in#{OPERATOR}")
        page.wait_for_url(f"{served.base_url}/")
        probe = context.new_cdp_session(page)
        probe.send("Performance.enable", {"timeDomain": "threadTicks"})
        yield page, probe
        browser.close()


def loaded(served: Served, page: Page, probe: CDPSession, path: str) -> Loaded:
    """Twice: templates and files are read at the first."""
    for _ in range(2):
        page.goto(served.base_url + path)
        page.wait_for_timeout(700)
        scroll(page)
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    size = "performance.getEntriesByType('navigation')[0].decodedBodySize / 1000"
    script_ms = metrics(probe)["ScriptDuration"] * 1000
    return Loaded(path, float(paint), script_ms, float(page.evaluate(size)))


def scroll(page: Page) -> None:
    """Charts are drawn when they come into sight."""
    height = int(page.evaluate("document.documentElement.scrollHeight"))
    for y in range(0, min(height, 20_000), 500):
        page.evaluate(f"scrollTo(0, {y})")
        page.wait_for_timeout(60)
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(500)


def lived(served: Served, page: Page, probe: CDPSession, minutes: int) -> tuple[list[Lived], float]:
    page.goto(served.base_url + PAGES[0])
    scroll(page)
    page.evaluate(SHIFTS)
    found = []
    began_at = time.monotonic()
    for minute in range(1, minutes + 1):
        page.wait_for_timeout(max(0.0, began_at + 60 * minute - time.monotonic()) * 1000)
        page.evaluate("gc()")
        now = metrics(probe)
        heap = now["JSHeapUsedSize"] / 1e6
        found.append(Lived(minute, heap, int(now["Nodes"]), int(now["JSEventListeners"])))
        print(found[-1], file=sys.stderr, flush=True)
    return found, float(page.evaluate("window.shifted"))


def metrics(probe: CDPSession) -> dict[str, Any]:
    told = probe.send("Performance.getMetrics")["metrics"]
    return {row["name"]: row["value"] for row in told}


# --- what came of it ----------------------------------------------------------------------------


def shown_loads(loads: list[Loaded]) -> None:
    rows = [(f"`{one.path}`", *(f"{figure:.0f}" for figure in one[1:])) for one in loads]
    print(table(("page", "first paint, ms", "script, ms", "HTML, kB"), rows))


def shown_lives(lives: list[Lived], shifted: float) -> None:
    chosen = sorted({0, len(lives) // 4, len(lives) // 2, len(lives) - 1})
    rows = [
        (f"{one.minute} min", f"{one.heap_mb:.2f} MB", str(one.nodes), str(one.listeners))
        for one in (lives[at] for at in chosen)
    ]
    print(table(("the overview, live", "heap", "nodes", "listeners"), rows))
    print(f"layout shift meanwhile: {shifted:.4f}")


def goals(loads: list[Loaded], lives: list[Lived], shifted: float) -> Iterator[bool]:
    for one in loads:
        yield one.script_ms <= MAX_SCRIPT_MS and one.paint_ms <= MAX_PAINT_MS
    yield shifted <= MAX_SHIFT
    # Its live tail fills up in the first minutes, and stays as long from then on.
    settled = lives[len(lives) // 4]
    yield lives[-1].heap_mb <= settled.heap_mb * MAX_GROWTH


if __name__ == "__main__":
    sys.exit(main())
