"""A log without the literals of statements.   lines ──► JSON, or words with statements in them

A log says nowhere what in it is a statement, or in which dialect: whatever reads like one is taken
for one, up to the end of its line and of the lines that continue it. Where a literal's end is not
certain, the rest of the statement goes, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from headgate.core.redaction import HIDDEN
from headgate.traffic.ask import Dialect
from headgate.traffic.sql_text import COMMENT, LITERAL, QUOTED, WORD, Piece, pieces

SQL_KEYS = frozenset({"sql", "query", "statement", "example", "text"})
_THINGS = (
    r"USER|ROLE|GROUP|TABLE|DATABASE|SCHEMA|SERVER|SUBSCRIPTION|PUBLICATION|FUNCTION|PROCEDURE"
    r"|TRIGGER|TYPE|DOMAIN|SYSTEM|POLICY|SEQUENCE|EVENT|(?:MATERIALIZED\s+)?VIEW"
    r"|(?:UNIQUE\s+)?INDEX|FOREIGN\s+(?:TABLE|DATA)|TEMP(?:ORARY)?\s+TABLE|UNLOGGED\s+TABLE"
)
# Words that people use as well count only with what SQL has behind them.
_BEGINS = "|".join(
    (
        r"SELECT\b",
        r"INSERT\s+(?:\w+\s+)?INTO\b",
        r"REPLACE\s+INTO\b",
        r"UPDATE\s+(?:\w{1,64}\s+)?\S{1,200}\s+(?:AS\s+)?(?:\w+\s+)?SET\b",
        r"DELETE\s+FROM\b",
        r"MERGE\s+INTO\b",
        r"WITH\s+(?:RECURSIVE\s+)?\S{1,200}\s*(?:\([^)\n]{0,500}\)\s*)?AS\s+(?:NOT\s+)?(?:MATERIALIZED\s*)?\(",
        r"CALL\s+[\w.\"`]{1,200}\s*\(",
        r"EXECUTE\s+[\w.\"`]{1,200}\s*[('$]",
        r"EXECUTE\s+[\w.\"`]{1,200}\s+USING\b",
        r"PREPARE\s+[\w\"`]{1,200}\s*(?:\(|AS\b|FROM\b)",
        r"DO\s+(?:LANGUAGE\s+\w+\s+)?[$']",
        r"COPY\s+\S{1,200}\s*(?:\([^)\n]{0,500}\)\s*)?(?:FROM|TO)\b",
        r"LOAD\s+DATA\b",
        rf"(?:CREATE|ALTER|DROP|COMMENT\s+ON)\s+(?:OR\s+REPLACE\s+)?(?:{_THINGS})\b",
        r"SET\s+(?:(?:LOCAL|SESSION|GLOBAL|PERSIST)\s+)?@{0,2}[\w.\"`]{1,200}\s*(?::?=|TO\b)",
        r"GRANT\s+[^\n]{1,200}?\s+(?:ON|TO)\b",
        r"NOTIFY\s+\w+\s*,",
        r"VALUES\s*\(",
        r"(?:WHERE|HAVING|AND|OR|ON|WHEN)\s+[\w.\"`()]{1,200}\s*(?:=|<|>|!=|~|LIKE\b|ILIKE\b|IN\s*\(|BETWEEN\b)",
        # As servers announce them, whatever they are.
        r"(?:STATEMENT|QUERY|PARAMETERS):",
        r"(?:EXECUTE|PARSE|BIND)\s+\S+:",
        rf"(?:{'|'.join(sorted(SQL_KEYS))})=",
        r"\$\d+\s*=\s*'",
    )
)
# Postgres continues a line with a tab; in syslog with a number behind the process.
_CONTINUED = r"(?:\n(?:\t|[^\n]{0,200}?\[\d+-(?:[2-9]|\d{2,})\]\s)[^\n]*)*"
_STATEMENT = re.compile(rf"(?<![A-Za-z0-9_])(?:{_BEGINS})[^\n]*{_CONTINUED}", re.IGNORECASE)
# What servers say of values, in words of their own: how it begins, and what may come behind. No
# value can end it early, for the last of these counts; without any, the rest of the line goes.
_SAID: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = tuple(
    (re.compile(rf"({begins})[^\n]*", re.IGNORECASE), ends)
    for begins, ends in (
        (r"Key \([^\n]{0,300}?\)=\(", (") already", ") is ", ") conflicts")),
        (r"row contains \(", (")",)),
        (r"Duplicate entry ", (" for key",)),
        (r"syntax to use near ", (" at line",)),
        (r"invalid input (?:syntax|value) for [^\n:]{1,100}: ", ()),
        (r"\bvalue (?=[\"'])", (" is out of range",)),
        (r"\bincorrect [\w ]{1,40}value: ", (" for ",)),
        (r"COPY [^\n,]{1,200}, line \d+(?:, column [^\n:]{1,200})?: ", ()),
        (r"at or near (?=\"')", (" at character",)),
    )
)


def lines_without_literals(text: str) -> str:
    """With `?` for each, and JSON still JSON."""
    return "".join(_in_turn(text))


def _in_turn(text: str) -> Iterator[str]:
    words: list[str] = []  # Lines that may be continued by the next.
    for line in text.splitlines(keepends=True):
        document = _document(line)
        if document is None:
            words.append(line)
            continue
        yield _worded("".join(words))
        words.clear()
        yield json.dumps(_shaped(document), ensure_ascii=False) + line[len(line.rstrip("\r\n")) :]
    yield _worded("".join(words))


def _document(line: str) -> dict[str, Any] | None:
    if not line.lstrip().startswith("{"):
        return None
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _shaped(document: Any, key: str = "") -> Any:
    if isinstance(document, dict):
        return {name: _shaped(inner, name) for name, inner in document.items()}
    if isinstance(document, list):
        return [_shaped(item, key) for item in document]
    if isinstance(document, str):
        return _lexed(document) if key in SQL_KEYS else _worded(document)
    return document


def _worded(text: str) -> str:
    for pattern, ends in _SAID:
        text = pattern.sub(partial(_unsaid, ends), text)
    return _STATEMENT.sub(lambda match: _lexed(match[0]), text)


def _unsaid(ends: tuple[str, ...], match: re.Match[str]) -> str:
    rest = match[0][len(match[1]) :]
    at = max((rest.rfind(end) for end in ends), default=-1)
    return f"{match[1]}?{rest[at:] if at >= 0 else ''}"


def _lexed(statement: str) -> str:
    if "\\'" in statement or '\\"' in statement:
        # An escaped quote in one dialect, the end of a literal in the other.
        first = min(at for at in map(statement.find, "'\"") if at >= 0)
        return _lexed(statement[:first]) + "?"
    before, found = "", []
    for piece in pieces(statement.encode(errors="replace"), Dialect.POSTGRES):
        found.append(_shown(piece, before))
        before = piece.kind
    return "".join(found)


def _shown(piece: Piece, before: str) -> str:
    text = piece.text.decode(errors="replace")
    if piece.kind == COMMENT:
        return f"/*{HIDDEN}*/"
    if piece.kind not in (LITERAL, QUOTED) or re.fullmatch(r"\$\d+", text):
        return text
    mark = text[0]
    is_closed = len(text) > 1 and text[-1] == mark
    # A quote that the log put around the statement, or an apostrophe: it begins nothing.
    if mark in "'\"" and before == WORD and not is_closed:
        return mark + _lexed(text[1:])
    # MySQL's literals are Postgres' names: in a log nobody knows. But behind a word it is neither.
    if mark == '"' and (before == WORD or not is_closed):
        return mark + _lexed(text[1:-1] if is_closed else text[1:]) + mark * is_closed
    return "?"
