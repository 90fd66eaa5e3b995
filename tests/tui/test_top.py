"""`headgate top` on a real pseudo-terminal: it draws, follows, survives and cleans up."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from headgate.check.api import StatusDoc
from headgate.cli.api import connect
from headgate.cli.documents import read
from headgate.tui.poller import WAKE_EVERY_S, Waker
from headgate.tui.trend import Picture
from tests.cli import builders, documents
from tests.cli.conftest import Run, headgate
from tests.cli.scripted import Heard, Reply, ScriptedAgent
from tests.cli.terminal import Terminal, terminal
from tests.fixtures.eventually import eventually
from tests.tui import scenes
from tests.tui.glass import Glass

ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
SHOW_CURSOR = "\x1b[?25h"
MOUSE_ON, MOUSE_OFF = "\x1b[?1000h", "\x1b[?1000l"


@pytest.fixture
def busy(scripted: ScriptedAgent) -> ScriptedAgent:
    scripted.says("/v1/status", builders.busy_status())
    return scripted


def left_clean(shown: Terminal, modes: object) -> bool:
    return (
        shown.raw.rfind(LEAVE_SCREEN) > shown.raw.rfind(ENTER_SCREEN)
        and SHOW_CURSOR in shown.raw
        and shown.raw.rfind(MOUSE_OFF) > shown.raw.rfind(MOUSE_ON)
        and shown.modes() == modes
    )


def asks(shown: Terminal, question: str) -> bool:
    return question in shown.text


def screen_of(shown: Terminal, columns: int, lines: int) -> str:
    """What is on it, of everything that was sent since it was cleared."""
    glass = Glass(columns, lines)
    raw = shown.raw
    glass.write(raw[max(0, raw.rfind("\x1b[2J")) :])
    assert not glass.overflowed, "no line is broken"
    return glass.text


def test_top_draws_follows_a_resize_and_leaves_on_q(busy: ScriptedAgent) -> None:
    with terminal("top", "--interval", "0.1s", HEADGATE_URL=busy.url) as shown:
        modes = shown.modes()
        eventually(lambda: "BREACHED" in shown.text and "threshold" in shown.text)
        eventually(lambda: "THROTTLED 13 min by lag" in shown.text)
        assert shown.modes() != modes, "keys come one by one"
        for columns, lines in ((60, 20), (40, 12), (300, 100)):
            shown.forget()
            shown.resize(columns, lines)
            eventually(lambda: "BREACHED" in shown.text and "q quit" in shown.text)
            text = screen_of(shown, columns, lines)
            assert len(text.splitlines()) == lines and "q quit" in text.splitlines()[-1]
            assert ("postgres" in text) == (columns >= 72), "no room for that below"
        for key, told in ((b"3", "3 clients, 1 throttled"), (b"?", "freeze the screen")):
            shown.press(key)
            eventually(partial(lambda told: told in screen_of(shown, 300, 100), told))
        shown.press(b"\x1b[B")
        shown.press(b"qq")
        assert shown.wait() == 0
        eventually(lambda: left_clean(shown, modes))


def test_the_mouse_chooses_rows_and_views_on_a_small_terminal(busy: ScriptedAgent) -> None:
    busy.says("/v1/rules", {"rules": [scenes.rule(), scenes.rule("r8")], "rejected": []})
    with terminal("top", "--view", "rules", columns=60, lines=15, HEADGATE_URL=busy.url) as shown:

        def screen() -> list[str]:
            return screen_of(shown, 60, 15).splitlines()

        eventually(lambda: any(line.startswith("> r7") for line in screen()))
        assert MOUSE_ON in shown.raw
        (row,) = [at for at, line in enumerate(screen(), 1) if line.startswith("  r8")]
        shown.press(b"\x1b[<0;9;%dM\x1b[<0;9;%dm" % (row, row))
        eventually(lambda: any(line.startswith("> r8") for line in screen()))
        at = screen()[-1].index("3") + 1
        shown.press(b"\x1b[<0;%d;15M" % at)
        eventually(lambda: "3 clients, 1 throttled" in screen_of(shown, 60, 15))
        shown.press(b"m")
        eventually(lambda: shown.raw.endswith(MOUSE_OFF) or "selects text" in shown.text)
        assert MOUSE_OFF in shown.raw, "the terminal selects text itself"
        shown.press(b"q")
        assert shown.wait() == 0


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("budget", "top", "main"), "5 budgets"),
        (("fleet", "status", "--watch", "--unhealthy"), "8 fleet"),
    ],
)
def test_budget_top_and_fleet_watch_are_views_of_the_same_program(
    busy: ScriptedAgent, argv: tuple[str, ...], told: str
) -> None:
    with terminal(*argv, "--interval", "1s", HEADGATE_URL=busy.url) as shown:
        modes = shown.modes()
        eventually(lambda: told in screen_of(shown, 110, 36))
        eventually(lambda: "cannot be shown: the agent answers 404" in screen_of(shown, 110, 36))
        shown.press(b"1")
        eventually(lambda: "BREACHED" in screen_of(shown, 110, 36))
        shown.press(b"q")
        assert shown.wait() == 0
        eventually(lambda: left_clean(shown, modes))
    asked = {heard.path: heard.query for heard in busy.heard}
    assert "/v1/budgets/main" in asked or asked["/v1/fleet"]["unhealthy"] == "true"


def test_few_bytes_are_sent_where_little_changes(busy: ScriptedAgent) -> None:
    """Over ssh: a second of a screen that only its clock changes."""
    with terminal("top", "--interval", "0.1s", HEADGATE_URL=busy.url) as shown:
        # With its last row, and with rates, for which two looks are needed.
        rates = re.compile(r"backfill:users +orders +0 +0 ")
        eventually(lambda: rates.search(screen_of(shown, 110, 36)))
        frame, asked, began_s = len(shown.raw), len(busy.heard), time.monotonic()
        shown.forget()
        eventually(lambda: len(busy.heard) > asked + 12 and len(shown.raw) > 0)
        sent = len(shown.raw)
        # However long that took: its clock changes once a second.
        assert sent < (1 + time.monotonic() - began_s) * frame / 10
        shown.press(b"q")
        assert shown.wait() == 0


def test_stopped_and_continued_it_takes_the_terminal_again(busy: ScriptedAgent) -> None:
    with terminal("top", HEADGATE_URL=busy.url) as shown:
        modes = shown.modes()
        eventually(lambda: "BREACHED" in shown.text)
        shown.forget()
        shown.process.send_signal(signal.SIGTSTP)
        eventually(lambda: left_clean(shown, modes))
        shown.forget()
        shown.process.send_signal(signal.SIGCONT)
        eventually(lambda: ENTER_SCREEN in shown.raw and "BREACHED" in shown.text)
        shown.press(b"q")
        assert shown.wait() == 0


def test_control_c_ends_it_though_the_parent_had_signals_ignored(busy: ScriptedAgent) -> None:
    """As behind `&` in a script, or under a CI runner."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with terminal("top", HEADGATE_URL=busy.url) as shown:
            modes = shown.modes()
            eventually(lambda: "BREACHED" in shown.text)
            shown.press(b"\x03")
            assert shown.wait() == 0
            eventually(lambda: left_clean(shown, modes))
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_top_gives_the_terminal_back_on_signals(
    busy: ScriptedAgent, number: signal.Signals, code: int
) -> None:
    with terminal("top", HEADGATE_URL=busy.url) as shown:
        modes = shown.modes()
        eventually(lambda: "BREACHED" in shown.text)
        shown.process.send_signal(number)
        assert shown.wait() == code
        eventually(lambda: left_clean(shown, modes))
        assert "Traceback" not in shown.text


