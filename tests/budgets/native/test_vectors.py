"""One set of vectors, two deciders: the readable reference, and the core in C (R152)."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headgate.budgets.model import Dialect
from headgate.budgets.native import debits as native
from headgate.budgets.sql_text import ParsedTags, fingerprint, read_tags, shape
from tests.budgets.native.engines import Engine, Native, Reference, Sizes
from tests.budgets.native.playing import PATH, Player, document, sizes_of

VECTORS = document()
SCRIPT = Path(__file__).parents[3] / "scripts" / "make_traffic_vectors.py"


@pytest.mark.parametrize("decider", [Reference, Native])
@pytest.mark.parametrize("scenario", VECTORS["scenarios"], ids=lambda s: s["name"])
def test_every_step_comes_to_what_the_vectors_say(
    scenario: dict[str, Any], decider: Callable[[Sizes], Engine]
) -> None:
    played = Player(decider(sizes_of(scenario)), scenario).play()
    for step, told, expected in zip(
        scenario["steps"], played["results"], scenario["results"], strict=True
    ):
        assert told == expected, step
    assert json.loads(json.dumps(played["end"])) == scenario["end"]


@pytest.mark.parametrize("read", [read_tags, native.read_tags])
def test_tags(read: Callable[[bytes, Dialect], ParsedTags]) -> None:
    for dialect, text, pairs, ignored, duplicates in VECTORS["tags"]:
        expected = {k.encode(): v.encode() for k, v in pairs.items()}
        told = read(text.encode(), Dialect[dialect.upper()])
        assert told == ParsedTags(expected, ignored, duplicates), (dialect, text)


def test_fingerprints() -> None:
    for dialect, text, shaped, number in VECTORS["fingerprints"]:
        asked = text.encode(), Dialect[dialect.upper()]
        assert shape(*asked).decode() == shaped
        assert f"{fingerprint(*asked):016x}" == f"{native.fingerprint(*asked):016x}" == number


def test_every_question_that_the_core_can_show_has_a_scenario() -> None:
    """20 and 21 are the server's: which statements are gated, and what is inside a transaction."""
    named = " ".join(scenario["name"].partition(":")[0] for scenario in VECTORS["scenarios"])
    shown = {int(word) for word in named.replace(",", " ").split() if word.isdigit()}
    assert shown == set(range(1, 25)) - {20, 21}


def test_the_vectors_are_what_the_script_makes() -> None:
    """A decision that changes shows as a changed line."""
    made = json.loads(json.dumps(script().document()))
    assert made == json.loads(PATH.read_text()), "run scripts/make_traffic_vectors.py"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_traffic_vectors", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
