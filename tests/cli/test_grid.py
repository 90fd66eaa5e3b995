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


@settings(max_examples=200, deadline=None)
@given(st.data(), st.lists(COLUMNS, min_size=1, max_size=5), st.integers(8, 100))
def test_it_draws_what_rich_draws(
    data: st.DataObject, columns: list[dict[str, Any]], width: int
) -> None:
    row = st.lists(CELLS, min_size=len(columns), max_size=len(columns))
    rows = data.draw(st.lists(row, max_size=4))
    tables = (
        PlainTable(),
        Table(box=None, padding=(0, GAP, 0, 0), header_style="dim", pad_edge=False),
    )
    for table in tables:
        for at, column in enumerate(columns):
            table.add_column(f"col{at}", **column)
        for cells in rows:
            table.add_row(*(Text(cell, style="red") for cell in cells))
    assert lines(tables[0], width) == lines(tables[1], width)
