"""JSON that others have put into a store.   bytes ──► Mapping, or ValueError: why it is none

One value that cannot be told to anybody would take the whole page, or the whole answer, with it:
it is refused where it is read, and everything else stands.
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
            # The same, escaped: JSON allows what no answer and no file can be told in.
            json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is no JSON: {error}") from None
    if not isinstance(document, Mapping):
        raise ValueError("is no JSON object")
    return document
