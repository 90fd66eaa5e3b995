"""The relay's shared library: found beside this file, or built from relay/*.c and native/*.c.

It links OpenSSL, whose headers are a package of their own; the rest is as in native/library.py.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from headgate.budgets.native.library import CHECKOUT, FLAGS, Recipe, build_beside, load
from headgate.proxy.layout import declare, misfits

_NO_HEADERS = (
    "OpenSSL's headers are missing: install libssl-dev (Debian, Ubuntu), openssl-devel (Fedora, "
    "RHEL) or openssl-dev (Alpine), and run it again"
)
RELAY = Recipe(
    name="libheadgate_relay",
    what="the relay of the proxy",
    header="relay.h",
    folders=("relay", "native"),
    beside=Path(__file__).parent / "libheadgate_relay.so",
    misfits=misfits,
    flags=(*FLAGS, "-D_GNU_SOURCE", "-pthread"),
    libraries=("-lssl", "-lcrypto", "-lpthread", "-lm"),
    needs=(
        ("fatal error: openssl/", _NO_HEADERS),
        ("fatal error: 'openssl/", _NO_HEADERS),
        ("find -lssl", _NO_HEADERS),
        ("find -lcrypto", _NO_HEADERS),
        ("library -lssl", _NO_HEADERS),
        ("library -lcrypto", _NO_HEADERS),
    ),
)


@cache
def relay_library(checkout: Path = CHECKOUT) -> ctypes.CDLL:
    """With the prototypes of its functions declared; NativeUnavailable says what is missing."""
    return declare(load(checkout, recipe=RELAY))


def build() -> Path:
    """For all users of this installation (`headgate proxy build`)."""
    return build_beside(recipe=RELAY)
