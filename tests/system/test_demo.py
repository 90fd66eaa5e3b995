"""The demo keeps its promises, and leaves nothing behind."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headgate.demo import postgres, servers
from headgate.demo.postgres import ServerDown
from tests.fixtures.eventually import eventually
from tests.fixtures.shards import start_postgres_shard
from tests.tui.glass import Glass

# Ports of this test process's own: other tests run beside it.
LAST_PORT = servers.FIRST_PORT + servers.PORT_COUNT - 1
PORTS = f"{servers.FIRST_PORT}-{LAST_PORT}"
DEMO = [sys.executable, "-m", "headgate", "demo", "--ports", PORTS]
WHOLE_S = 600
"""All scenes take about 60 s; on a machine that is busy with other tests, more."""
WORDS_S = CLEAN_UP_S = 120
ROWS, COLUMNS = 32, 120


def leftovers(folder: str) -> list[str]:
    """Processes that still name the demo's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if folder.encode() in words:
                found.append(words.decode(errors="replace"))
    return found


def nothing_is_left(told: str) -> bool:
    found = re.search(r"below (\S*headgate-demo-\w+)", told)
    assert found, told
    return not leftovers(found[1]) and not Path(found[1]).exists()


@pytest.mark.timeout(WHOLE_S + 20)
def test_the_scenes_do_what_they_promise() -> None:
    """Held by lag, rejected by a rule, rejected by a budget, led by the new primary's agent, and
    never an OK that nobody may give (R36, R38, R45, R49, R127, R138)."""
    done = subprocess.run(
        [*DEMO, "--headless", "--for", "30s"], capture_output=True, text=True, timeout=WHOLE_S
    )
    told = done.stdout
    assert done.returncode == 0, told + done.stderr
    assert "THROTTLED" in told and "PROMISE BROKEN" not in told
    _assert_favored(told)
    _assert_shed(told)
    _assert_promoted(told)
    _assert_agent_died(told)
    assert not done.stderr
    eventually(lambda: nothing_is_left(told))


def _found(pattern: str, told: str) -> re.Match[str]:
    found = re.search(pattern, told)
    assert found, f"{pattern} is not in\n{told}"
    return found


def scene(number: int, told: str) -> str:
    return told[told.index(f"scene {number}:") :].partition("\n\n")[0]


def _assert_favored(told: str) -> None:
    assert "OK by db-a" in scene(1, told) and "lag of db-c" in scene(2, told)
    assert "rejected by a rule" in scene(3, told)
    _found(r"explain names the rule that throttles ETL: r-\w+", told)


def _assert_shed(told: str) -> None:
    """The extension: every machine that runs the tests has a compiler."""
    assert "traffic control inside Postgres, by the extension" in told
    _found(r"is listed: export\.py of adhoc, \d sessions", told)
    warned = _found(r"warned first: of (\d+) statements, while (\d+) ran", told)
    assert int(warned[1]) > 0 and int(warned[2]) > 0
    rejected = _found(r"enforced, (\d+) statements were blocked with SQLSTATE 53000: (.+)", told)
    assert int(rejected[1]) > 0 and 'budget "best-effort"' in rejected[2]
    _found(r"0 of the jobs' statements blocked, 0 of the dashboard's", told)


def _assert_promoted(told: str) -> None:
    new = _found(r"kept: (db-[bc]) was promoted and db-a's agent leads no more", told)[1]
    _found(rf"kept: {new}'s agent led the shard, \d+\.\d\d s after its promotion", told)
    rejected = _found(r"while no agent led, checks were rejected: (.+)", told)
    assert re.search(r"no primary|warming up|wrong agent", rejected[1]), told
    watched = _found(r"of (\d+) answers watched, 0 were an OK from an outdated view", told)
    assert int(watched[1]) > 0, told
    assert "kept: db-a is a replica again" in told
    # In the end of the scene: the new one speaks, and both jobs go by its word.
    _found(rf"(?m)^\d.*primary, leads.*OK by {new}.*OK by {new}", scene(5, told))


def _assert_agent_died(told: str) -> None:
    _found(r"the others said so: db-\w says of db-\w: .*cannot be reached", told)
    _found(r"waited: backfill:orders, etl:nightly; OKs they got: 0", told)
    assert "unthrottled" in scene(6, told)
    assert int(_found(r"unthrottled is on record: (\d+) pieces", told)[1]) > 0


BETWEEN = pytest.mark.extended
"""Moments between the first and the last: the same clean-up, at the cost of another demo each."""


