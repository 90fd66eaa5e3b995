"""What is sent to the terminal: only what differs, never half a character, and nothing too wide."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.color import ColorSystem
from rich.console import Console
from rich.text import Text

from headgate.tui.paint import Line, Paint, Ruler, difference, in_ascii, paint_for
from tests.tui.glass import Glass

PAINT = Paint(ColorSystem.EIGHT_BIT, colourless=False, ascii_only=False)
SIZE = (24, 4)
LINES = st.lists(
    st.text(st.sampled_from("ab c│▁█–日本é"), max_size=30).map(str.rstrip), max_size=SIZE[1]
)
STYLES = st.sampled_from(["", "bold red", "reverse"])


def drawn(texts: list[str], style: str = "") -> list[Line]:
    ruler = Ruler(SIZE[0])
    return [ruler.lines(Text(one, style=style, no_wrap=True, overflow="crop"))[0] for one in texts]


def shown(lines: list[Line]) -> str:
    glass = Glass(*SIZE)
    glass.write(difference((), lines, SIZE, PAINT))
    assert not glass.overflowed
    return glass.text


@settings(max_examples=50)
@given(st.lists(st.tuples(LINES, STYLES), min_size=1, max_size=4))
def test_a_screen_that_was_sent_differences_shows_what_a_fresh_one_would(
    frames: list[tuple[list[str], str]],
) -> None:
    glass, before = Glass(*SIZE), list[Line]()
    for texts, style in frames:
        lines = drawn(texts, style)
        glass.write(difference(before, lines, SIZE, PAINT))
        before = lines
        assert glass.text == shown(lines)
        assert not glass.overflowed


def test_what_is_the_same_is_not_sent_again() -> None:
    lines = drawn(["lag  1.25 s  healthy", "12:00:01"])
    assert difference(lines, lines, SIZE, PAINT) == ""
    changed = drawn(["lag  1.26 s  healthy", "12:00:01"])
    assert difference(lines, changed, SIZE, PAINT) == "\x1b[1;9H6"


def test_without_color_states_are_still_bold() -> None:
    lines = drawn(["BREACHED"], "bold red")
    paint = Paint(ColorSystem.EIGHT_BIT, colourless=True, ascii_only=False)
    assert difference((), lines, SIZE, paint) == "\x1b[1;1H\x1b[1mBREACHED\x1b[0m"


def test_a_terminal_without_styles_gets_text_alone() -> None:
    paint = paint_for(Console(color_system=None, force_terminal=True))
    assert difference((), drawn(["BREACHED"], "bold red"), SIZE, paint) == "\x1b[1;1HBREACHED"


def test_ascii_takes_as_many_cells_as_what_it_replaces() -> None:
    assert in_ascii("etl… 日本 → é") == "etl~ ???? > ?"
