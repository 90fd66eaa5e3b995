"""What scripts/release packs, from libraries that are built already; --try installs all of it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from headgate.budgets.native.library import CHECKOUT, CORE, built
from headgate.budgets.pgext.build import EXTENSION
from headgate.cli.files import FILES
from headgate.proxy.memory import RELAY
from headgate.version import VERSION
from tests.fixtures.pgkits import NEWEST, extended_kit

ROOT = Path(__file__).parents[2]
PLATFORM = "manylinux_2_34_x86_64"
DATED = {"SOURCE_DATE_EPOCH": "1700000000"}
LOADS = """
from headgate.budgets.native.library import BESIDE, load
from headgate.proxy.memory import RELAY, relay_library
print(load()._name == str(BESIDE), relay_library()._name == str(RELAY.beside))
"""


def run(*command: str | Path, **env: str) -> str:
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **DATED, **env}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wheel(folder: Path, **env: str) -> Path:
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, **env)
    [found] = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("libraries")
    for recipe in (CORE, RELAY):
        shutil.copy(built(CHECKOUT, recipe=recipe), folder / f"{recipe.name}.so")
    return folder


def test_a_wheel_for_a_platform_has_what_is_compiled_and_every_file_for_the_host(
    libraries: Path, tmp_path: Path
) -> None:
    given = {"HEADGATE_LIBRARIES": str(libraries), "HEADGATE_PLATFORM": PLATFORM}
    made = wheel(tmp_path / "one", **given)
    assert made.name == f"headgate-{VERSION}-py3-none-{PLATFORM}.whl"
    with zipfile.ZipFile(made) as packed:
        names = set(packed.namelist())
        packed.extractall(tmp_path / "installed")
    assert {f"headgate/deploy/{file.path}" for file in FILES.values()} <= names
    assert not [name for name in names if "/tests/" in name or name.endswith(".o")]
    loaded = run(sys.executable, "-c", LOADS, PYTHONPATH=str(tmp_path / "installed"))
    assert loaded.split() == ["True", "True"]
    again = wheel(tmp_path / "two", **given)
    assert hashlib.sha256(made.read_bytes()).digest() == hashlib.sha256(again.read_bytes()).digest()


def test_a_wheel_for_any_platform_has_the_sources_and_nothing_compiled(tmp_path: Path) -> None:
    made = wheel(tmp_path)
    assert made.name == f"headgate-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(made) as packed:
        names = packed.namelist()
    assert not [name for name in names if name.endswith(".so")]
    sources = "headgate/budgets/pgext/sources"
    assert {f"{sources}/relay/tls.c", f"{sources}/native/bucket.c"} <= set(names)


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    """As `packages.py extension` leaves it."""
    folder, prefix = tmp_path / "staged", extended_kit(NEWEST).prefix
    folder.mkdir()
    for path in (
        prefix / "lib" / f"{EXTENSION}.so",
        *(prefix / "share" / "extension").glob(f"{EXTENSION}*"),
    ):
        shutil.copy(path, folder)
    about = {"MAJOR": str(NEWEST), "VERSION": VERSION, "GLIBC": "2.34", "BUILT_WITH": "18.6"}
    (folder / "about.json").write_text(json.dumps(about))
    return folder


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="there is no dpkg-deb")
def test_a_deb_has_three_files_needs_its_server_and_is_the_same_twice(
    staged: Path, tmp_path: Path
) -> None:
    sums = set[bytes]()
    for _ in range(2):
        name = run(sys.executable, "scripts/packages.py", "deb", staged, tmp_path).strip()
        sums.add(hashlib.sha256((tmp_path / name).read_bytes()).digest())
    assert len(sums) == 1 and name.startswith(f"postgresql-{NEWEST}-headgate_{VERSION}-1_")
    depends = run("dpkg-deb", "-f", tmp_path / name, "Depends").strip()
    assert depends == f"postgresql-{NEWEST}, libc6 (>= 2.34)"
    run("dpkg-deb", "-x", tmp_path / name, tmp_path / "root")
    library = (
        tmp_path / "root" / "usr" / "lib" / "postgresql" / str(NEWEST) / "lib" / "pg_headgate.so"
    )
    assert str(ROOT).encode() not in library.read_bytes(), "a path of this machine is in it"
    files = [path for path in (tmp_path / "root").rglob("*") if path.is_file()]
    assert sorted(str(path.relative_to(tmp_path / "root")) for path in files) == [
        f"usr/lib/postgresql/{NEWEST}/lib/pg_headgate.so",
        f"usr/share/doc/postgresql-{NEWEST}-headgate/copyright",
        f"usr/share/postgresql/{NEWEST}/extension/pg_headgate--0.1.sql",
        f"usr/share/postgresql/{NEWEST}/extension/pg_headgate.control",
    ]


def test_the_docs_never_upgrade_a_server_and_find_headgate_under_sudo() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = page.read_text()
        assert "sudo headgate" not in text, f"{page}: sudo has a PATH of its own"
        for line in text.splitlines():
            if "apt-get install" in line and "postgresql-server-dev" in line:
                assert "=$(dpkg-query" in line, f"{page}: {line}"
