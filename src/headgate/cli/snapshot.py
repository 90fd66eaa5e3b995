"""A frame as a file: for a ticket, a page, a test."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console, RenderableType

WIDTH = 110
HEIGHT = 40
# A picture asks nobody for fonts: whoever views it has a monospaced one.
_SVG = re.sub(r"@font-face\s*{{.*?}}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "Fira Code, monospace", "monospace"
)


def save(path: Path, picture: Callable[[Console], RenderableType]) -> None:
    sink = io.StringIO()
    screen = Console(
        record=True, file=sink, width=WIDTH, height=HEIGHT, force_terminal=True, markup=False
    )
    screen.print(picture(screen))
    if path.suffix == ".svg":
        screen.save_svg(str(path), title="headgate top", code_format=_SVG)
    elif path.suffix in (".html", ".htm"):
        screen.save_html(str(path))
    else:
        screen.save_text(str(path))
