"""Standard output: tables for people, the document itself for programs."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast, get_type_hints

from headgate.cli.documents import read

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from headgate.cli.api import Answered
    from headgate.cli.render import Canvas
    from headgate.present.view import Block

T = TypeVar("T")
PIPE_WIDTH = 160
"""Of a pipe, which has none: tables are as wide as they need to be, up to this."""


class _Trimmed:
    """A stream without the blanks that fill tables up to their width: pipes and files want none."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(_FILLING.sub("", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_FILLING = re.compile(r" +(?=\n)")


def console(stream: TextIO | None = None) -> Console:
    """On standard output, or on `stream`."""
    from rich.console import Console  # As long to load as what reads the command line.

    stream = sys.stdout if stream is None else stream
    fixed = stream.isatty() or "COLUMNS" in os.environ  # noqa: TID251 -- as rich reads it
    return Console(
        file=stream if stream.isatty() else cast(TextIO, _Trimmed(stream)),
        width=None if fixed else PIPE_WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
    )


def canvas_of(target: Console) -> Canvas:
    from headgate.cli.render import Canvas, marks_for

    return Canvas(target.width, marks_for(target.encoding))


def show(answered: Answered, as_json: bool, render: Callable[[Canvas], RenderableType]) -> None:
    if as_json:
        show_document(answered)
    else:
        show_page(render)


def show_line(answered: Answered, as_json: bool, word: str, rest: str, style: str) -> None:
    """The same of one line that begins with a word in its own style."""
    if as_json:
        show_document(answered)
    elif _fits_a_pipe(word + rest):
        print(word + rest)
    else:
        from rich.text import Text

        console().print(Text().append(word, style=style).append(rest))


def _fits_a_pipe(line: str) -> bool:
    """Whether standard output has neither colors nor a width at which the line would be wrapped."""
    asked_for = ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE")
    return (
        line.isascii()
        and len(line) <= PIPE_WIDTH
        and not sys.stdout.isatty()
        and not any(name in os.environ for name in asked_for)  # noqa: TID251 -- as rich reads them
    )


def show_view(given: Answered | Mapping[str, Any], as_json: bool, view: str, /, **how: Any) -> None:
    """The document as it came, or what a presenter makes of it: `budgets.policy_view`, which says
    by its first parameter which document it takes."""
    if not as_json:
        document = given if isinstance(given, Mapping) else given.document
        present, kind = presenter(view)
        show_blocks(present(read(kind, document), **how))
    elif isinstance(given, Mapping):
        show_json(given)
    else:
        show_document(given)


def presenter(view: str) -> tuple[Callable[..., Iterable[Block]], type[Any]]:
    """By its name below headgate.present, and the kind of document that it takes."""
    module, _, name = view.partition(".")
    from inspect import signature

    found = getattr(import_module(f"headgate.present.{module}"), name)
    return found, get_type_hints(found)[next(iter(signature(found).parameters))]


def show_drawn(
    answered: Answered, as_json: bool, kind: type[T], page: Callable[[T, Canvas], RenderableType]
) -> None:
    """The same, for what is drawn to the width of the terminal."""
    show(answered, as_json, lambda canvas: page(read(kind, answered.document), canvas))


def show_blocks(blocks: Iterable[Block]) -> None:
    from headgate.cli.render import drawn

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
