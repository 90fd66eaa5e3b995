"""What may leave the house: values without what opens doors.   settings, texts ──► the same, safe

Two nets. `shown` builds a document of settings in which nothing secret is ever put: by the names
of the settings, and by what an address may carry. `Scrubber` goes over a finished text once more,
for the secrets that are known, in every form in which they may stand there, and for whatever
looks like one.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from headgate.errors import Fault

HIDDEN = "…"
DOOR_OPENERS = (
    r"passwords?|passwd|pwd|secrets?|tokens?|api[_-]?keys?|access[_-]?keys?|private[_-]?keys?"
    r"|passphrase|credentials?|cookies?"
)
_SECRET_KEY = re.compile(rf"(?:^|[_.-])(?:{DOOR_OPENERS}|sha256|authorization)$", re.IGNORECASE)
_SECRET_OPTION = re.compile(rf"password|passwd|secret|token|key$|{_SECRET_KEY.pattern}", re.I)
"""Of a metric's options, whose names are anybody's."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)([^?#\s]*)([?#]?)(.*)", re.DOTALL)
_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)([^/\s\"'<>]*)@")
_QUERY = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^\s\"'<>?#]+)\?[^\s\"'<>]*")
_KEYWORD_PASSWORD = re.compile(
    r"\b((?:ssl)?password\s*=\s*)('(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)+)", re.IGNORECASE
)
_MASKED_PASSWORD = re.compile(rf"password\s*=\s*'?{HIDDEN}", re.IGNORECASE)
_SHORTEST = 4
"""Shorter secrets are replaced only as whole words: otherwise ordinary text would be damaged."""
_LONG = 16
"""Longer than the words that addresses are made of."""


# --- settings ----------------------------------------------------------------------------------


def shown(value: object, key: str = "") -> Any:
    """Settings as a document for JSON, without secrets."""
    if is_dataclass(value) and not isinstance(value, type):
        return {row.name: shown(getattr(value, row.name), row.name) for row in fields(value)}
    if isinstance(value, Mapping):
        if "header" in key:
            return dict.fromkeys(map(str, value), HIDDEN)
        return {str(name): shown(inner, str(name)) for name, inner in value.items()}
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple) and key in ("argv", "command"):
        # What a command is called with may be a password, under no name at all.
        return [str(one) for one in value[:1]] + [HIDDEN] * len(value[1:])
    if isinstance(value, list | tuple | set | frozenset):
        return [shown(item, key) for item in value]
    return _shown_text(str(value), key, is_path=hasattr(value, "__fspath__"))


# --- a metric's settings -----------------------------------------------------------------------


