"""A frame as a file: for a ticket, a page, a test."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console, RenderableType

from headgate.cli.top_paint import Line, Lines

WIDTH = 110
HEIGHT = 40
# A picture asks nobody for fonts: whoever views it has a monospaced one.
_SVG = re.sub(r"@font-face\s*{{.*?}}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "Fira Code, monospace", "monospace"
)


TITLE = "headgate top"


def save(path: Path, picture: Callable[[Console], RenderableType]) -> None:
    screen = _recording(WIDTH, HEIGHT)
    screen.print(picture(screen))
    path.write_text(_exported(screen, path.suffix), encoding="utf-8")


def save_lines(path: Path, lines: Sequence[Line], size: tuple[int, int]) -> None:
    """What is on a screen of this size. A file that is there already is not overwritten."""
    screen = _recording(*size)
    screen.print(Lines(lines))
    with path.open("x", encoding="utf-8") as file:
        file.write(_exported(screen, path.suffix))


def _recording(width: int, height: int) -> Console:
    return Console(
        record=True, file=io.StringIO(), width=width, height=height, force_terminal=True,
        color_system="truecolor", no_color=False, markup=False, emoji=False, highlight=False,
    )  # fmt: skip


def _exported(screen: Console, suffix: str) -> str:
    if suffix == ".svg":
        return screen.export_svg(title=TITLE, code_format=_SVG)
    return screen.export_html() if suffix in (".html", ".htm") else screen.export_text()
