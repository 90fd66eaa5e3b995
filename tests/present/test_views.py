"""Presenters tell all of a document, also what they know nothing of; terminals get text."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from rich.console import Console

from headgate.check.api import ClientDoc
from headgate.cli.documents import read
from headgate.cli.render import ASCII, Canvas, drawn
from headgate.page.rules import acts_of, rule_list
from headgate.page.shell import render
from headgate.present import clients
from headgate.present.explain import explain_view, explained
from headgate.present.history import hour_words
from headgate.present.rules import TOLD, RuleRow, rule_view
from headgate.present.view import (
    BREAK,
    Block,
    Column,
    Fill,
    Note,
    Said,
    Step,
    Table,
    columns,
    line,
)
from headgate.rules.api import ExplainDoc, RuleDoc, RulesDoc
from tests.cli import builders
from tests.tui.scenes import rule


def shown(*blocks: Block, canvas: Canvas | None = None) -> str:
    canvas = canvas or Canvas(100)
    console = Console(width=canvas.width, highlight=False, markup=False, color_system=None)
    with console.capture() as captured:
        console.print(drawn(blocks, canvas))
    return captured.get()


def test_a_new_field_of_a_rule_is_shown_without_a_presenter_of_its_own() -> None:
    link = "https://tickets.example/OPS-7"
    doc = read(RuleDoc, {**rule(), "ticket": link})
    assert f"ticket: {link}" in shown(*rule_view(doc))
    found = rule_list(RulesDoc([doc]), "")
    context = {"found": found, "poll_s": 2, "may_change": True, "why_not": "", "acts_of": acts_of}
    assert f'ticket: <a href="{link}"' in render("rules_list.html", context)
    assert RuleRow(doc).others == [("ticket", link)]
    assert RuleRow(read(RuleDoc, rule())).others == []


def test_no_field_is_listed_that_a_rule_does_not_have() -> None:
    assert set(RuleDoc.__struct_fields__) >= TOLD


def test_a_note_says_what_to_do_with_commands_to_copy() -> None:
    note = Note("not set up", "bad", "It is not.", (Step("in the file", "[a]\nb = 1"),))
    assert shown(note).splitlines() == [
        "NOT SET UP  It is not.",
        "  in the file: [a]",
        "    b = 1",
    ]


def test_columns_come_and_go_with_the_width() -> None:
    names = [*columns("a", "b", b=90), Column("c", below_width=90)]
    table = Table(names, [["1", "2", "3"]])
    assert "b" in shown(table) and "c" not in shown(table)
    narrow = shown(table, canvas=Canvas(60))
    assert "b" not in narrow and "c" in narrow


def test_nothing_steers_the_terminal_and_ascii_stays_ascii() -> None:
    rude = "\x1b[2J[red]x[/red]\nnext"
    text = shown(line(rude), Note(rude, "bad", rude), Table(columns("a"), [[Said(rude)]]))
    assert "\x1b" not in text and "[red]x[/red] next" in text
    blocks = (line("07:00–07:25 · a → b"), Table(columns("a"), [[Fill(0.5)]]))
    assert shown(*blocks, canvas=Canvas(60, ASCII)).isascii()
    assert shown(line("one", BREAK, "two")).splitlines() == ["one", "two"]


def test_a_client_that_checks_no_more_is_silent_not_throttled() -> None:
    """In the terminal as on the page."""
    throttled = ClientDoc("etl", "main", 1, 5, "THRESHOLD_EXCEEDED", 0.2, 30.0, "lag")
    assert clients.state_of(throttled) == Said("throttled 30 s by lag", "bad")
    just_now = msgspec.structs.replace(throttled, rejected_for_s=0.4)
    assert clients.state_of(just_now) == Said("rejected by lag", "warned")
    gone = msgspec.structs.replace(throttled, last_seen_s_ago=61.0, rejected_for_s=90.0)
    assert clients.state_of(gone) == Said("silent", "quiet")
    assert clients.throttled_for(gone) is None


def explain(**given: Any) -> ExplainDoc:
    return read(ExplainDoc, builders.explained(builders.answer(**given)))


def test_explain_says_no_share_of_a_metric_without_a_value() -> None:
    """In the terminal as on the page."""
    for metrics, told in (
        ([builders.absent("lag")], "No metric has a value to compare with its threshold."),
        ([], "No metric was compared with its threshold."),
        ([builders.metric(value=4.0)], "Nearest to its threshold: lag, at 80% of it"),
    ):
        found = explained(explain(metrics=metrics, utilization=0.0))
        assert found.summary.startswith(told)
        assert found.summary in shown(*explain_view(found.doc), canvas=Canvas(120))


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ([None, None], "no check within the last hour"),
        ([0.0, None], "last hour: no check was rejected"),
        ([0.0, 0.2], "last hour: 20% of its checks at worst, most by lag"),
        (
            [0.9, 0.2, 0.9],
            "last hour: mostly throttled for at most 4 min; 90% of its checks at worst, "
            "most by lag",
        ),
    ],
)
def test_an_hour_says_only_what_was_in_it(shares: list[float | None], words: str) -> None:
    assert hour_words(shares, 2, "lag") == words
