"""`headgate top` on a real pseudo-terminal: it draws, follows, survives and cleans up."""

from __future__ import annotations

import signal
import threading
from functools import partial
from pathlib import Path

import pytest

from headgate.cli.api import connect
from headgate.cli.documents import Status, read
from headgate.cli.poller import WAKE_EVERY_S, Waker
from headgate.cli.trend import View
from tests.cli import builders
from tests.cli.conftest import Run, headgate
from tests.cli.scripted import Heard, Reply, ScriptedAgent
from tests.cli.terminal import Terminal, terminal
from tests.fixtures.eventually import eventually

ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
SHOW_CURSOR = "\x1b[?25h"


@pytest.fixture
def busy(scripted: ScriptedAgent) -> ScriptedAgent:
    scripted.says("/v1/status", builders.busy_status())
    return scripted


def left_clean(shown: Terminal, modes: object) -> bool:
    return (
        shown.raw.rfind(LEAVE_SCREEN) > shown.raw.rfind(ENTER_SCREEN)
        and SHOW_CURSOR in shown.raw
        and shown.modes() == modes
    )


def asks(shown: Terminal, question: str) -> bool:
    return question in shown.text


def test_top_draws_follows_a_resize_and_leaves_on_q(busy: ScriptedAgent) -> None:
    with terminal("top", "--interval", "0.1", HEADGATE_URL=busy.url) as shown:
        modes = shown.modes()
        eventually(lambda: "BREACHED" in shown.text and "threshold" in shown.text, 15)
        assert "REFUSED for 13 min by lag" in shown.text
        assert shown.modes() != modes, "keys come one by one"
        shown.resize(60, 20)
        shown.forget()
        eventually(lambda: "BREACHED" in shown.text, 10)
        assert "postgres" not in shown.text, "no room for that at 60 columns"
        widths = [len(line) for line in shown.text.replace("\r", "").split("\n")]
        assert max(widths) <= 60 * 2, "a frame may follow the other on one line, no more"
        shown.press(b"x")
        shown.press(b"q")
        assert shown.wait() == 0
        eventually(lambda: SHOW_CURSOR in shown.raw)
        shown_raw = shown.raw
        assert LEAVE_SCREEN in shown_raw
        assert shown.modes() == modes


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_top_gives_the_terminal_back_on_signals(
    busy: ScriptedAgent, number: signal.Signals, code: int
) -> None:
    with terminal("top", HEADGATE_URL=busy.url) as shown:
        modes = shown.modes()
        eventually(lambda: "BREACHED" in shown.text, 15)
        shown.process.send_signal(number)
        assert shown.wait() == code
        eventually(lambda: left_clean(shown, modes))
        assert "Traceback" not in shown.text


def test_control_c_leaves_as_q_does(busy: ScriptedAgent) -> None:
    with terminal("top", HEADGATE_URL=busy.url) as shown:
        modes = shown.modes()
        eventually(lambda: "BREACHED" in shown.text, 15)
        shown.press(b"\x03")
        assert shown.wait() == 0
        eventually(lambda: left_clean(shown, modes))


def test_top_shows_an_agent_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    agent = ScriptedAgent()
    agent.says("/v1/status", builders.busy_status())
    with terminal("top", "--interval", "0.1", HEADGATE_URL=f"unix://{path}") as shown:
        eventually(lambda: "AGENT UNREACHABLE" in shown.text, 15)
        with agent.serving(path):
            eventually(lambda: "BREACHED" in shown.text)
        path.unlink()
        shown.forget()
        eventually(lambda: "below is what it said" in shown.text)
        shown.forget()
        with agent.serving(path):
            eventually(lambda: "BREACHED" in shown.text and "UNREACHABLE" not in shown.text)
            shown.press(b"q")
            assert shown.wait() == 0


def test_a_hung_agent_hangs_no_key(scripted: ScriptedAgent) -> None:
    release = threading.Event()

    def hang(_: Heard) -> Reply:
        release.wait(10)
        return Reply(builders.status())

    scripted.replies["GET", "/v1/status"] = hang
    with terminal("top", HEADGATE_URL=scripted.url) as shown:
        eventually(lambda: "q leaves" in shown.text, 15)
        shown.press(b"q")
        assert shown.wait() == 0
        release.set()


