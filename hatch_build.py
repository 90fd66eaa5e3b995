"""Which wheel is built.   scripts/release ──► HEADGATE_LIBRARIES, HEADGATE_PLATFORM

With both: the compiled core and relay are in it, for one platform and every Python (they are
loaded by ctypes). Without: a wheel for any platform, which builds them from their sources once.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACES = {
    "libheadgate.so": "headgate/budgets/native/libheadgate.so",
    "libheadgate_relay.so": "headgate/proxy/libheadgate_relay.so",
}


class Libraries(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = os.environ.get("HEADGATE_LIBRARIES")  # noqa: TID251
        if folder is None:
            return
        platform = os.environ["HEADGATE_PLATFORM"]  # noqa: TID251
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        for name, place in PLACES.items():
            build_data["force_include"][str(Path(folder, name).resolve(strict=True))] = place
