"""Draw the README's pictures from a real run of the demo: scripts/make_pictures.py.

Writes docs/images/demo.svg and docs/images/status.svg.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

IMAGES = Path(__file__).parent.parent / "docs" / "images"
WIDTH = 118
ENVIRONMENT = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
HEADGATE = [sys.executable, "-m", "headgate"]


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    command = [*HEADGATE, "demo", "--headless", "--seconds", "34"]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert demo.stdout is not None
    lines: list[str] = []
    asked = ""
    url = ""
    for line in demo.stdout:
        lines.append(line.rstrip("\n"))
        if found := re.search(r"agent on (127\.0\.0\.1:\d+)", line):
            url = f"http://{found[1]}"
        if "HELD" in line and not asked:
            asked = _ask(url)
    demo.wait()
    told = [re.sub(r"[^ ]*/headgate-demo-\w+", "/tmp/headgate-demo", line) for line in lines]
    _draw("demo.svg", "./scripts/demo", "\n".join(told))
    _draw("status.svg", "a refused check", asked)


def _ask(url: str) -> str:
    told = []
    for words in (
        ["check", "--app", "etl:nightly", "--database", "main"],
        ["explain", "--app", "etl:nightly", "--database", "main"],
        ["top", "--once"],
    ):
        shown = " ".join(["$ headgate", *words])
        done = subprocess.run(
            [*HEADGATE, *words, "--url", url],
            check=False,  # A refused check tells so by its exit code.
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
        )
        told.append(f"\x1b[1m{shown}\x1b[0m\n{done.stdout.rstrip()}{done.stderr.rstrip()}\n")
    return "\n".join(told)


def _draw(name: str, title: str, ansi: str) -> None:
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere)
        console.print(Text.from_ansi(ansi))
        drawn = console.export_svg(title=title)
    # The fonts would be fetched from elsewhere: the reader's own monospace serves.
    (IMAGES / name).write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL))


if __name__ == "__main__":
    main()
