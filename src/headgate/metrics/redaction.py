"""A metric's settings as they may be shown: without passwords and other secrets.

Only for display: the agent keeps and uses the real values. If a client sends back a redacted
document, the placeholder would overwrite the secret, so the agent rejects it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from headgate.errors import Fault

HIDDEN = "…"
_SECRET_KEY = re.compile(r"password|passwd|secret|token|key$", re.IGNORECASE)
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)([^?#]*)([?#]?)(.*)", re.DOTALL)


def redacted(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _shown(key, value) for key, value in raw.items()}


def redacted_url(url: str) -> str:
    """`http://…@host/path?…`: without user, password and query."""
    match = _URL.fullmatch(url)
    if match is None:
        return url
    scheme, before, mark, after = match.groups()
    if "@" in after and "/" not in before:
        return f"{scheme}{HIDDEN}"  # Perhaps a password with a `?` in it.
    _, at, place = before.rpartition("@")
    return f"{scheme}{HIDDEN + at if at else ''}{place}{mark + HIDDEN if after else mark}"


def hidden_faults(raw: Mapping[str, Any]) -> list[Fault]:
    """The settings that hold what `redacted` shows in place of a secret."""
    message = (
        f"holds {HIDDEN!r}, the placeholder of a secret: "
        "leave it out of a PATCH to keep the secret, or give it in full"
    )
    return [Fault(place, message) for place, key, value in _texts("", raw) if _is_mask(key, value)]


def revealed(raw: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """With the secrets of `known` where `raw` says what is shown of them."""
    shown = redacted(known)
    return {key: _revealed(one, shown.get(key), known.get(key)) for key, one in raw.items()}


def _revealed(given: Any, shown: Any, known: Any) -> Any:
    if isinstance(given, Mapping) and isinstance(known, Mapping):
        return revealed(given, known)
    return known if known is not None and given == shown else given


def _shown(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return redacted(value)
    if _SECRET_KEY.search(key):
        return HIDDEN
    if isinstance(value, list | tuple):
        return [_shown(key, item) for item in value]
    return redacted_url(value) if isinstance(value, str) else value


def _is_mask(key: str, text: str) -> bool:
    if _SECRET_KEY.search(key):
        return text == HIDDEN
    return HIDDEN in text and _URL.fullmatch(text) is not None


def _texts(place: str, value: Any, key: str = "") -> Iterator[tuple[str, str, str]]:
    """(place, key, text) of every text in a table of settings."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(f"{place}.{name}" if place else name, inner, name)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(place, item, key)
    elif isinstance(value, str):
        yield place, key, value