def redacted(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A metric's settings as they may be shown. Only for display: the agent keeps and uses the
    real values."""
    return {key: _redacted(key, value) for key, value in raw.items()}


def _redacted(key: str, value: Any) -> Any:
    if isinstance(value, Mapping) and "header" not in key:
        return redacted(value)
    if _SECRET_OPTION.search(key):
        return HIDDEN
    return shown(value, key)


def hidden_faults(raw: Mapping[str, Any]) -> list[Fault]:
    """The settings that hold what `redacted` shows in place of a secret: kept, the placeholder
    would overwrite the secret."""
    message = (
        f"holds {HIDDEN!r}, the placeholder of a secret: "
        "leave it out of a PATCH to keep the secret, or give it in full"
    )
    return [Fault(place, message) for place, text in _texts("", raw) if _is_mask(text)]


def revealed(raw: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """With the secrets of `known` where `raw` says what is shown of them."""
    hidden = redacted(known)
    return {key: _revealed(one, hidden.get(key), known.get(key)) for key, one in raw.items()}


def _revealed(given: Any, hidden: Any, known: Any) -> Any:
    if isinstance(given, Mapping) and isinstance(known, Mapping):
        shown_inside = hidden if isinstance(hidden, Mapping) else {}
        return {
            key: _revealed(one, shown_inside.get(key), known.get(key)) for key, one in given.items()
        }
    return known if known is not None and given == hidden else given


def _is_mask(text: str) -> bool:
    in_url = HIDDEN in text and _URL.fullmatch(text) is not None
    return text == HIDDEN or in_url or _MASKED_PASSWORD.search(text) is not None


def _texts(place: str, value: Any) -> Iterator[tuple[str, str]]:
    """(place, text) of every text in a table of settings."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(f"{place}.{name}" if place else name, inner)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(place, item)
    elif isinstance(value, str):
        yield place, value


# --- texts -------------------------------------------------------------------------------------


def _shown_text(text: str, key: str, *, is_path: bool) -> str:
    if is_path:
        return text
    if _SECRET_KEY.search(key):
        return HIDDEN if text else ""
    if "webhook" in key:
        return _host_alone(text)
    return shown_dsn(text)


def shown_dsn(text: str) -> str:
    """A connection string or address, without user and query where it is a URL, and without
    passwords where it is not; any other text as it is."""
    match = _URL.fullmatch(text)
    if match is None:
        return _KEYWORD_PASSWORD.sub(rf"\1{HIDDEN}", text)
    scheme, before, mark, after = match.groups()
    if "@" in after:
        return f"{scheme}{HIDDEN}"  # Perhaps a password with a `?` in it.
    _, at, place = before.rpartition("@")
    return f"{scheme}{HIDDEN + at if at else ''}{place}{mark + HIDDEN if after else ''}"


def _host_alone(url: str) -> str:
    match = _URL.fullmatch(url)
    if match is None:
        return HIDDEN
    return f"{match[1]}{match[2].partition('/')[0].rpartition('@')[2]}/{HIDDEN}"


# --- the secrets that are known ----------------------------------------------------------------


def secrets_in(document: object, key: str = "") -> Iterator[str]:
    """The secrets in settings as written: values under a secret's name, in connection strings, and
    in addresses."""
    if isinstance(document, Mapping):
        for name, inner in document.items():
            yield from secrets_in(inner, str(name))
    elif isinstance(document, list | tuple):
        for item in document:
            yield from secrets_in(item, key)
    elif isinstance(document, str):
        if _SECRET_KEY.search(key):
            yield document
        yield from secrets_in_address(document, whole_path="webhook" in key)


def secrets_in_address(text: str, *, whole_path: bool = False) -> Iterator[str]:
    match = _URL.fullmatch(text)
    if match is None:
        for _, value in _KEYWORD_PASSWORD.findall(text):
            bare = value.strip("'")
            yield from (value, bare, re.sub(r"\\(.)", r"\1", bare))
        return
    _, before, _, after = match.groups()
    userinfo = before.rpartition("@")[0]
    if "@" in after:
        userinfo = (before + "?" + after).rpartition("@")[0]
    _, _, password = userinfo.partition(":")
    yield from (password, unquote(password))
    for pair in re.split(r"[&;]", after.rpartition("#")[0] or after):
        name, equals, value = pair.partition("=")
        if not equals:
            yield from (name, unquote(name))
        elif len(value) >= _SHORTEST and not value.startswith("/"):
            yield from (value, unquote(value))
    if whole_path:
        path = before.partition("/")[2]
        yield path
        yield from filter(_is_random, path.split("/"))


def _is_random(segment: str) -> bool:
    """`services`, `hook` and `alerts` are words, which stand elsewhere as well; a key is not."""
    return len(segment) >= _SHORTEST and (len(segment) >= _LONG or not segment.isalpha())


def forms_of(secret: str) -> Iterator[str]:
    """How it may stand in a text."""
    yield secret
    yield quote(secret, safe="")
    yield quote_plus(secret)
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield repr(secret)[1:-1]
    encoded = base64.b64encode(secret.encode()).decode()
    yield encoded.rstrip("=")
    # Behind `user:`, as Basic has it, its bytes are cut at another place.
    for lead in (1, 2):
        yield base64.b64encode(b"\0" * lead + secret.encode()).decode()[4:].rstrip("=")[:-2]


class Scrubber:
    """Takes out of texts what is known to be secret, and what looks it."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {secret.strip() for secret in secrets}
        forms = {form for secret in known for form in forms_of(secret) if secret}
        self._long = sorted((f for f in forms if len(f) >= _SHORTEST), key=len, reverse=True)
        self._short = sorted(f for f in known if 0 < len(f) < _SHORTEST)
        parts = [re.escape(form) for form in self._long]
        parts += [rf"(?<![A-Za-z0-9]){re.escape(s)}(?![A-Za-z0-9])" for s in self._short]
        self._known = re.compile("|".join(parts)) if parts else None

    def __call__(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        for pattern, put in _LOOKS:
            text = pattern.sub(put, text)
        return text

    def left_in(self, text: str) -> bool:
        """Whether the text still has a known secret."""
        return any(form in text for form in self._long)


# A name, its sign, and a value that is text: numbers, null and brackets stay, so that JSON is JSON.
_ASSIGNED = re.compile(
    rf"""(?i)((?<![A-Za-z0-9])[\w.-]*(?:{DOOR_OPENERS})["']?\s*[:=]\s*)"""
    r"""(?!(?:null|true|false|none)\b|[-0-9.]+\s*[,}\]])"""
    r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s,;&(){}\[\]"'\\<>]+)"""
)


def _unassigned(match: re.Match[str]) -> str:
    value = match[2]
    mark = value[0] if value[0] in "\"'" else ""
    return f"{match[1]}{mark}{HIDDEN}{mark}"


_LOOKS: tuple[tuple[re.Pattern[str], Any], ...] = (
    (
        re.compile(
            r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)",
            re.DOTALL,
        ),
        HIDDEN,
    ),
    (
        re.compile(
            r"""(?i)((?:proxy-)?authorization["']?\s*[:=]\s*["']?)"""
            r"""(?:(?:bearer|basic|digest|negotiate)\s+)?[^\s"',;\\]+"""
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}"), rf"\1{HIDDEN}"),
    (
        # As SQL has it: PASSWORD '…', IDENTIFIED BY '…'.
        re.compile(
            rf"""(?i)\b((?:{DOOR_OPENERS}|identified\s+(?:by|with\s+\S+\s+(?:by|as)))\s+[en]?)"""
            r"""'(?:[^'\\\n]|\\.|'')*'"""
        ),
        rf"\1'{HIDDEN}'",
    ),
    (_ASSIGNED, _unassigned),
    (_USERINFO, rf"\1{HIDDEN}@"),
    (_QUERY, rf"\1?{HIDDEN}"),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), HIDDEN),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), HIDDEN),
    (re.compile(r"\b(?:gh[pousr]_|glpat-|xox[abprs]-|sk-|hvs\.)[\w-]{16,}"), HIDDEN),
)
