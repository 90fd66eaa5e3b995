"""What lies on this machine: a user's home, which a container may not have; system and packages."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

MAX_PACKAGES = 500


def expanded(raw: str) -> Path:
    """With `~` replaced by the home directory; ValueError where this user has none."""
    try:
        return Path(raw).expanduser()
    except RuntimeError:
        message = f"is {raw!r}, and no such home is known here: write the whole path, or set HOME"
        raise ValueError(message) from None


def cache_below_home(*parts: str) -> Path:
    """ValueError where this user has no home."""
    return expanded("~").joinpath(".cache", "headgate", *parts)


def distribution() -> str:
    """`Debian GNU/Linux 13 (trixie)`; empty: the system does not say."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def packages() -> dict[str, str]:
    """By the names of what pip leaves: reading each one's metadata would take a third of a second
    of the interpreter, which checks need."""
    stems = (found.stem for place in sys.path for found in Path(place).glob("*.dist-info"))
    pairs = ((name, version) for name, _, version in (stem.rpartition("-") for stem in stems))
    return dict(sorted(pairs, key=lambda pair: pair[0].lower())[:MAX_PACKAGES])
