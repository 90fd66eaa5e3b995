"""Paths below a user's home, which a user in a container may not have."""

from __future__ import annotations

from pathlib import Path


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
