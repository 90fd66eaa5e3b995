"""A Postgres, and a checkout, below a path with a space: what make builds for it is built."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from headgate.budgets.pgext.build import PgConfig, pg_config_for_make, read_pg_config
from headgate.demo.postgres import find_binaries
from headgate.demo.traffic import FLAGS
from tests.environment.starting import PATIENCE_S

SOURCE = '#include "postgres.h"\n#include "fmgr.h"\nPG_MODULE_MAGIC;\n'
MAKEFILE = "MODULES = tiny\nPGXS := $(shell $(PG_CONFIG) --pgxs)\ninclude $(PGXS)\n"


@pytest.fixture
def spaced(tmp_path: Path) -> PgConfig:
    """The parts of a real Postgres that an extension is built by, moved to such a path."""
    here = read_pg_config(find_binaries() / "pg_config")
    prefix, moved = here.bin_dir.parent, tmp_path / "it's [my] own & Postgres"
    makefiles = next(folder for folder in here.pgxs.parents if folder.name == "pgxs")
    include = next(folder for folder in here.headers.parents if folder.name == "include")
    for folder in (makefiles, include):
        shutil.copytree(folder, moved / folder.relative_to(prefix))
    program = moved / here.path.relative_to(prefix)
    program.parent.mkdir()
    shutil.copy2(here.path, program)
    return read_pg_config(program)


def test_an_extension_is_built(
    spaced: PgConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a TMPDIR").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "a TMPDIR"))
    build = tmp_path / "the build"
    build.mkdir()
    (build / "tiny.c").write_text(SOURCE, encoding="utf-8")
    (build / "Makefile").write_text(MAKEFILE, encoding="utf-8")
    with pg_config_for_make(spaced.path, spaced.bin_dir.parent) as told:
        assert " " not in str(told)
        settings = (f"PG_CONFIG={told}", "with_llvm=no", f"CFLAGS={FLAGS}")
        done = subprocess.run(
            ["make", "-s", "-C", str(build), *settings], capture_output=True, timeout=PATIENCE_S
        )
    assert done.returncode == 0, done.stderr
    assert (build / "tiny.so").is_file()
    assert not os.path.lexists(told)


def test_one_without_a_space_is_taken_as_it_is() -> None:
    path = Path("/usr/bin/pg_config")
    with pg_config_for_make(path, Path("/usr")) as told:
        assert told == path