def test_control_c_leaves_as_q_does(busy: ScriptedAgent) -> None:
    with terminal("top", HEADGATE_URL=busy.url) as shown:
        modes = shown.modes()
        eventually(lambda: "BREACHED" in shown.text)
        shown.press(b"\x03")
        assert shown.wait() == 0
        eventually(lambda: left_clean(shown, modes))


def test_top_shows_an_agent_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    agent = ScriptedAgent()
    agent.says("/v1/status", builders.busy_status())
    with terminal("top", "--interval", "0.1s", HEADGATE_URL=f"unix://{path}") as shown:
        eventually(lambda: "AGENT UNREACHABLE" in shown.text)
        with agent.serving(path):
            eventually(lambda: "BREACHED" in shown.text)
        path.unlink()
        eventually(lambda: "below is what it said" in screen_of(shown, 110, 36))
        assert "BREACHED" in screen_of(shown, 110, 36), "the last picture stays"
        with agent.serving(path):
            eventually(lambda: "UNREACHABLE" not in screen_of(shown, 110, 36))
            shown.press(b"q")
            assert shown.wait() == 0


def test_a_hung_agent_hangs_no_key(scripted: ScriptedAgent) -> None:
    release = threading.Event()

    def hang(_: Heard) -> Reply:
        release.wait()
        return Reply(builders.status())

    scripted.replies["GET", "/v1/status"] = hang
    with terminal("top", HEADGATE_URL=scripted.url) as shown:
        try:
            eventually(lambda: "q quit" in shown.text)
            shown.press(b"q")
            assert shown.wait() == 0
        finally:
            release.set()


