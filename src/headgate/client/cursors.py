"""Where a job has got to, kept over its end, so that the next run takes up there.

A position is saved once the body of its chunk has ended without an exception: what was cut
short is done again, so the body of a chunk should bear being repeated.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

from headgate.errors import Fault, InvalidSettings

Position: TypeAlias = Any
"""What JSON can hold and `<=` can compare: a number, a text, a list of them."""


class Cursor(Protocol):
    """Yours may be a row in a table. An AsyncClient awaits what its methods return, if need be."""

    def load(self) -> Position | Awaitable[Position]:
        """The position of the last chunk that was done; None: begin."""
        ...

    def save(self, position: Position) -> object:
        """None: all items are done; the next run starts from the beginning."""
        ...


CursorLike: TypeAlias = (
    Cursor | str | os.PathLike[str] | tuple[Callable[[], Any], Callable[[Any], object]]
)


class FileCursor:
    """In a small JSON file, which is replaced whole: a crash leaves the old one or the new one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        from pathlib import Path  # here, as json below: see client/__init__.py

        self.path = Path(path)

    def load(self) -> Position:
        import json

        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            # Found out now, rather than when the first chunk has been done.
            if not os.access(self.path.parent, os.W_OK | os.X_OK):
                message = f"nothing can be written to {self.path.parent}: make that folder, or"
                raise InvalidSettings([Fault("cursor", f"{message} name another")]) from None
            return None
        except (OSError, ValueError) as fault:
            raise self._unreadable(str(fault)) from None
        if not isinstance(document, dict) or "position" not in document:
            raise self._unreadable("it holds no position")
        return document["position"]

    def save(self, position: Position) -> None:
        if position is None:
            self.clear()
            return
        text = self._encoded(position)
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)

    def clear(self) -> None:
        """Forget the position: the next run starts from the beginning."""
        self.path.unlink(missing_ok=True)

    def __repr__(self) -> str:
        return f"FileCursor({str(self.path)!r})"

    def _encoded(self, position: Position) -> str:
        import json

        try:
            return json.dumps({"position": position})
        except (TypeError, ValueError):
            kind = type(position).__name__
            message = f"{kind} is not JSON: let key= return a number or a text, such as isoformat()"
            raise InvalidSettings([Fault("cursor", message)]) from None

    def _unreadable(self, told: str) -> InvalidSettings:
        advice = "fix the file, or delete it to start from the beginning"
        return InvalidSettings([Fault("cursor", f"{self.path} cannot be read: {told}; {advice}")])


class _Callables:
    def __init__(self, load: Callable[[], Any], save: Callable[[Any], object]) -> None:
        self.load = load
        self.save = save


def cursor_of(given: CursorLike | None) -> Cursor | None:
    """A path, a pair of functions (load, save), or anything with these two methods."""
    if given is None:
        return None
    if isinstance(given, str | os.PathLike):
        return FileCursor(given)
    if isinstance(given, tuple) and len(given) == 2 and all(callable(part) for part in given):
        return _Callables(*given)
    if callable(getattr(given, "load", None)) and callable(getattr(given, "save", None)):
        return given  # type: ignore[return-value]  # recognized by its methods, as in the Protocol
    message = f"must be a path, (load, save), or have these two methods, not {given!r}"
    raise InvalidSettings([Fault("cursor", message)])
