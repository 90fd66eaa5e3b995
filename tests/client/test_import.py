"""`import headgate` is for every job: it is light, and needs the standard library alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

import headgate
from tests.fixtures.eventually import DEADLINE_S

SOURCE = str(Path(headgate.__path__[0]).parent)
HEAVY = {"asyncio", "ssl", "http.client", "json", "socket", "logging", "dataclasses", "typing"}
# Each costs milliseconds, and a job that asks for the class alone needs none of them.
NEEDLESS = {
    *("asyncio", "ssl", "http.client", "json", "socket", "logging"),
    *("dataclasses", "inspect", "urllib.parse", "ipaddress"),
}
BOTH_MADE = (
    "import headgate\n"
    "headgate.Client('etl', database='main')\n"
    "headgate.AsyncClient('etl', database='main')"
)


def run(program: str) -> str:
    """Without site: what others put into the interpreter's start is not ours to count."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": SOURCE},
        check=True,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    return done.stdout


def loaded_by(statement: str) -> set[str]:
    lines = run(f"import sys; before = set(sys.modules)\n{statement}\n"
                "print(*(set(sys.modules) - before))")  # fmt: skip
    return set(lines.split())


def test_importing_loads_nothing_heavy() -> None:
    assert not loaded_by("import headgate") & HEAVY


@pytest.mark.parametrize("name", ["Client", "AsyncClient", "Answer", "WaitedTooLong"])
def test_importing_a_name_loads_only_what_it_is_made_of(name: str) -> None:
    assert not loaded_by(f"from headgate import {name}") & NEEDLESS


def test_a_blocking_client_loads_no_event_loop() -> None:
    loaded = loaded_by("import headgate; headgate.Client('etl', database='main')")
    assert not loaded & {"asyncio", "ssl", "http.client", "logging", "dataclasses", "inspect"}


def test_only_https_loads_ssl() -> None:
    """Not even then an event loop."""
    asked = "import headgate; headgate.Client('etl', database='main', url='{}://h')"
    assert "ssl" not in loaded_by(asked.format("http"))
    secured = loaded_by(asked.format("https"))
    assert "ssl" in secured
    assert not secured & {"asyncio", "http.client", "logging"}


def test_the_sdk_needs_the_standard_library_alone() -> None:
    roots = {name.partition(".")[0] for name in loaded_by(BOTH_MADE)}
    assert roots - sys.stdlib_module_names == {"headgate"}


def test_the_sdk_takes_only_names_from_base() -> None:
    loaded = loaded_by(BOTH_MADE)
    ours = {name for name in loaded if name.startswith("headgate.") and ".client" not in name}
    assert ours == {"headgate.errors", "headgate.base", "headgate.base.names"}


def test_every_export_is_there() -> None:
    for name in headgate.__all__:
        assert getattr(headgate, name).__name__ == name
    assert set(headgate.__all__) <= set(dir(headgate))


@pytest.mark.parametrize("client", [headgate.Client, headgate.AsyncClient])
@pytest.mark.parametrize("method", ["__init__", "check", "check_read", "wait", "chunks", "guard"])
def test_what_is_loaded_late_hides_no_type_from_callers(client: type, method: str) -> None:
    """Documentation tools and containers read the hints when run."""
    assert "return" in get_type_hints(getattr(client, method))


def test_a_misspelt_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Cliend'"):
        getattr(headgate, "Cliend")  # noqa: B009 -- written out, mypy would reject it first
