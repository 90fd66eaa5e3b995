"""Standard output: tables for people, the document itself for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console, RenderableType

from headgate.cli.documents import read
from headgate.cli.render import Canvas, drawn, marks_for
from headgate.present.view import Block

if TYPE_CHECKING:
    from headgate.cli.api import Answered

T = TypeVar("T")
PIPE_WIDTH = 160
"""Of a pipe, which has none: tables are as wide as they need to be, up to this."""


def console() -> Console:
    fixed = sys.stdout.isatty() or "COLUMNS" in os.environ  # noqa: TID251 -- as rich reads it
    return Console(width=None if fixed else PIPE_WIDTH, highlight=False, markup=False, emoji=False)


def canvas_of(target: Console) -> Canvas:
    return Canvas(target.width, marks_for(target.encoding))


def show(answered: Answered, as_json: bool, render: Callable[[Canvas], RenderableType]) -> None:
    if as_json:
        show_document(answered)
    else:
        show_page(render)


def show_view(
    answered: Answered, as_json: bool, kind: type[T], view: Callable[[T], Iterable[Block]]
) -> None:
    """The document as it came, or what a presenter makes of it."""
    if as_json:
        show_document(answered)
    else:
        show_blocks(view(read(kind, answered.document)))


def show_blocks(blocks: Iterable[Block]) -> None:
    show_page(lambda canvas: drawn(blocks, canvas))


def show_page(render: Callable[[Canvas], RenderableType]) -> None:
    target = console()
    target.print(render(canvas_of(target)))


def show_document(answered: Answered) -> None:
    """As it came; on a terminal indented."""
    if sys.stdout.isatty():
        show_json(answered.document)
    elif _shows_all() or answered.body.isascii():
        print(answered.body.decode())
    else:
        print(json.dumps(answered.document))


def show_json(document: Any) -> None:
    """Escaped where the stream lacks letters: with question marks it would be another document."""
    print(json.dumps(document, indent=2, ensure_ascii=not _shows_all()))


def show_toml(text: str) -> None:
    """A file is UTF-8, whatever the terminal of its reader can show."""
    if sys.stdout.isatty() or _shows_all() or text.isascii():
        print(text, end="")
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())


def _shows_all() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