def test_a_dumb_terminal_gets_frames_and_no_cursor_control(busy: ScriptedAgent) -> None:
    with terminal("top", "--interval", "0.1", term="dumb", HEADGATE_URL=busy.url) as shown:
        eventually(lambda: shown.text.count("agent db1") >= 3, 15)
        assert "\x1b" not in shown.raw
        shown.process.send_signal(signal.SIGINT)
        assert shown.wait() == 0


def test_no_color_is_obeyed(busy: ScriptedAgent) -> None:
    with terminal("top", "--once", HEADGATE_URL=busy.url, NO_COLOR="1") as shown:
        assert shown.wait() == 0
        eventually(lambda: "BREACHED" in shown.text)
        assert "\x1b[31m" not in shown.raw and "\x1b[1;31m" not in shown.raw


def test_confirmation_is_asked_for_on_a_terminal(scripted: ScriptedAgent) -> None:
    path = "/v1/databases/main/metrics/lag"
    scripted.says(path, builders.metric_view())
    scripted.says(path, {"database": "main", "metric": "lag", "removed": True}, method="DELETE")
    for key, code, methods in ((b"n\n", 1, {"GET"}), (b"y\n", 0, {"GET", "DELETE"})):
        scripted.heard.clear()
        with terminal("metrics", "remove", "main", "lag", HEADGATE_URL=scripted.url) as shown:
            eventually(partial(asks, shown, "Remove lag from main?"), 15)
            shown.press(key)
            assert shown.wait() == code
        assert {heard.method for heard in scripted.heard} == methods


# --- waking ------------------------------------------------------------------------------------


def test_looking_wakes_every_database_again_and_again() -> None:
    """R58: an operator who looks wants measurements."""
    wake = [("POST", f"/v1/databases/{name}/wake") for name in ("main", "orders")]
    agent = ScriptedAgent()
    for method, path in wake:
        agent.says(path, {"database": "x", "activity": "normal"}, method=method)
    status = read(Status, builders.busy_status())
    with agent.serving():
        waker = Waker(connect(agent.url, None))
        for now_s in (0.0, 1.0, WAKE_EVERY_S - 0.1, WAKE_EVERY_S):
            waker.wake(View(agent.url, status, now_s), now_s)
    assert [(heard.method, heard.path) for heard in agent.heard] == wake * 2


def test_an_agent_that_knows_no_waking_is_shown_all_the_same(busy: ScriptedAgent, run: Run) -> None:
    ran = run("top", "--once", "--interval", "0.1")
    assert ran.code == 0 and "BREACHED" in ran.out
    assert [h.path for h in busy.heard if h.method == "POST"] == [
        "/v1/databases/main/wake",
        "/v1/databases/orders/wake",
    ]


def test_an_agent_that_is_away_is_not_woken() -> None:
    view = View("http://127.0.0.1:1", read(Status, builders.status()), 1.0, lost="gone")
    Waker(connect(view.url, None)).wake(view, 1.0)
    Waker(connect(view.url, None)).wake(View(view.url, view.status, 1.0), 1.0)


# --- one frame -------------------------------------------------------------------------------


def test_once_prints_one_frame_with_rates(scripted: ScriptedAgent, run: Run) -> None:
    counts = iter(range(0, 1000, 50))

    def growing(_: Heard) -> Reply:
        client = builders.client(admitted=next(counts), refused=0)
        return Reply(builders.status(clients=[client]))

    scripted.replies["GET", "/v1/status"] = growing
    ran = run("top", "--once", "--interval", "0.1")
    assert ran.code == 0
    assert "agent db1" in ran.out
    row = next(line for line in ran.out.splitlines() if line.startswith("etl:nightly"))
    assert float(row.split()[2].replace(",", "")) > 50


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
    ran = run("top", "--snapshot", str(tmp_path / name), "--interval", "0.1")
    assert (ran.code, ran.out) == (0, "")
    text = (tmp_path / name).read_text()
    assert text.startswith(begins)
    assert "BREACHED" in text
    assert "@font-face" not in text, "a picture asks nobody for fonts"
