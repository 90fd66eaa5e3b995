"""A shard as a tree on a terminal.   present/shard ──► lines, as wide as there is room

A member is one line where that fits, and what is wrong with it follows in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.text import Text

from headgate.cli.documents import plain
from headgate.cli.render import STYLES, Marks, sparkline
from headgate.present.shard import MemberRow, in_a_line, standing_of, telling, tree, unwatched
from headgate.present.view import Said
from headgate.shard.api import MemberDoc, ShardDoc

ROLE_CELLS = 7
MIN_CURVE_CELLS, MAX_CURVE_CELLS = 8, 30
LEAST_FACTS_CELLS = 60
"""Of a line: names, roles and readings come before curves."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One line of the tree, and the words below it."""

    depth: int
    name: str
    name_style: str
    facts: Text
    notes: Sequence[Text]


Recent = Mapping[str, Sequence[float | None]]
"""`member metric` → its values of the last minutes."""


@dataclass(frozen=True, slots=True)
class Curves:
    """Beside each member, how its first reading came to what it is; 0 cells: there is no room."""

    recent: Recent
    cells: int

    def of(self, member: MemberDoc, marks: Marks) -> Text:
        curve = Text()
        for reading in telling(member)[:1] if self.cells else ():
            values = self.recent.get(f"{member.member} {reading.metric}", ())
            curve = sparkline(values, reading.threshold, self.cells, marks)
        pad = " " * (self.cells - curve.cell_len + 2 if self.cells else 0)
        return Text(pad).append_text(curve)


NO_CURVES = Curves({}, 0)


def curves(recent: Recent, width: int) -> Curves:
    room = width - LEAST_FACTS_CELLS
    return Curves(recent, min(MAX_CURVE_CELLS, room) if room >= MIN_CURVE_CELLS else 0)


def shard_tree(
    shard: ShardDoc, marks: Marks, width: int, drawn: Curves = NO_CURVES
) -> RenderableType:
    leaves = [_leaf(row, shard, marks, drawn) for row in tree(shard)]
    leaves += [
        Leaf(0, plain(name), "yellow", _noted(said, marks.away), ())
        for name, said in unwatched(shard)
    ]
    head = _wrapped(shard_head(shard, marks), width, "")
    return Group(*head, *_drawn(leaves, marks, width))


def shard_head(shard: ShardDoc, marks: Marks) -> Text:
    line = Text().append("shard ", style="dim").append(plain(shard.shard), style="bold")
    note = standing_of(shard)
    mark = {"good": marks.good, "info": marks.arrow}.get(note.tone, marks.bad)
    word = plain(note.word).upper() if note.tone == "bad" else plain(note.word)
    line.append(f"  {mark} {word}", style=STYLES[note.tone])
    between = ", " if note.tone == "good" else ": "
    line.append(f"{between}{plain(note.says)}" if note.says else "", style=STYLES[note.tone])
    if shard.warming_up is not None:
        line.append(f"  WARMING UP: {plain(shard.warming_up)}", style="yellow")
    return line


def shard_line(shard: ShardDoc, marks: Marks) -> Text:
    """All of it in one line, for a screen that has other things to show."""
    line, (rows, others) = shard_head(shard, marks), in_a_line(shard)
    for row in rows:
        line.append(f" {marks.dot} ", style="dim").append(plain(row.member.member), style="bold")
        line.append(" primary" if row.member.role == "primary" else "")
        line.append_text(_word(row)).append_text(_readings(row, marks, 1))
    if others:
        line.append(f" {marks.dot} {others} ").append(marks.good, style=STYLES["good"])
    return line


def _word(row: MemberRow) -> Text:
    """What is wrong is in capitals; a breach shows by its reading."""
    is_told = row.tone in ("bad", "warned") and row.word not in ("breached", "unavailable")
    return Text(f" {row.word.upper()}" if is_told else "", style=STYLES[row.tone])


