"""The keys of `top`: a line below every view, and the whole of them behind `?`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headgate.cli.render import Canvas
from headgate.cli.top_views import VIEWS

KEYS: tuple[tuple[str, str], ...] = (
    ("1 … 7", "a view; Tab and the arrows left and right go on to the next"),
    ("j k ↓ ↑", "move; PgUp PgDn g G as well"),
    ("Enter", "in 3, the chosen client's own last hour; in 7, ask"),
    ("Esc", "back; forget the filter; go on after a pause"),
    ("/", "filter clients, rules, refusals: names, databases, what holds, `held`"),
    ("o t", "in 3, another order; tree or list"),
    ("x", "in 3, explain why the chosen client is answered as it is"),
    ("Tab", "in 6, refusals or changes first"),
    ("space", "hold the picture still, and go on"),
    ("s", "write what is on the screen to a file: .svg, .html or text"),
    ("w", "wake databases that rest; looking alone wakes nobody"),
    ("l e", "in 4, lift or extend the chosen rule"),
    ("h", "in 3, hold the chosen client, or the whole level"),
    ("r", "ask again; draw again"),
    ("q", "leave; Ctrl-C as well"),
)
NOTES = (
    "A change is tried first: you see what it would do, and y does it. Every other key does not.",
    "A bar's end is the threshold; beyond it the bar is red. Curves: the worst of each quarter of",
    "a minute, the newest at the right. Last hour: blank did not ask, a dot was admitted, and the",
    "higher the more of what it asked was refused.",
)
_HINTS = {
    "overview": "w wake",
    "shard": "w wake",
    "clients": "Enter hour  x why  h hold  / filter  o order  t tree",
    "rules": "l lift  e extend  / filter",
    "budgets": "",
    "past": "Tab other list  / filter",
    "explain": "Enter ask  r again",
}


def help_page(canvas: Canvas) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for view in VIEWS.values():
        table.add_row(Text(view.key, style="bold"), Text(_ABOUT[view.name]))
    table.add_row(Text(), Text())
    for keys, about in KEYS:
        table.add_row(Text(_plain(keys, canvas), style="bold"), Text(about))
    return Group(table, Text(), Text(" ".join(NOTES), style="dim"))


def _plain(keys: str, canvas: Canvas) -> str:
    if canvas.marks.arrow == "->":
        return keys.replace("…", "..").replace("↓ ↑", "arrows")
    return keys


_ABOUT = {
    "overview": "overview: what to do, what is unhealthy, who is held, by what, since when",
    "shard": "shard: the tree with lag, roles, rest and causes; each metric's last minutes",
    "clients": "clients: by levels, rates, held since when and by what, starvation, last hour",
    "rules": "rules: time left, author, reason, whom they meet",
    "budgets": "budgets: fill, running, refused, and what statements cost",
    "past": "past: who was refused lately, and who changed what",
    "explain": "explain: how a client, or a statement, would be answered now, and why",
}


def footer(view: str, width: int) -> Text:
    """One line: always how to leave and where help is; then what this view can, then names."""
    hints = [*_HINTS[view].split("  ")] if _HINTS[view] else []
    names = [(one.key, one.title, one.name == view) for one in VIEWS.values()]
    wanted = len("  ".join([*hints, ALWAYS])) + 2
    line = _names(names, short=False)
    if line.cell_len + wanted > width:
        line = _names(names, short=True)
    line.append(ALWAYS, style="dim")
    for hint in [*hints, "space pause", "s save"]:
        if line.cell_len + len(hint) + 2 <= width:
            line.append(f"  {hint}", style="dim")
    return line


ALWAYS = "? help  q leaves"


def _names(names: Sequence[tuple[str, str, bool]], *, short: bool) -> Text:
    line = Text(no_wrap=True, overflow="crop", end="")
    for key, title, is_open in names:
        shown = f"{key} {title}" if is_open or not short else key
        line.append(shown, style="bold reverse" if is_open else "dim").append(" ")
    return line