@pytest.mark.parametrize(
    "moment",
    [
        "streaming replicas",
        pytest.param("an agent beside", marks=BETWEEN),
        pytest.param("scene 1", marks=BETWEEN),
        "▼ 2 s",
    ],
)
def test_ctrl_c_leaves_nothing_behind(moment: str) -> None:
    """As a terminal does it: the whole process group is interrupted, at any moment."""
    with subprocess.Popen(
        DEMO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as demo:
        assert demo.stdout is not None
        told = ""
        while moment not in told:
            line = demo.stdout.readline()
            assert line, told
            told += line
        os.killpg(demo.pid, signal.SIGINT)
        rest, _ = demo.communicate(timeout=CLEAN_UP_S)
    assert demo.returncode == 0, told + rest
    assert "Traceback" not in told + rest
    eventually(lambda: nothing_is_left(told))


def test_killed_outright_it_leaves_no_process_behind() -> None:
    """SIGKILL: nobody is left to clean up but the guards."""
    with subprocess.Popen(DEMO, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        told = ""
        while "scene 1" not in told:
            line = demo.stdout.readline()
            assert line, told
            told += line
        demo.kill()
    found = re.search(r"below (\S*headgate-demo-\w+)", told)
    assert found, told
    eventually(lambda: not leftovers(found[1]))


# --- in a terminal -----------------------------------------------------------------------------


@dataclass(slots=True)
class Terminal:
    """A demo in a pseudo-terminal: keys go in, what it draws comes out."""

    process: subprocess.Popen[bytes]
    keyboard: int
    screen: int
    """The same terminal from the demo's side, held open so that its settings can be read."""
    drawn: str = ""

    @property
    def shown(self) -> str:
        """What is on the screen; before there is one, what was printed."""
        glass = Glass(COLUMNS, ROWS)
        glass.write(self.drawn[max(0, self.drawn.rfind("\x1b[2J")) :])
        return glass.text if "\x1b[2J" in self.drawn else self.drawn

    def press(self, key: str) -> None:
        os.write(self.keyboard, key.encode())

    def await_words(self, *words: str) -> None:
        """Each of them at some time from now on."""
        deadline, missing = time.monotonic() + WORDS_S, set(words)
        while missing := {word for word in missing if word not in self.shown}:
            assert time.monotonic() < deadline, f"{missing} not in\n{self.shown}"
            self._read()

    def await_end(self) -> int:
        deadline = time.monotonic() + CLEAN_UP_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.drawn[-6000:]
            self._read()
        self._read()
        return self.process.returncode

    def settings(self) -> list[Any]:
        return termios.tcgetattr(self.screen)

    def _read(self) -> None:
        ready, _, _ = select.select([self.keyboard], [], [], 0.1)
        if ready:
            self.drawn += os.read(self.keyboard, 65536).decode(errors="replace")


@contextmanager
def in_a_terminal() -> Iterator[Terminal]:
    keyboard, screen = os.openpty()
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    with (
        closing(os.fdopen(keyboard, "rb", buffering=0)),
        closing(os.fdopen(screen, "rb", buffering=0)),
        subprocess.Popen(
            DEMO,
            stdin=screen,
            stdout=screen,
            stderr=screen,
            env=environment,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield Terminal(process, keyboard, screen)
        finally:
            process.kill()


def test_keys_promote_and_kill_and_the_terminal_is_given_back() -> None:
    """`n`, `b`, `p`, `f`, `q` in a terminal: scenes go by, the new primary's agent speaks (R45),
    and the views of `headgate top` are those of that agent."""
    with in_a_terminal() as terminal:
        before = terminal.settings()
        terminal.await_words("db-a's agent decides for it", "OK by db-a")
        begun = terminal.drawn
        terminal.press("n")
        terminal.await_words("scene 2 of 6", "does not check")
        terminal.press("b")
        terminal.await_words("scene 1 of 6", "press n for the next", "OK by db-a")
        terminal.press("p")
        terminal.await_words(
            "db-b takes writes", "db-a is back, as a replica of db-b", "wrong OKs: 0"
        )
        terminal.await_words("db-b's agent decides for it", "OK by db-b", "timeline 2")
        terminal.press("1")
        terminal.await_words("agent db-b", "1 overview", "scene 1 of 6", "etl:nightly")
        terminal.press("0f")
        terminal.await_words("no agent admits them", "NO PRIMARY", "THROTTLED")
        terminal.press("q")
        assert terminal.await_end() == 0
        assert "Traceback" not in terminal.drawn and "nothing is left behind" in terminal.drawn
        assert terminal.settings() == before
    eventually(lambda: nothing_is_left(begun))


# --- the shard below it ------------------------------------------------------------------------


def test_a_replica_that_died_meanwhile_is_brought_back_by_the_failover(servers_dir: Path) -> None:
    """It could be neither chosen nor repointed: the others go on, and it follows them again."""
    with start_postgres_shard(servers_dir) as shard:
        dead = shard.replicas[0]
        dead.kill()
        with pytest.raises(ServerDown, match=f"{dead.name}.* is down"):
            postgres.checkpoint(dead)
        new = postgres.most_advanced(shard.replicas)
        assert new is not dead
        postgres.fail_over(shard.primary, new, [dead])
        postgres.await_following(dead)
        assert dead.is_running() and dead.upstream is new
        with pytest.raises(ServerDown):
            postgres.most_advanced([shard.primary])
