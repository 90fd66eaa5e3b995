"""A user who has no home, nor a line in /etc/passwd: as containers with a random user id run."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from headgate.budgets.native import library
from headgate.errors import NativeUnavailable
from tests.environment.starting import HEADGATE, Left, ran
from tests.fixtures.agents import postgres_database

STRANGER = ("unshare", "--user", "--map-user=54321", "--map-group=54321")
HOMELESS = Left(environment={"HOME": None, "XDG_RUNTIME_DIR": None})


@cache
def can_be_a_stranger() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*STRANGER, "true"], capture_output=True, check=False).returncode == 0


needs_strangers = pytest.mark.skipif(
    "not __import__('tests.environment.test_home', fromlist=['_']).can_be_a_stranger()",
    reason="this machine gives us no user id of our own",
)


@needs_strangers
def test_a_home_that_is_not_there_is_a_fault_of_the_setting(tmp_path: Path) -> None:
    settings = tmp_path / "headgate.toml"
    settings.write_text('[agent]\nsocket = "~/a.sock"\n', encoding="utf-8")
    done = ran(HOMELESS, *STRANGER, *HEADGATE, "lint", str(settings))
    assert done.returncode == 1, done
    assert b"agent.socket: is '~/a.sock', and no such home is known here" in done.stdout


@needs_strangers
def test_commands_do_without(tmp_path: Path) -> None:
    settings = tmp_path / "headgate.toml"
    database = postgres_database("postgresql://127.0.0.1:1/main", "lag")
    settings.write_text(f'[agent]\nlisten = "127.0.0.1:1"\n{database}', encoding="utf-8")
    for argv, code in ((("lint", str(settings)), 0), (("status", "--url", "http://[::1]:9"), 20)):
        done = ran(HOMELESS, *STRANGER, *HEADGATE, *argv)
        assert done.returncode == code, done
        assert b"Traceback" not in done.stderr


@needs_strangers
def test_the_demo_says_what_postgres_lacks() -> None:
    done = ran(HOMELESS, *STRANGER, *HEADGATE, "demo", "--headless")
    assert done.returncode == 1
    assert b"user id 54321 has no line in /etc/passwd" in done.stdout
    assert b"Traceback" not in done.stderr


def test_what_is_built_says_where_it_would_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", nowhere)
    with pytest.raises(NativeUnavailable, match="set HOME"):
        library._cache_of(library.PACKAGED)