def test_a_dumb_terminal_gets_frames_and_no_cursor_control(busy: ScriptedAgent) -> None:
    with terminal("top", "--interval", "0.1s", term="dumb", HEADGATE_URL=busy.url) as shown:
        eventually(lambda: shown.text.count("agent db1") >= 3)
        assert "\x1b" not in shown.raw
        shown.process.send_signal(signal.SIGINT)
        assert shown.wait() == 0


def test_q_leaves_a_dumb_terminal_as_it_was(busy: ScriptedAgent) -> None:
    with terminal("top", "--interval", "5s", term="dumb", HEADGATE_URL=busy.url) as shown:
        modes = shown.modes()
        eventually(lambda: "agent db1" in shown.text)
        shown.press(b"q")
        assert shown.wait() == 0
        assert shown.modes() == modes


def test_no_color_is_obeyed(busy: ScriptedAgent) -> None:
    with terminal("top", "--once", HEADGATE_URL=busy.url, NO_COLOR="1") as shown:
        assert shown.wait() == 0
        eventually(lambda: "BREACHED" in shown.text)
        assert "\x1b[31m" not in shown.raw and "\x1b[1;31m" not in shown.raw


def test_confirmation_is_wanted_on_a_terminal(scripted: ScriptedAgent) -> None:
    path = "/v1/databases/main/metrics/lag"
    scripted.says(path, builders.metric_view())
    scripted.says(path, builders.removed_metric(), method="DELETE")
    for key, code, methods in ((b"n\n", 1, {"GET"}), (b"y\n", 0, {"GET", "DELETE"})):
        scripted.heard.clear()
        with terminal("metrics", "remove", "main", "lag", HEADGATE_URL=scripted.url) as shown:
            eventually(partial(asks, shown, "Remove lag from main?"))
            shown.press(key)
            assert shown.wait() == code
        assert {heard.method for heard in scripted.heard} == methods


# --- waking ------------------------------------------------------------------------------------


def test_who_wants_databases_awake_wakes_them_again_and_again() -> None:
    """R58: `--wake`."""
    wake = [("POST", f"/v1/databases/{name}/wake") for name in ("main", "orders")]
    agent = ScriptedAgent()
    for method, path in wake:
        agent.says(path, {"database": "x", "activity": "awake"}, method=method)
    status = read(StatusDoc, builders.busy_status())
    with agent.serving():
        waker = Waker(connect(agent.url, None))
        for now_s in (0.0, 1.0, WAKE_EVERY_S - 0.1, WAKE_EVERY_S):
            waker.wake(Picture(agent.url, status, now_s), now_s)
    assert [(heard.method, heard.path) for heard in agent.heard] == wake * 2


def woken(agent: ScriptedAgent) -> list[str]:
    return [heard.path for heard in agent.heard if heard.method == "POST"]


def test_looking_wakes_nobody_unless_requested(busy: ScriptedAgent, run: Run) -> None:
    """R56: an open screen must not keep what nobody checks from hibernating."""
    assert run("top", "--once", "--interval", "0.1s").code == 0
    assert woken(busy) == []
    ran = run("top", "--once", "--wake", "--interval", "0.1s")
    assert ran.code == 0 and "BREACHED" in ran.out, "though this agent knows no waking"
    assert woken(busy) == ["/v1/databases/main/wake", "/v1/databases/orders/wake"]


def test_an_agent_that_is_away_is_not_woken() -> None:
    view = Picture("http://127.0.0.1:1", read(StatusDoc, builders.status()), 1.0, lost="gone")
    Waker(connect(view.url, None)).wake(view, 1.0)
    Waker(connect(view.url, None)).wake(Picture(view.url, view.status, 1.0), 1.0)


# --- one frame -------------------------------------------------------------------------------


def test_once_prints_one_frame_with_rates(scripted: ScriptedAgent, run: Run) -> None:
    counts = iter(range(0, 1000, 50))

    def growing(_: Heard) -> Reply:
        client = builders.client(admitted=next(counts), rejected=0)
        return Reply(builders.status(clients=[client]))

    scripted.replies["GET", "/v1/status"] = growing
    ran = run("top", "--once", "--interval", "0.1s")
    assert ran.code == 0
    assert "agent db1" in ran.out
    row = next(line for line in ran.out.splitlines() if line.startswith("etl:nightly"))
    assert float(row.split()[2].replace(",", "")) > 50


