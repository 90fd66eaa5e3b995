"""The core's library is found or built once, and used only if it fits headgate.h."""

from __future__ import annotations

import ctypes
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headgate.budgets.native import layout, library
from headgate.errors import NativeUnavailable

TINY = "unsigned long hg_layout(unsigned which) { return which; }\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "tiny.c").write_text(TINY)
    return tmp_path


def test_the_structures_are_those_of_the_header() -> None:
    assert layout.misfits(library.load()) == []


def test_a_checkout_is_built_once_however_many_ask_at_once(checkout: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(library.built, [checkout] * 4))
    assert len(set(paths)) == 1
    assert [path.name for path in paths[0].parent.glob("build-*")] == []
    built_ns = paths[0].stat().st_mtime_ns
    assert library.built(checkout).stat().st_mtime_ns == built_ns


def test_changed_sources_are_built_anew_and_old_builds_are_forgotten(checkout: Path) -> None:
    folder = library.built(checkout).parent
    for change in range(12):
        (folder / f"libheadgate-{change}.so").touch()
    (checkout / "native" / "tiny.h").write_text("/* a header counts as well */\n")
    assert library.built(checkout).exists()
    assert len(list(folder.glob("libheadgate-*.so"))) == 8


def test_a_library_of_another_header_is_not_used(checkout: Path) -> None:
    with pytest.raises(NativeUnavailable, match=r"another version .*size of HgRegion is 0, not"):
        library.open_library(library.built(checkout))


def test_what_is_no_library_is_told(tmp_path: Path) -> None:
    (tmp_path / "lib.so").write_bytes(b"not one")
    with pytest.raises(NativeUnavailable, match="is no traffic core"):
        library.open_library(tmp_path / "lib.so")


def test_a_library_without_our_functions_is_told() -> None:
    with pytest.raises(NativeUnavailable, match="is no traffic core"):
        library.open_library(Path("libm.so.6"))


def test_no_compiler_names_what_to_install(checkout: Path) -> None:
    with pytest.raises(NativeUnavailable, match=r"no-such-cc.*install gcc .*build-essential"):
        library.built(checkout, "no-such-cc")


def test_no_sources_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NativeUnavailable, match="install headgate from a wheel"):
        library.built(tmp_path)


def test_sources_that_do_not_compile_show_the_compilers_words(checkout: Path) -> None:
    (checkout / "native" / "tiny.c").write_text("int broken(\n")
    with pytest.raises(NativeUnavailable, match="cannot build the traffic core") as raised:
        library.built(checkout)
    assert "broken" in str(raised.value)
    assert list((checkout / ".cache" / "native").glob("*.so")) == []


def test_a_compiler_may_be_named(checkout: Path) -> None:
    named = shutil.which("gcc") or shutil.which("cc")
    assert named is not None
    assert ctypes.CDLL(str(library.built(checkout, named))).hg_layout(7) == 7
