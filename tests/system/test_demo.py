"""The demo keeps its promises, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.demo import servers
from tests.fixtures.eventually import eventually

DEMO = [sys.executable, "-m", "headgate", "demo"]


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


def test_the_scenes_do_what_they_promise() -> None:
    done = subprocess.run(
        [*DEMO, "--headless", "--seconds", "34"], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "HELD" in done.stdout and "PROMISE BROKEN" not in done.stdout
    folder = _folder(done.stdout)
    assert leftovers(folder) == [] and not Path(folder).exists()


@pytest.mark.parametrize("moment", ["streaming replica", "scene 1", "threshold 2 s"])
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
        rest, _ = demo.communicate(timeout=30)
    assert demo.returncode == 0, told + rest
    assert "Traceback" not in told + rest
    eventually(lambda: not leftovers("headgate-demo-") and not _folders(), within_s=5)


def _folders() -> list[Path]:
    return list(servers.scratch_parent().glob("headgate-demo-*"))


def _folder(told: str) -> str:
    found = re.search(r"below (\S*headgate-demo-\w+)", told)
    assert found, told
    return found[1]
