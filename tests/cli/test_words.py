"""Words that cannot steer a terminal, and short ones."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from headgate.check.answer_api import MetricDoc
from headgate.cli.documents import plain, read
from headgate.cli.render import note_text
from headgate.present.metrics import absence_text, nearest
from headgate.present.view import Note
from headgate.present.words import age_text, ago
from tests.cli import builders


def test_the_nearest_metric_has_used_most_of_its_threshold() -> None:
    metrics = [builders.metric("a", value=1), builders.metric("b", value=4), builders.absent("c")]
    found = nearest([read(MetricDoc, one) for one in metrics])
    assert found is not None and found.metric == "b"
    assert nearest([]) is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("lag – 5 s", "lag – 5 s"),
        ("\x1b[2Jgone", "�[2Jgone"),
        ("one\ntwo\r", "one two"),
        ("\x00\x9b", "��"),
    ],
)
def test_a_servers_message_does_not_steer_the_terminal(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_an_unavailable_metric_without_detail_still_has_its_cause() -> None:
    metric = read(
        MetricDoc, builders.absent(detail="", unavailable_for_ms=None, cause="never_read")
    )
    assert absence_text(metric) == "never read"


def test_ages_are_short() -> None:
    shown = [age_text(s) for s in (0.412, 3.4, 600, 9000, 400_000)]
    assert shown == ["412ms", "3.4s", "10min", "2.5h", "5d"]
    assert ago(0.2) == "just now"
    assert ago(12.4) == "12.4 s ago"


def test_a_time_in_a_sentence_is_local() -> None:
    """A20"""
    at = datetime(2026, 3, 1, 12, tzinfo=UTC).astimezone()
    note = Note("advice", "", "it ends at 2026-03-01T12:00:00Z, after 1 h")
    assert note_text(note).plain == f"advice  it ends at {at:%Y-%m-%d %H:%M:%S %Z}, after 1 h"
