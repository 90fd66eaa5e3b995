"""What tests start does not depend on how pytest was started."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from tests.environment.starting import DEAF, Left, ran
from tests.environment.surroundings import ASCII, DATABASES, OTHERS, POOR, PROXIES

ROOT = Path(__file__).parents[2]
AFRESH = """
import json, os, sys, tempfile
from pathlib import Path
from tests.fixtures.environment import begin_afresh

begin_afresh()
child = "umask; env; echo ---; cat /proc/self/status"
said = os.popen(f"sh -c '{child}'").read()
words = (Path("tests") / "environment" / "test_encoding.py").read_text()
json.dump({"child": said, "tmp": tempfile.gettempdir(), "words": words}, sys.stdout)
"""


def test_what_tests_start_has_usual_surroundings(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    hostile = {**ASCII, **PROXIES, **DATABASES, **OTHERS, **POOR, "TMPDIR": str(deep)}
    left = Left((*DEAF.ignored, "SIGHUP"), DEAF.blocked, umask=0o077, environment=hostile)
    done = ran(left, sys.executable, "-c", AFRESH, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    umask, *named = said["child"].partition("---\n")[0].splitlines()
    seen = dict(line.partition("=")[::2] for line in named)
    assert umask == "0022"
    assert "Größe" in said["words"]
    assert len(said["tmp"]) < 60 and seen["TMPDIR"] == said["tmp"]
    kept = {"LC_ALL", "TERM", "TZ", "TMPDIR", "PYTHONDONTWRITEBYTECODE"}
    assert not seen.keys() & {name for name in hostile if name not in kept}
    assert (seen["LC_ALL"], seen["TERM"]) == ("C.UTF-8", "xterm-256color")
    _assert_usual_signals(said["child"])


def _assert_usual_signals(status: str) -> None:
    masks = dict(line.split(":\t", 1) for line in status.splitlines() if line.startswith("Sig"))
    assert int(masks["SigBlk"], 16) == 0
    of_python = {signal.SIGPIPE, signal.SIGXFSZ}  # It gives them back where it is asked to.
    ignored = int(masks["SigIgn"], 16)
    assert {n for n in range(1, 65) if ignored >> (n - 1) & 1} <= of_python
