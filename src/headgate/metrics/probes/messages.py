"""What a server said, fit for one line of a report."""

from __future__ import annotations

MAX_MESSAGE_CHARS = 500


def one_line(said: object, secret: str = "") -> str:
    """Without line breaks, bounded, and without `secret` should it stand in there."""
    text = "; ".join(line.strip() for line in str(said).splitlines() if line.strip())
    if secret:
        text = text.replace(secret, "***")
    return text[:MAX_MESSAGE_CHARS] or type(said).__name__
