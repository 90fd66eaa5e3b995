"""How far a job is, for those who watch it: rich or tqdm where installed, else a plain line."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TextIO, TypeAlias

PLAIN_EVERY_S = 0.5


class Progress(NamedTuple):
    """After each chunk."""

    done: int
    """Items, those of earlier runs included."""
    total: int | None
    """None: nobody knows."""
    chunk: int
    """Items in the chunk that was just done."""
    elapsed_s: float
    utilization: float | None
    """Of the database, as the last answer gave it; 1.0 is its threshold."""


ProgressLike: TypeAlias = bool | Callable[[Progress], object]


class Display(Protocol):
    def show(self, progress: Progress) -> object: ...

    def close(self) -> None: ...


class _Called:
    def __init__(self, told: Callable[[Progress], object]) -> None:
        self.show = told

    def close(self) -> None:
        pass


class _Rich:
    def __init__(self, module: Any, name: str, total: int | None) -> None:
        self._bar = module.Progress(
            module.TextColumn("{task.description}"),
            module.BarColumn(),
            module.MofNCompleteColumn(),
            module.TextColumn("{task.fields[state]}"),
            module.TimeRemainingColumn(),
            console=module.Console(stderr=True),
        )
        self._task = self._bar.add_task(name, total=total, state="")
        self._bar.start()

    def show(self, progress: Progress) -> None:
        self._bar.update(self._task, completed=progress.done, state=_state(progress))

    def close(self) -> None:
        self._bar.stop()


class _Tqdm:
    def __init__(self, module: Any, name: str, total: int | None) -> None:
        self._bar = module.tqdm(total=total, desc=name)

    def show(self, progress: Progress) -> None:
        self._bar.set_postfix_str(_state(progress), refresh=False)
        self._bar.update(progress.done - self._bar.n)

    def close(self) -> None:
        self._bar.close()


class _Plain:
    """One line, written over itself."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self._name = name
        self._stream = stream
        self._next_s = 0.0
        self._line = ""

    def show(self, progress: Progress) -> None:
        self._line = f"\r{self._name}: {line_of(progress)}\x1b[K"
        if progress.elapsed_s >= self._next_s:
            self._next_s = progress.elapsed_s + PLAIN_EVERY_S
            self._write(self._line)

    def close(self) -> None:
        if self._line:
            self._write(f"{self._line}\n")

    def _write(self, text: str) -> None:
        # A terminal that is gone, or lacks a letter of the name, does not end the work.
        with suppress(OSError, UnicodeError):
            self._stream.write(text)
            self._stream.flush()


def line_of(progress: Progress) -> str:
    share = f" ({progress.done / progress.total:.0%})" if progress.total else ""
    of = f" of {progress.total:,}" if progress.total is not None else ""
    rate = progress.done / progress.elapsed_s if progress.elapsed_s > 0 else 0.0
    return f"{progress.done:,}{of}{share}, {rate:,.0f}/s, {_state(progress)}"


def _state(progress: Progress) -> str:
    used = progress.utilization
    load = "" if used is None else f", database at {used:.0%} of its threshold"
    return f"chunks of {progress.chunk:,}{load}"


def display_of(given: ProgressLike, name: str, total: int | None) -> Display | None:
    """None: progress was not requested, or there is no terminal to write to."""
    if given is False:
        return None
    if given is not True:
        return _Called(given)
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    for module, made in (("rich.progress", _Rich), ("tqdm", _Tqdm)):
        try:
            return made(importlib.import_module(module), name, total)
        except ImportError:
            continue
    return _Plain(name, sys.stderr)
