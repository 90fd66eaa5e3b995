"""PlainTable draws the lines that rich's own table would."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headgate.cli.render import GAP, PlainTable

CELLS = st.text(st.sampled_from("abé日– \n"), max_size=40).map(str.strip)
COLUMNS = st.fixed_dictionaries(
    {
        "justify": st.sampled_from(["left", "right"]),
        "overflow": st.sampled_from(["fold", "ellipsis", "crop"]),
        "no_wrap": st.booleans(),
        "width": st.none() | st.integers(3, 15),
        "max_width": st.none() | st.integers(6, 20),
    }
)


def lines(table: Table, width: int) -> list[str]:
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


NARROW = {"justify": "left", "overflow": "fold", "no_wrap": False, "width": None, "max_width": 6}


def test_the_last_column_has_no_gap_in_its_bound() -> None:
    narrow, of_rich = tables()
    for table in (narrow, of_rich):
        for at in range(3):
            table.add_column(f"col{at}", **NARROW)  # type: ignore[arg-type]
        table.add_row("", "", "aaaaaaa")
    assert lines(narrow, 19) == lines(of_rich, 19)


def tables() -> tuple[Table, Table]:
    return (
        PlainTable(),
        Table(box=None, padding=(0, GAP, 0, 0), header_style="dim", pad_edge=False),
    )


@settings(max_examples=200, deadline=None)
@given(st.data(), st.lists(COLUMNS, min_size=1, max_size=5), st.integers(8, 100))
def test_it_draws_what_rich_draws(
    data: st.DataObject, columns: list[dict[str, Any]], width: int
) -> None:
    row = st.lists(CELLS, min_size=len(columns), max_size=len(columns))
    rows = data.draw(st.lists(row, max_size=4))
    both = tables()
    for table in both:
        for at, column in enumerate(columns):
            table.add_column(f"col{at}", **column)
        for cells in rows:
            table.add_row(*(Text(cell, style="red") for cell in cells))
    assert lines(both[0], width) == lines(both[1], width)
