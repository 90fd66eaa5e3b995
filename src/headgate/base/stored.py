"""JSON that other programs have put into a store.   bytes ──► Mapping, or ValueError with a reason

One value that cannot be encoded again would break the whole page, or the whole answer. It is
rejected where it is read, and the rest is used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def read_object(raw: bytes) -> Mapping[str, Any]:
    """An object, each of whose texts can be encoded again."""
    try:
        # Decoded here: json.loads takes bytes that are no UTF-8, such as halves of a character.
        document = json.loads(raw.decode())
        if b"\\ud" in raw.lower():
            # The same, escaped: JSON allows characters that no answer and no file can hold.
            json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(document, Mapping):
        raise ValueError("is not a JSON object")
    return document
