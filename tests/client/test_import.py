"""`import headgate` is for every job: it is light, and needs the standard library alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import headgate

SOURCE = str(Path(headgate.__path__[0]).parent)
HEAVY = {"asyncio", "ssl", "http.client", "json", "socket", "logging", "dataclasses", "typing"}


def run(program: str) -> str:
    """Without site: what others put into the interpreter's start is not ours to count."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": SOURCE},
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    )
    return done.stdout


def loaded_by(statement: str) -> set[str]:
    lines = run(f"import sys; before = set(sys.modules)\n{statement}\n"
                "print(*(set(sys.modules) - before))")  # fmt: skip
    return set(lines.split())


def test_importing_loads_nothing_heavy() -> None:
    assert not loaded_by("import headgate") & HEAVY


def test_a_blocking_client_loads_no_event_loop() -> None:
    loaded = loaded_by("import headgate; headgate.Client('etl', database='main')")
    assert not loaded & {"asyncio", "ssl", "http.client", "logging"}


def test_only_https_loads_ssl() -> None:
    """Not even then an event loop."""
    asked = "import headgate; headgate.Client('etl', database='main', url='{}://h')"
    assert "ssl" not in loaded_by(asked.format("http"))
    secured = loaded_by(asked.format("https"))
    assert "ssl" in secured
    assert not secured & {"asyncio", "http.client", "logging"}


def test_the_sdk_needs_the_standard_library_alone() -> None:
    loaded = loaded_by("import headgate; headgate.Client; headgate.AsyncClient; headgate.Answer")
    roots = {name.partition(".")[0] for name in loaded}
    assert roots - sys.stdlib_module_names == {"headgate"}


def test_the_sdk_takes_only_names_from_core() -> None:
    loaded = loaded_by("import headgate; headgate.Client; headgate.AsyncClient")
    ours = {name for name in loaded if name.startswith("headgate.") and ".client" not in name}
    assert ours == {"headgate.errors", "headgate.core", "headgate.core.names"}


def test_importing_is_quick() -> None:
    """By the processor's time, and the best of several: the machine may be busy."""
    program = (
        "import time; began = time.process_time()\n"
        "import headgate\n"
        "print((time.process_time() - began) * 1000)"
    )
    assert min(float(run(program)) for _ in range(5)) < 25


def test_every_export_is_there() -> None:
    for name in headgate.__all__:
        assert getattr(headgate, name).__name__ == name
    assert set(headgate.__all__) <= set(dir(headgate))


def test_a_misspelt_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Cliend'"):
        getattr(headgate, "Cliend")  # noqa: B009 -- written out, mypy would refuse it first
