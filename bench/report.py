"""What a bench found, as data: tables, and goals with the figure that was measured.

    report = Report("checks", chosen_of(options(__doc__).parse_args()))
    report.show("Checks", head, rows); report.goals.append(Goal("…", 2.9, 3.0, "×", at_least=True))
    report.end()                                    prints, and writes --json PATH for bench.all

A goal without a figure says why: a peer that is not on this machine is a row, never a pass.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.fixtures import pgkits


@dataclass(frozen=True, slots=True)
class Chosen:
    quick: bool = False
    json: Path | None = None
    major: int = pgkits.NEWEST


def options(doc: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a smoke: too short for figures")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    parser.add_argument("--major", type=int, choices=pgkits.MAJORS, default=pgkits.NEWEST)
    return parser


def chosen_of(given: argparse.Namespace) -> Chosen:
    return Chosen(given.quick, given.json, given.major)


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound to hold, beside what was measured."""

    work: str
    figure: float | None
    """None: there is none, see `missing`."""
    goal: float | None
    """None: nothing to hold, such as the noise of an A/A row."""
    at_least: bool = False
    unit: str = ""
    missing: str = ""
    """Why there is no figure: `no peer: freno`."""
    spread: tuple[float, float] | None = None
    """Quartiles of the figure."""

    @property
    def held(self) -> bool | None:
        """None: there is nothing to compare."""
        if self.figure is None or self.goal is None:
            return None
        return self.figure >= self.goal if self.at_least else self.figure <= self.goal

    def row(self) -> tuple[str, str, str, str]:
        """work, goal, figure, what came of it"""
        sign = "≥" if self.at_least else "≤"
        goal = "–" if self.goal is None else f"{sign} {number(self.goal)}{self._unit}"
        if self.figure is None:
            return self.work, goal, "–", self.missing
        figure = f"{number(self.figure)}{self._unit}"
        if self.spread is not None:
            figure += f" ({number(self.spread[0])} – {number(self.spread[1])})"
        outcome = {None: "", True: "held", False: "**missed**"}[self.held]
        return self.work, goal, figure, outcome

    @property
    def _unit(self) -> str:
        return f" {self.unit}" if self.unit else ""


GOALS = ("work", "goal", "figure (quartiles)", "")
AA = "A/A"


def no_peer(work: str, goal: float, peer: str, *, at_least: bool = True, unit: str = "") -> Goal:
    return Goal(work, None, goal, at_least, unit, missing=f"no peer: {peer}")


def ratio_goal(
    work: str, mine: Sequence[float], theirs: Sequence[float], goal: float | None, **more: object
) -> Goal:
    """Median and quartiles of the ratios, round by round."""
    low, middle, high = quartiles([a / b for a, b in zip(mine, theirs, strict=True)])
    at_least = bool(more.get("at_least", True))
    return Goal(work, middle, goal, at_least, "×", spread=(low, high))


def number(value: float) -> str:
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"


@dataclass(slots=True)
class Report:
    """Tables as they come, and all of them as JSON at the end."""

    title: str
    chosen: Chosen
    tables: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    goals: list[Goal] = field(default_factory=list)

    def show(self, title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        print(f"\n{title}\n\n{table(head, rows)}", flush=True)
        self.tables[title] = [dict(zip(head, row, strict=True)) for row in rows]

    def end(self) -> None:
        """Print the goals and write the JSON."""
        if self.goals:
            self.show("Goals", GOALS, [goal.row() for goal in self.goals])
        if self.chosen.quick:
            print("\n(--quick: too short for figures)")
        if self.chosen.json is not None:
            self.chosen.json.write_text(json.dumps(self._as_json(), indent=1) + "\n")

    def _as_json(self) -> dict[str, object]:
        return {
            "title": self.title,
            "quick": self.chosen.quick,
            "major": self.chosen.major,
            "machine": {
                "cpus": os.cpu_count(),
                "kernel": platform.release(),
                "load": os.getloadavg()[0],
            },
            "goals": [asdict(goal) | {"held": goal.held} for goal in self.goals],
            "tables": self.tables,
        }


def say(words: str) -> None:
    print(f"· {words}", file=sys.stderr, flush=True)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