def test_each_view_can_be_printed(busy: ScriptedAgent, run: Run) -> None:
    busy.says("/v1/history/timeline", documents.TIMELINE)
    ran = run("top", "--once", "--view", "clients", "--interval", "0.1s")
    assert "3 clients, 1 throttled" in ran.out and "THROTTLED 13 min by lag" in ran.out
    assert "last hour" in ran.out and "q quit" not in ran.out
    assert "rules cannot be shown: the agent answers 404" in run("top", "--once", "--view", "4").out
    ran = run("top", "--once", "--view", "clint")
    assert ran.code == 2 and "is no view; there are: overview, shard, clients" in ran.err


def test_history_is_there_from_the_first_frame_on(busy: ScriptedAgent, run: Run) -> None:
    at = (datetime.now(UTC) - timedelta(minutes=3)).strftime("%Y-%m-%dT%H:%M:00Z")
    minute = {"at": at, "database": "main", "metric": "lag", "looks": 4, "unavailable": 0}
    minute |= {"low": 1.0, "mean": 2.0, "high": 5.0, "breached_share": 0.0, "threshold": 5.0}
    busy.says("/v1/history/metrics", {"minutes": [minute], "whole": True})
    ran = run("top", "--once", "--view", "shard", "--interval", "0.1s")
    line = next(line for line in ran.out.splitlines() if line.strip().startswith("lag"))
    assert line.count("▆") == 4, "a minute of history is four quarters of one"


def test_the_whole_picture_is_one_document(busy: ScriptedAgent, run: Run) -> None:
    busy.says("/v1/rules", {"rules": [scenes.rule()], "rejected": []})
    ran = run("top", "--json")
    found = json.loads(ran.out)
    assert ran.code == 0
    assert found["status"] == builders.busy_status() and found["rules"]["rules"][0]["id"] == "r7"
    assert found["audit"] is None and "404" in found["faults"]["audit"]
    gone = run("top", "--json", url="http://127.0.0.1:1")
    assert gone.code == 20 and json.loads(gone.out)["status"] is None


def test_everything_is_saved_as_json_by_a_key_and_by_a_flag(
    busy: ScriptedAgent, run: Run, tmp_path: Path
) -> None:
    assert run("top", "--snapshot", str(tmp_path / "flag.json")).code == 0
    with terminal("top", HEADGATE_URL=busy.url) as shown:
        eventually(lambda: "BREACHED" in shown.text)
        shown.press(b"s\x15" + bytes(tmp_path / "key.json") + b"\r")
        eventually(lambda: "written to" in screen_of(shown, 110, 36))
        shown.press(b"q")
        assert shown.wait() == 0
    for name in ("flag.json", "key.json"):
        assert json.loads((tmp_path / name).read_text())["status"] == builders.busy_status()


def test_once_without_an_agent_shows_so_and_fails() -> None:
    ran = headgate("top", "--once", HEADGATE_URL="http://127.0.0.1:1")
    assert ran.returncode == 20
    assert "AGENT UNREACHABLE" in ran.stdout
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("name", "begins"), [("top.svg", "<svg"), ("top.html", "<!DOCTYPE html>"), ("top.txt", "agent")]
)
def test_a_snapshot_is_a_file(
    busy: ScriptedAgent, run: Run, tmp_path: Path, name: str, begins: str
) -> None:
    ran = run("top", "--snapshot", str(tmp_path / name), "--interval", "0.1s")
    assert (ran.code, ran.out) == (0, "")
    text = (tmp_path / name).read_text()
    assert text.startswith(begins)
    assert "BREACHED" in text
    assert "@font-face" not in text, "a picture asks nobody for fonts"


def test_what_a_view_needs_is_loaded_when_it_is_opened() -> None:
    """The first frame is there within half a second: docs/decisions/0025."""
    load = "import headgate.cli.app, headgate.tui.program, headgate.tui.session, sys; "
    told = subprocess.run(
        [sys.executable, "-c", load + "print(*sys.modules)"], capture_output=True, text=True
    )
    late = ("clients", "lists", "actions", "export")
    assert not {"pydantic", *(f"headgate.tui.{name}" for name in late)} & set(told.stdout.split())
    assert "headgate.tui.session" in told.stdout
