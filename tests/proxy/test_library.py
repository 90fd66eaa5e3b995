"""The relay's library is built once, fits relay.h, and says what is missing where it cannot be."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.budgets.native.library import CHECKOUT, built
from headgate.errors import NativeUnavailable
from headgate.proxy import layout
from headgate.proxy.memory import RELAY, relay_library


def test_the_structures_are_those_of_the_header() -> None:
    assert layout.misfits(relay_library()) == []


def test_every_function_that_python_declares_is_there() -> None:
    assert layout.declare(relay_library()) is relay_library()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for folder, name in (("relay", "needs_ssl"), ("native", "core")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.c").write_text(f"int {name};\n")
    return tmp_path


@pytest.mark.parametrize("compiler", [c for c in ("gcc", "clang") if shutil.which(c)])
def test_missing_headers_of_openssl_name_the_package(checkout: Path, compiler: str) -> None:
    source = '#include "openssl/no-such-header-of.h"\n'
    (checkout / "relay" / "needs_ssl.c").write_text(source)
    with pytest.raises(NativeUnavailable, match=r"install libssl-dev \(Debian, Ubuntu\)"):
        built(checkout, compiler, RELAY)


def test_a_missing_library_of_openssl_names_the_package(checkout: Path) -> None:
    recipe = replace(RELAY, libraries=("-lssl-that-is-not-there",))
    with pytest.raises(NativeUnavailable, match="libssl-dev"):
        built(checkout, None, recipe)


def test_half_of_the_sources_is_none(tmp_path: Path) -> None:
    (tmp_path / "relay").mkdir()
    (tmp_path / "relay" / "a.c").write_text("int a;\n")
    with pytest.raises(NativeUnavailable, match="install headgate from a wheel"):
        built(tmp_path, None, RELAY)


def test_one_changed_file_is_compiled_alone(checkout: Path) -> None:
    """Of fifty files; a header that has changed is everybody's."""
    recipe = replace(RELAY, libraries=())
    objects = built(checkout, None, recipe).parent / "objects"
    before = {path.name for path in objects.iterdir()}
    (checkout / "relay" / "needs_ssl.c").write_text("int changed;\n")
    built(checkout, None, recipe)
    assert len({path.name for path in objects.iterdir()} - before) == 1
    (checkout / "native" / "core.h").write_text("/* another one */\n")
    built(checkout, None, recipe)
    assert len({path.name for path in objects.iterdir()} - before) == 3


def test_the_wheel_brings_the_sources_beside_each_other() -> None:
    """relay/*.c includes ../native: they lie in the wheel as in the checkout."""
    wheel = (CHECKOUT / "pyproject.toml").read_text()
    assert '"relay" = "headgate/budgets/pgext/sources/relay"' in wheel
    assert '"native" = "headgate/budgets/pgext/sources/native"' in wheel
