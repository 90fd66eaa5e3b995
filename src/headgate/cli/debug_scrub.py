"""What a bundle must not tell: secrets, literals in statements, and names if so wished.

settings, environment, files ──known_secrets──► Scrubber ──► every text of the bundle
documents ──Names.learn──► hashes of names, the same throughout one bundle
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headgate.base.paths import expanded
from headgate.base.redaction import DOOR_OPENERS, HIDDEN, secrets_in, secrets_in_address
from headgate.budgets.model import Dialect
from headgate.budgets.sql_text import COMMENT, LITERAL, QUOTED, WORD, SqlPiece, pieces
from headgate.check.model import Verdict
from headgate.metrics.builtins import BUILTINS

SQL_KEYS = frozenset({"sql", "query", "statement", "example", "text"})
MAX_SECRET_FILE_BYTES = 64 * 1024
MAX_NAMES = 20_000
_ENVIRONMENT = re.compile(r"PASS|SECRET|TOKEN|KEY|CREDENTIAL|DSN|URL|AUTH", re.IGNORECASE)
_SECRET_FILES = re.compile(r"(password|token|headers|secret|key)_file$")
_COMMAND_KEYS = ("argv", "command")
_OPTION = re.compile(rf"--?(?:[\w-]*[_-])?(?:{DOOR_OPENERS})", re.IGNORECASE)
_IPV4 = re.compile(r"(?<![\d.])(?!127\.|0\.0\.0\.0)(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")


# --- secrets -----------------------------------------------------------------------------------


def known_secrets(settings: Iterable[str], token: str | None) -> set[str]:
    """Of settings files as they were written, of the files they name, and of the environment."""
    found = {token or "", *_of_environment()}
    for content in settings:
        found |= set(_of_settings(content))
    return {secret for secret in found if secret.strip()}


def _of_environment() -> Iterator[str]:
    for name, value in os.environ.items():  # noqa: TID251 -- so that none of it is passed on
        if _ENVIRONMENT.search(name):
            yield from secrets_in_address(value)
            if not re.search(r"URL|DSN", name, re.IGNORECASE) and not value.startswith("/"):
                yield value


def _of_settings(content: str) -> Iterator[str]:
    try:
        document: Mapping[str, Any] = tomllib.loads(content)
    except (tomllib.TOMLDecodeError, RecursionError):
        # Rejected or half written: each line that could be a setting on its own.
        for line in content.splitlines():
            with suppress(tomllib.TOMLDecodeError, RecursionError):
                yield from _of_document(tomllib.loads(line))
        return
    yield from _of_document(document)


def _of_document(document: Mapping[str, Any]) -> Iterator[str]:
    yield from secrets_in(document)
    for path in _files_in(document):
        yield from _of_file(path)
    before = ""
    for argument in _arguments_in(document):
        yield from secrets_in_address(argument)
        if _OPTION.fullmatch(before):
            yield argument
        before = argument


def _files_in(document: object) -> Iterator[Path]:
    if isinstance(document, Mapping):
        for name, inner in document.items():
            if isinstance(inner, str) and _SECRET_FILES.search(str(name)):
                with suppress(ValueError):
                    yield expanded(inner)
            else:
                yield from _files_in(inner)
    elif isinstance(document, list):
        for one in document:
            yield from _files_in(one)


def _arguments_in(document: object, key: str = "") -> Iterator[str]:
    if isinstance(document, Mapping):
        for name, inner in document.items():
            yield from _arguments_in(inner, str(name))
    elif isinstance(document, list):
        for one in document:
            if isinstance(one, str) and key == "command":
                yield one
            else:
                yield from _arguments_in(one, key)


def _of_file(path: Path) -> Iterator[str]:
    """Each line, and of `Name: value` the value. What cannot be read here is nowhere here."""
    try:
        lines = path.read_bytes()[:MAX_SECRET_FILE_BYTES].decode(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        name, colon, value = line.partition(":")
        yield line.strip()
        if colon and re.fullmatch(r"[\w-]+", name):
            yield value.strip()
            yield value.strip().rpartition(" ")[2]


# --- statements --------------------------------------------------------------------------------


def without_literals(document: Any, key: str = "") -> Any:
    """The same, with `?` for every literal of what is a statement."""
    if isinstance(document, dict):
        return {name: without_literals(inner, name) for name, inner in document.items()}
    if isinstance(document, list):
        if key in _COMMAND_KEYS:  # What it is called with may be a password, under no name at all.
            return document[:1] + [HIDDEN] * len(document[1:])
        return [without_literals(item, key) for item in document]
    return shape_of(document) if isinstance(document, str) and key in SQL_KEYS else document


def shape_of(statement: str) -> str:
    raw = statement.encode()
    found = [_shown(piece.kind, piece.text) for piece in pieces(raw, Dialect.POSTGRES)]
    return b"".join(found).decode(errors="replace")


def _shown(kind: str, text: bytes) -> bytes:
    if kind == COMMENT:
        return b"/*" + HIDDEN.encode() + b"*/"
    return b"?" if kind == LITERAL else text


# --- names -------------------------------------------------------------------------------------

_NAME_KEYS = frozenset(
    {"agent", "app", "client", "database", "host", "hostname", "user", "application", "who"}
    | {"target", "over", "shard", "member", "cluster", "region", "name", "budget", "sender"}
    | {"by", "check_at_database", "key", "dbname", "addr", "session"}
    | {"username", "application_name", "remote_address", "own_role", "exempt_usernames"}
)
_NAME_TABLES = frozenset({"match", "tags", "labels"})
"""Tables and lists of them whose values are names, whatever their keys."""
_URL_KEYS = frozenset(
    {"url", "check_at", "address", "advertise", "peer", "standby_for", "endpoint"}
)
# What everybody calls something: it tells nothing, and hashing it would make a text unreadable.
_COMMON = frozenset(
    {"all", "other", "anonymous", "local", "localhost", "fleet", "shard", "host", "self"}
    | {"primary", "replica", "operator", "viewer", "peer", "peers", "headgate", "agent", "store"}
    | {"state", "unknown", "none", "null", "true", "false", "root", "uid", "rule", "metric"}
)


class Names:
    """Hashes in place of names; the key is thrown away with the process, so that nobody can try
    names out. `table` is for the sender of the bundle, to read the answer with."""

    def __init__(self) -> None:
        self._salt = secrets.token_bytes(32)
        self._pattern: re.Pattern[str] | None = None
        self.table: dict[str, str] = {}
        self._spared = _COMMON | set(BUILTINS) | {verdict.value for verdict in Verdict}

    def learn(self, document: Any, key: str = "") -> None:
        if isinstance(document, dict):
            for name, inner in document.items():
                self.learn(inner, key if key in _NAME_TABLES else name)
        elif isinstance(document, list):
            for one in document:
                self.learn(one, key)
        elif isinstance(document, str):
            self._learn_text(document, key)

    def _learn_text(self, text: str, key: str) -> None:
        if key in _URL_KEYS or "://" in text:
            with suppress(ValueError):
                self.add(urlsplit(text).hostname or "")
        elif key == "dsn":
            for _, value in re.findall(r"\b(host|dbname|user|hostaddr)=([^\s']+)", text):
                self.add(value)
        elif key in _NAME_KEYS or key in _NAME_TABLES:
            for part in re.split(r"[:/,\s]+", text):
                self.add(part)

    def add(self, name: str) -> None:
        known = name in self.table or len(self.table) >= MAX_NAMES
        if not known and self._is_telling(name):
            digest = hmac.digest(self._salt, name.encode(), hashlib.sha256).hex()
            self.table[name] = f"n-{digest[:10]}"
            self._pattern = None

    def _is_telling(self, name: str) -> bool:
        loopback = name.startswith("127.") or name in ("::1", "0.0.0.0")  # noqa: S104
        return len(name) > 1 and not name.isdigit() and name not in self._spared and not loopback

    def __call__(self, text: str) -> str:
        for address in set(_IPV4.findall(text)):
            self.add(address)
        if not self.table:
            return text
        if self._pattern is None:
            longest_first = sorted(self.table, key=len, reverse=True)
            either = "|".join(map(re.escape, longest_first))
            self._pattern = re.compile(rf"(?<![A-Za-z0-9_])(?:{either})(?![A-Za-z0-9_])")
        return self._pattern.sub(lambda match: self.table[match[0]], text)

    def legend(self) -> str:
        pairs = {digest: name for name, digest in self.table.items()}
        return json.dumps(pairs, indent=2, sort_keys=True, ensure_ascii=False)


# --- a log without the literals of statements --------------------------------------------------
#
# A log says nowhere what in it is a statement, or in which dialect: what reads like one is taken
# for one, up to the end of its line and of the lines that continue it. Where a literal's end is not
# certain, the rest of the statement goes, too.

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
        found.append(_piece_shown(piece, before))
        before = piece.kind
    return "".join(found)


def _piece_shown(piece: SqlPiece, before: str) -> str:
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
