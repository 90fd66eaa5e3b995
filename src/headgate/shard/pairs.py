"""What an agent answers for, so that those who share an election notice that they should not.

    settings, servers' own words ──► ServedDatabase by database ──why_apart──► "" or why not

Of an active–passive pair each sends the other's clients to itself: they have to mean the same
databases by the same names. A copied settings file is all it takes for two that do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

MAX_TEXT_CHARS = 512
LOCAL = "local@"
"""Prefix of the host, in the target of a database that is reached through a local address."""


@dataclass(frozen=True, slots=True)
class ServedDatabase:
    """One database. Each part is empty where it is not known."""

    member: str = ""
    """shard/member, from the settings."""
    server: str = ""
    """The server's or its cluster's own identifier, as measured."""
    target: str = ""
    """host:port/database, from the settings."""


Answers = Mapping[str, ServedDatabase]
"""By the database name that clients use."""


def why_apart(ours: Answers, theirs: Answers) -> str:
    """Why checks about ours may not be sent there; empty: they may, as far as anybody can tell."""
    for name, own in ours.items():
        other = theirs.get(name)
        if other is None:
            return f"it has no database {name}"
        if own.member and other.member and own.member != other.member:
            return f"its {name} is {other.member}, this agent's is {own.member}"
        if own.server and other.server:
            if own.server != other.server:
                return f"its {name} is server {other.server}, this agent's is {own.server}"
        elif _other_target(own.target, other.target):
            return f"its {name} is at {other.target}, this agent's is at {own.target}"
    return ""


def _other_target(ours: str, theirs: str) -> bool:
    """A server may be near one agent and far from the other: such names cannot be compared."""
    if not ours or not theirs or ours.startswith(LOCAL) is not theirs.startswith(LOCAL):
        return False
    return ours != theirs


def answers_doc(answers: Answers) -> dict[str, dict[str, str]]:
    return {
        name: {key: text for key, text in asdict(one).items() if text}
        for name, one in sorted(answers.items())
    }


def read_answers(raw: object) -> Answers:
    """What cannot be read says nothing."""
    if not isinstance(raw, Mapping):
        return {}
    return {
        name: ServedDatabase(*(_text(one, key) for key in ("member", "server", "target")))
        for name, one in raw.items()
        if isinstance(name, str) and isinstance(one, Mapping)
    }


def _text(document: Mapping[str, Any], key: str) -> str:
    text = document.get(key, "")
    return text[:MAX_TEXT_CHARS] if isinstance(text, str) else ""
