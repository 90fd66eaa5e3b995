"""Where servers and their sockets are put, whatever TMPDIR says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headgate.demo import servers

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="lends servers no other user")


@pytest.fixture
def tmpdir_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(servers, "ROOMY_BYTES", 1 << 62)  # /dev/shm has no room
    return tmp_path


def test_a_long_way_down_is_no_place_for_sockets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    assert len(str(servers.short_parent())) <= servers.SHORT_BYTES


@needs_root
def test_a_closed_folder_is_no_place_for_a_lent_users_servers(tmpdir_is: Path) -> None:
    """Root's TMPDIR may lie in root's home."""
    tmpdir_is.chmod(0o700)
    assert servers.scratch_parent() != tmpdir_is
    assert servers.short_parent() != tmpdir_is


@needs_root
def test_a_machine_without_nobody_lends_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> None:
        raise KeyError(name)

    monkeypatch.setattr("pwd.getpwnam", unknown)
    assert servers.service_user() == servers.ServiceUser(65534, 65534)


@needs_root
def test_programs_that_only_root_may_read_are_opened(tmp_path: Path) -> None:
    """As a checkout that was made with umask 077 has them."""
    program = tmp_path / "bin" / "postgres"
    program.parent.mkdir(mode=0o700)
    program.touch(mode=0o700)
    servers.let_all_read(tmp_path / "bin")
    assert (program.stat().st_mode & 0o777, program.parent.stat().st_mode & 0o777) == (0o755, 0o755)