def _readings(row: MemberRow, marks: Marks, most: int = 10) -> Text:
    text = Text()
    for name, said in row.telling[:most]:
        mark = marks.good if said.tone == "good" else marks.bad
        told = f"{mark} {plain(said.text)}".rstrip()
        text.append(f" {plain(name)} ").append(told, style=STYLES[said.tone])
    return text


def _leaf(row: MemberRow, shard: ShardDoc, marks: Marks, drawn: Curves) -> Leaf:
    member = row.member
    quiet = member.activity == "hibernating" or not member.reachable
    facts = Text(f"{plain(member.role or '?'):<{ROLE_CELLS}}", style="dim" if quiet else "")
    facts.append_text(drawn.of(member, marks)).append(" " if row.telling else "")
    facts.append_text(_readings(row, marks))
    if member.member == shard.member:
        facts.append("  this agent", style="dim")
    notes = [_noted(_loud(said, row), marks.bad * (said.tone == "bad")) for said in row.notes]
    style = "dim" if quiet else "bold"
    return Leaf(row.depth, plain(member.member), style, facts, notes)


def _loud(said: Said, row: MemberRow) -> Said:
    """The word for its state is in capitals."""
    if row.tone not in ("bad", "warned") or not said.text.startswith(row.word):
        return said
    return Said(f"{row.word.upper()}{said.text.removeprefix(row.word)}", said.tone)


def _noted(said: Said, mark: str = "") -> Text:
    return Text(f"{mark} {plain(said.text)}".strip(), style=STYLES[said.tone])


# --- drawing -----------------------------------------------------------------------------------


def _drawn(leaves: Sequence[Leaf], marks: Marks, width: int) -> Iterator[Text]:
    cells = len(marks.trunk)
    longest = max((cells * leaf.depth + cell_len(leaf.name) for leaf in leaves), default=0)
    name_cells = min(width // 3, longest)
    open_at: dict[int, bool] = {}
    for index, leaf in enumerate(leaves):
        is_last = _is_last(leaves, index)
        prefix = "".join(marks.trunk if open_at[at] else " " * cells for at in range(leaf.depth))
        open_at[leaf.depth] = not is_last
        line = Text().append(prefix + (marks.last if is_last else marks.branch), style="dim")
        pad = " " * (2 + max(0, name_cells - cells * leaf.depth - cell_len(leaf.name)))
        line.append(leaf.name + pad, style=leaf.name_style).append_text(leaf.facts)
        has_below = index + 1 < len(leaves) and leaves[index + 1].depth > leaf.depth
        beneath = prefix + (" " * cells if is_last else marks.trunk)
        beneath += marks.trunk if has_below else " " * cells
        yield from _with_notes(line, leaf.notes, width, beneath)


def _is_last(leaves: Sequence[Leaf], index: int) -> bool:
    """Of those below the same one."""
    later = (leaf.depth for leaf in leaves[index + 1 :] if leaf.depth <= leaves[index].depth)
    return next(later, -1) < leaves[index].depth


def _with_notes(line: Text, notes: Sequence[Text], width: int, beneath: str) -> Iterator[Text]:
    """The first note beside the line where it fits, all others beneath it."""
    rest = list(notes)
    if rest and line.cell_len + 2 + rest[0].cell_len <= width:
        line.append("  ").append_text(rest.pop(0))
    line.rstrip()
    yield from _wrapped(line, width, beneath)
    for note in rest:
        first, *more = _wrapped(note, max(20, width - len(beneath)), "")
        yield Text().append(beneath, style="dim").append_text(first)
        for piece in more:
            yield Text().append(beneath, style="dim").append_text(piece)


def _wrapped(line: Text, width: int, beneath: str) -> list[Text]:
    """Cut at words; what is carried over goes under `beneath`."""
    if line.cell_len <= width:
        return [line]
    ruler = Console(width=width, color_system=None)
    first, *rest = line.wrap(ruler, width)
    if not rest or not beneath:
        return [first, *rest]
    left = Text(" ").join(rest)
    again = left.wrap(ruler, max(20, width - len(beneath)))
    return [first, *(Text().append(beneath, style="dim").append_text(piece) for piece in again)]
