"""Statements that were blocked or delayed, without their values.   events ──► Slowlog ──► log

A line says which client, what was done, why, and how long it took. Literals become `?` and comments
go: no log has what a user wrote as a value. So many lines a second; the rest is counted and logged.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from headgate.base.ports import Clock
from headgate.budgets.ask import Dialect
from headgate.budgets.sql_text import COMMENT, LITERAL, SPACE, SqlPiece, pieces
from headgate.proxy.layout import EVENT_BLOCKED, EVENT_DELAYED, EVENT_WARNED
from headgate.proxy.relay import RelayEvent

log = structlog.get_logger()

MAX_STATEMENT_CHARS = 2000
MAX_LEXED_BYTES = 8192
WHAT = {EVENT_BLOCKED: "blocked", EVENT_DELAYED: "delayed", EVENT_WARNED: "warned"}


@dataclass(frozen=True, slots=True)
class SlowlogTerms:
    path: Path | None = None
    """None: into the log."""
    min_delay_s: float = 0.1
    warnings: bool = False
    per_s: float = 10.0


_QUOTE = re.compile(rb"['\"]")
_WHOLE = {
    b"'": (
        re.compile(rb"'(?:[^'\\]|\\.|'')*+(?:'|\\?\Z)", re.DOTALL),
        re.compile(rb"'(?:[^']|'')*+(?:'|\Z)"),
    ),
    b'"': (
        re.compile(rb'"(?:[^"\\]|\\.|"")*+(?:"|\\?\Z)', re.DOTALL),
        re.compile(rb'"(?:[^"]|"")*+(?:"|\Z)'),
    ),
}
"""A quoted text, by sessions for which a backslash escapes and for which it does not."""


def redacted(text: bytes, dialect: Dialect) -> str:
    """Without literals and comments, on one line. A text that was cut in a literal loses it. In a
    session with other settings (standard_conforming_strings, NO_BACKSLASH_ESCAPES) literals may
    end elsewhere: then the text is shown as far as both readings agree."""
    kept, at, text = [], 0, text[:MAX_LEXED_BYTES]
    for piece in pieces(text, dialect):
        if piece.kind in (SPACE, COMMENT):
            kept.append(b" ")
        else:
            kept.append(b"?" if piece.kind == LITERAL else piece.text)
        if _is_ambiguous(text, at, piece, dialect):
            kept.append("…".encode())
            break
        at += len(piece.text)
    shown = b" ".join(b"".join(kept).split()).decode(errors="replace")
    return shown if len(shown) <= MAX_STATEMENT_CHARS else shown[:MAX_STATEMENT_CHARS] + "…"


def _is_ambiguous(text: bytes, at: int, piece: SqlPiece, dialect: Dialect) -> bool:
    if piece.kind != LITERAL or b"\\" not in piece.text:
        return False
    if dialect is Dialect.POSTGRES and piece.text[:1] in b"eE$":  # These read alike anywhere.
        return False
    quote = _QUOTE.search(text, at, at + len(piece.text))
    if quote is None:
        return False
    found = [way.match(text, quote.start()) for way in _WHOLE[quote.group()]]
    return found[0] is None or found[1] is None or found[0].end() != found[1].end()


class Slowlog:
    def __init__(
        self,
        terms: SlowlogTerms,
        dialect: Dialect,
        clock: Clock,
        client_of: Callable[[int], str],
    ) -> None:
        self._terms = terms
        self._dialect = dialect
        self._clock = clock
        self._client_of = client_of
        self._fd: int | None = None
        self._tokens = max(1.0, terms.per_s)
        self._filled_at = clock.now().mono_s
        self._left_out = 0
        self.lines = 0
        self.suppressed = 0
        """Ever; those that the relay did not tell of included."""
        self.fault = ""
        self._open()

    # --- life ------------------------------------------------------------------------------

    def adopt(self, terms: SlowlogTerms) -> None:
        """Also the same terms: after logrotate has renamed the file, a new one is opened."""
        self._terms = terms
        self.close()
        self._open()

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None

    def _open(self) -> None:
        self.fault = ""
        if self._terms.path is None:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._fd = os.open(self._terms.path, flags, 0o640)
        except OSError as error:
            self.fault = f"{self._terms.path} cannot be opened: {error.strerror}"
            log.error("slowlog.unwritable", detail=self.fault)

    # --- events ----------------------------------------------------------------------------

    def note(self, event: RelayEvent) -> None:
        if event.left_out:
            self._left_out += event.left_out
            self.suppressed += event.left_out
        if not self._wants(event):
            return
        if not self._may_write():
            self._left_out += 1
            self.suppressed += 1
            return
        left_out, self._left_out = self._left_out, 0
        self._write(self._line(event, left_out))

    def _wants(self, event: RelayEvent) -> bool:
        if self._terms.per_s <= 0:
            return False
        if event.kind == EVENT_DELAYED:
            return event.took_ns >= self._terms.min_delay_s * 1e9
        return event.kind == EVENT_BLOCKED or (event.kind == EVENT_WARNED and self._terms.warnings)

    def _may_write(self) -> bool:
        """A bucket of a second's worth."""
        now = self._clock.now().mono_s
        most = max(1.0, self._terms.per_s)
        gained = (now - self._filled_at) * self._terms.per_s
        self._tokens, self._filled_at = min(most, self._tokens + gained), now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _line(self, event: RelayEvent, left_out: int) -> dict[str, Any]:
        line: dict[str, Any] = {
            "what": WHAT[event.kind],
            "by": event.by.name.lower(),
            "client": self._client_of(event.number),
            "user": event.username,
            "database": event.database,
            "budget": event.budget or None,
            "reason": event.reason or None,
            "took_s": round(event.took_ns / 1e9, 6),
            "in_transaction": event.in_transaction or None,
            "pattern": f"{event.pattern:016x}" if event.pattern else None,
            "statement": redacted(event.text, self._dialect),
            "left_out": left_out or None,
        }
        return {key: value for key, value in line.items() if value is not None}

    def _write(self, line: Mapping[str, Any]) -> None:
        self.lines += 1
        if self._terms.path is None:
            log.info("statement", **line)
            return
        if self._fd is None:
            self.suppressed += 1
            return
        at = datetime.fromtimestamp(self._clock.now().wall_s, UTC).isoformat(
            timespec="milliseconds"
        )
        body = json.dumps({"at": at, **line}, ensure_ascii=False) + "\n"
        try:
            os.write(self._fd, body.encode())
        except OSError as error:
            self._note_fault(error)

    def _note_fault(self, error: OSError) -> None:
        """Once, until the file is opened again: a full disk must not fill the log as well."""
        self.suppressed += 1
        if not self.fault:
            self.fault = f"{self._terms.path} cannot be written: {error.strerror}"
            log.error("slowlog.unwritable", detail=self.fault)
