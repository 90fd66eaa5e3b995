"""The copy of the fleet's state on disk: whole or not at all, and never half believed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.base.keyvalue import Entry, Listing
from headgate.changes.log_copy import CopyOrigin, LogCopy
from headgate.errors import StoreUnavailable
from headgate.fleet import cache as logcache
from headgate.fleet.cache import ASIDE, LogCache, decoded, encoded

COPY = LogCopy(
    Listing(
        (Entry("items/wide/rule/f-1", b'{"n":1}', 7), Entry("x", b"\x00\xff", 0)), 9, "cluster:1"
    ),
    ("beat", "items/wide/"),
    57,
    1_700_000_000.25,
)


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_a_copy_comes_back_as_it_was(tmp_path: Path) -> None:
    cache = LogCache(tmp_path / "sub" / "fleet.copy")
    assert await cache.load() is None
    await cache.save(COPY)
    assert await cache.load() == COPY
    assert oct((tmp_path / "sub" / "fleet.copy").stat().st_mode)[-3:] == "600"
    assert names(tmp_path / "sub") == ["fleet.copy"]
    await cache.close()


async def test_what_a_crash_left_beside_it_is_in_nobodys_way(tmp_path: Path) -> None:
    path = tmp_path / "fleet.copy"
    cache = LogCache(path)
    await cache.save(COPY)
    (tmp_path / "fleet.copy.new").write_bytes(encoded(COPY)[:20])
    assert await cache.load() == COPY
    await cache.save(COPY)
    assert names(tmp_path) == ["fleet.copy"]
    await cache.close()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "does not begin"),
        (b"garbage", "does not begin"),
        (encoded(COPY)[:-1], "bytes where"),
        (encoded(COPY) + b"x", "bytes where"),
        (encoded(COPY)[:-9] + b"X" + encoded(COPY)[-8:], "checksum"),
        (encoded(COPY).replace(b'"version":1', b'"version":2'), "headgate-fleet-copy 2"),
        (b"[" * 100_000, "does not begin"),
    ],
)
async def test_a_damaged_copy_is_reported_and_skipped(
    tmp_path: Path, raw: bytes, words: str
) -> None:
    path = tmp_path / "fleet.copy"
    path.write_bytes(raw)
    cache = LogCache(path)
    with pytest.raises(StoreUnavailable, match=words) as told:
        await cache.load()
    assert str(path) in str(told.value)
    assert path.with_name(path.name + ASIDE).read_bytes() == raw
    assert await cache.load() is None
    await cache.save(COPY)
    assert await cache.load() == COPY
    await cache.close()


@given(st.integers(0, len(encoded(COPY)) - 1), st.integers(1, 255))
def test_no_single_byte_can_be_changed_unnoticed(place: int, by: int) -> None:
    raw = bytearray(encoded(COPY))
    raw[place] ^= by
    with suppress(ValueError):
        assert decoded(bytes(raw)) == COPY


async def test_too_large_a_copy_leaves_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = LogCache(tmp_path / "fleet.copy")
    await cache.save(COPY)
    monkeypatch.setattr(logcache, "MAX_CACHE_BYTES", 100)
    with pytest.raises(StoreUnavailable, match="at most 100"):
        await cache.save(COPY)
    monkeypatch.undo()
    assert await cache.load() == COPY
    await cache.close()


async def test_a_disk_that_takes_nothing_is_reported_with_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = LogCache(tmp_path / "file" / "fleet.copy")
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        await cache.save(COPY)
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        await cache.load()
    await cache.close()


async def test_a_copy_is_not_followed_elsewhere(tmp_path: Path) -> None:
    """Whoever may write beside it must not make us overwrite something else."""
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    (tmp_path / "fleet.copy.new").symlink_to(target)
    cache = LogCache(tmp_path / "fleet.copy")
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        await cache.save(COPY)
    assert target.read_bytes() == b"precious"
    await cache.save(COPY)
    assert await cache.load() == COPY
    await cache.close()


STAGE = CopyOrigin("/stage/", ("https://a:2379", "https://b:2379"))


@pytest.mark.parametrize(
    ("origin", "is_ours"),
    [
        (STAGE, True),
        (CopyOrigin("/stage/", ("https://b:2379", "https://c:2379")), True),
        (CopyOrigin("/prod/", STAGE.places), False),
        (CopyOrigin("/stage/", ("https://d:2379",)), False),
    ],
    ids=["same", "members replaced", "other prefix", "other members"],
)
async def test_a_copy_of_another_fleet_is_skipped(
    tmp_path: Path, origin: CopyOrigin, is_ours: bool
) -> None:
    """Its rules would be put in force here, and written into this one's store by a restore."""
    path = tmp_path / "fleet.copy"
    before, now = LogCache(path, STAGE), LogCache(path, origin)
    await before.save(COPY)
    if is_ours:
        assert await now.load() == COPY
    else:
        with pytest.raises(StoreUnavailable, match=r"to another store: .*a:2379, .* /stage/"):
            await now.load()
        assert names(tmp_path) == [f"fleet.copy{ASIDE}"]
    await before.close()
    await now.close()


async def test_a_copy_that_cannot_be_written_in_json_is_a_fault_and_no_crash(
    tmp_path: Path,
) -> None:
    cache = LogCache(tmp_path / "fleet.copy")
    broken = Listing((Entry("items/\udcff", b"", 1),), 1, "s")
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        await cache.save(LogCopy(broken, ("items/",), 1, 0.0))
    await cache.close()
