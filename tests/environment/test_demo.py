"""The demo's own servers and agents, whatever the shell of its user is about."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from headgate.demo import servers
from tests.environment.starting import DEAF, HEADGATE, Left, started
from tests.environment.surroundings import ASCII, DATABASES, OTHERS, POOR, PROXIES
from tests.fixtures.eventually import eventually

HOSTILE = {**ASCII, **PROXIES, **DATABASES, **OTHERS, **POOR}
SMALL_SHM = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'


@cache
def without_roomy_memory() -> tuple[str, ...]:
    """As in a container: /dev/shm has no room, and TMPDIR counts. Nothing where we may not."""
    prefix = ("unshare", "--mount", "sh", "-c", SMALL_SHM, "sh")
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return ()
    tried = subprocess.run([*prefix, "true"], capture_output=True, check=False)
    return prefix if tried.returncode == 0 else ()


@pytest.fixture
def deep_folder() -> Iterator[Path]:
    """Too long for a socket, with characters that shells and settings files quote. Open to the
    user who runs the servers, which pytest's own is not."""
    top = Path(tempfile.mkdtemp(prefix="hg-", dir="/tmp"))
    deep = top / 'it\'s a "quoted" path' / ("x" * 120)
    deep.mkdir(parents=True)
    for folder in (top, *top.rglob("*")):
        folder.chmod(0o755)
    yield deep
    shutil.rmtree(top, ignore_errors=True)


def test_the_demo_minds_its_own_servers(tmp_path: Path, deep_folder: Path) -> None:
    """All is up, agents and all, when the page's address is told; then Ctrl-C."""
    ports = f"{servers.FIRST_PORT}-{servers.FIRST_PORT + servers.PORT_COUNT - 1}"
    surroundings = {**HOSTILE, "TMPDIR": str(deep_folder)}
    left = Left(DEAF.ignored, DEAF.blocked, umask=0o077, environment=surroundings)
    demo = (*HEADGATE, "demo", "--headless", "--ports", ports)
    with started(left, tmp_path, *without_roomy_memory(), *demo) as running:
        told = running.until("the page: ")
        assert running.end(signal.SIGINT) == 0, running.said
        assert "stopped; nothing is left behind" in running.said
        assert "Traceback" not in running.said
    found = re.search(r"below (.*headgate-demo-\w+)", told)
    assert found
    assert not without_roomy_memory() or found[1].startswith(str(deep_folder))
    assert not Path(found[1]).exists() and list(deep_folder.iterdir()) == []
    eventually(lambda: not processes_naming(found[1]))


def processes_naming(folder: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(folder) in words:
                found.append(words.decode(errors="replace"))
    return found
