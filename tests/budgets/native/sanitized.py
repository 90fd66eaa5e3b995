"""Vectors and generated sequences against a library built with ASan and UBSan.

LD_PRELOAD=libasan.so ASAN_OPTIONS=detect_leaks=0 python -m tests.budgets.native.sanitized LIBRARY
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

from headgate.budgets.native import library


def main(path: Path) -> None:
    # Before anything has loaded the ordinary one.
    library.load.cache_clear()
    object.__setattr__(library.CORE, "beside", path)  # frozen for everybody else
    settings.register_profile(
        "sanitized",
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("sanitized")
    from tests.budgets.native import test_differential as differential
    from tests.budgets.native.engines import Native
    from tests.budgets.native.playing import Player, document, sizes_of

    for scenario in document()["scenarios"]:
        played = Player(Native(sizes_of(scenario)), scenario).play()
        assert played["results"] == scenario["results"], scenario["name"]
        assert json.loads(json.dumps(played["end"])) == scenario["end"], scenario["name"]
    names = [name for name in vars(differential) if name.startswith("test_")]
    for name in names:
        vars(differential)[name]()
    loaded = library.load()._name
    assert loaded == str(path), f"{loaded} was loaded instead"
    print(f"{len(names)} properties and the vectors: clean")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
