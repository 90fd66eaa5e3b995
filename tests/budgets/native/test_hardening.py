"""What we compile stops at a fault in memory instead of going on with it: read from the files."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headgate.budgets.native.library import CHECKOUT, CORE, FLAGS, HARDENED, LINKED, built
from headgate.proxy.memory import RELAY
from tests.fixtures.pgkits import extended_kit

ROOT = Path(__file__).parents[3]
MAKEFILES = ("native", "relay", "pg_headgate")
PT_DYNAMIC, PT_GNU_STACK, PT_GNU_RELRO = 2, 0x6474E551, 0x6474E552
PF_X = 1
DT_FLAGS, DT_FLAGS_1 = 30, 0x6FFFFFFB
SHT_DYNSYM = 11
DF_BIND_NOW, DF_1_NOW = 8, 1


@dataclass(frozen=True, slots=True)
class Elf:
    """A shared object of 64 bits, least significant byte first: segments and dynamic symbols."""

    data: bytes

    def segments(self) -> Iterator[tuple[int, ...]]:
        """Type, flags, offset, address, physical, size in the file, in memory, alignment."""
        assert self.data[:6] == b"\x7fELF\x02\x01"
        start, size, count = struct.unpack_from("<Q14xHH", self.data, 32)
        for number in range(count):
            yield struct.unpack_from("<IIQQQQQQ", self.data, start + number * size)

    def dynamic(self) -> dict[int, int]:
        [(_, _, start, _, _, size, *_)] = [row for row in self.segments() if row[0] == PT_DYNAMIC]
        pairs = struct.iter_unpack("<QQ", self.data[start : start + size])
        return dict(pairs)

    def sections(self) -> list[tuple[int, ...]]:
        """Name, type, flags, address, offset, size, link, info, alignment, size of an entry."""
        start, size, count = struct.unpack_from("<Q10xHH", self.data, 40)
        return [
            struct.unpack_from("<IIQQQQIIQQ", self.data, start + number * size)
            for number in range(count)
        ]

    def undefined(self) -> set[str]:
        """Names that it takes from others."""
        sections = self.sections()
        [symbols] = [row for row in sections if row[1] == SHT_DYNSYM]
        names_at = sections[symbols[6]][4]
        rows = struct.iter_unpack("<IBBHQQ", self.data[symbols[4] : symbols[4] + symbols[5]])
        return {
            self.data[names_at + name : self.data.index(b"\0", names_at + name)].decode()
            for name, _, _, section, _, _ in rows
            if section == 0
        }


BUILDS: dict[str, Callable[[], Path]] = {
    "core": lambda: built(CHECKOUT, recipe=CORE),
    "relay": lambda: built(CHECKOUT, recipe=RELAY),
    "extension": lambda: extended_kit(18).prefix / "lib" / "pg_headgate.so",
}


@pytest.mark.parametrize("name", BUILDS)
def test_what_is_built_is_hardened(name: str) -> None:
    """M8."""
    elf = Elf(BUILDS[name]().read_bytes())
    kinds = {row[0]: row[1] for row in elf.segments()}
    assert PT_GNU_RELRO in kinds
    assert not kinds[PT_GNU_STACK] & PF_X
    tags = elf.dynamic()
    assert tags.get(DT_FLAGS, 0) & DF_BIND_NOW or tags.get(DT_FLAGS_1, 0) & DF_1_NOW
    taken = elf.undefined()
    assert "__stack_chk_fail" in taken
    assert any(symbol.endswith("_chk") for symbol in taken), "no call is fortified"


def test_a_stack_that_grows_is_probed() -> None:
    """Not to be seen in a file: the flag is there, for every recipe and in every makefile."""
    assert "-fstack-clash-protection" in HARDENED
    for recipe in (CORE, RELAY):
        assert set(HARDENED) <= set(recipe.flags) and recipe.linked == LINKED
    assert set(HARDENED) <= set(FLAGS)


@pytest.mark.parametrize("folder", MAKEFILES)
def test_makefiles_have_the_same_flags(folder: str) -> None:
    text = (ROOT / folder / "Makefile").read_text()
    for flag in (*HARDENED, *LINKED):
        assert flag in text, flag
