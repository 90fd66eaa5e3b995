"""A shared mapping behaves as a dict of its own, in every copy."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.base import overlay
from headgate.base.overlay import Overlay

KEYS = st.integers(0, 12)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.integers()),
        st.tuples(st.just("pop"), KEYS, st.just(0)),
        st.tuples(st.just("copy"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@given(st.dictionaries(KEYS, st.integers()), STEPS, st.integers(0, 5))
def test_every_copy_is_as_a_dict_would_be(
    begun: dict[int, int], steps: list[tuple[str, int, int]], max_over: int
) -> None:
    before, overlay.MAX_OVER = overlay.MAX_OVER, max_over
    try:
        now, expected = Overlay(begun), dict(begun)
        seen = [(now, dict(expected))]
        for step, key, value in steps:
            if step == "copy":
                now = now.copy()
                seen.append((now, expected := dict(expected)))
            elif step == "put":
                now[key] = expected[key] = value
            else:
                assert now.pop(key, None) == expected.pop(key, None)
            seen[-1] = now, dict(expected)
        for found, wanted in seen:
            assert dict(found) == dict(found.items()) == wanted
            assert sorted(found.values()) == sorted(wanted.values())
            assert len(found) == len(wanted)
            assert [key for key in range(13) if key in found] == sorted(wanted)
            assert [found.get(key) for key in range(13)] == [wanted.get(key) for key in range(13)]
    finally:
        overlay.MAX_OVER = before


def test_a_key_that_is_gone_is_none() -> None:
    found = Overlay({"a": 1})
    copy = found.copy()
    del copy["a"]
    assert ("a" in found, "a" in copy, bool(copy)) == (True, False, False)
