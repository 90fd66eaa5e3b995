"""The harness of the benches: deadlines, peers that are missing, tables between markers."""

from __future__ import annotations

import subprocess
from importlib import import_module
from pathlib import Path

import pytest
from bench.all import BENCHES, MOST_S, Bench, Outcome, filled, outcome_of, sections
from bench.report import Chosen, Goal, Report, no_peer, ratio_goal

from bench import all as harness
from headgate.settings.agent import parse_settings

ROOT = Path(__file__).parents[2]
REPORTS = """
import sys
sys.path.insert(0, {root!r})
from bench.report import Goal, Report, Chosen, no_peer
from pathlib import Path
report = Report("told", Chosen(json=Path(sys.argv[sys.argv.index("--json") + 1])))
report.show("Shown", ("what", "figure"), [("a", "1"), ("b", "2")])
report.goals = [Goal("work", 2.0, 3.0, unit="ms", spread=(1.5, 2.5)), no_peer("beside", 2, "freno")]
"""
BENCHES_WITH_AN_AGENT = sorted(
    path.stem for path in ROOT.glob("bench/*.py") if "\n[databases." in path.read_text()
)
IN_SETTINGS = {
    "dsn": "host=/nowhere", "folder": "/nowhere", "interval_s": 0.05, "metric": "queue",
    "pace": "true", "port": 18100, "probe_s": 0.25, "threshold_s": 1.0,
}  # fmt: skip
HANGS = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path({child!r}).write_text(str(child.pid))
time.sleep(600)
"""


def told(
    place: Path, monkeypatch: pytest.MonkeyPatch, source: str, *, about_s: float = 10.0
) -> Outcome:
    """What comes of a bench that is this program."""
    (place / "told_bench.py").write_text(source.format(root=str(ROOT), child=str(place / "child")))
    monkeypatch.setenv("PYTHONPATH", str(place))
    return outcome_of(Bench("told", (), about_s, module="told_bench"), {})


def test_goals_come_as_they_were_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = told(tmp_path, monkeypatch, REPORTS + "report.end()")
    assert outcome.failure == ""
    assert outcome.goals == (
        Goal("work", 2.0, 3.0, unit="ms", spread=(1.5, 2.5)),
        no_peer("beside", 2, "freno"),
    )
    assert outcome.tables["Shown"] == [{"what": "a", "figure": "1"}, {"what": "b", "figure": "2"}]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("raise SystemExit('no server came up')", "no server came up"),
        ("pass", "it wrote no figures"),
        ("import sys; sys.exit(3)", "exit code 3"),
    ],
)
def test_a_bench_that_fails_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, why: str
) -> None:
    outcome = told(tmp_path, monkeypatch, source)
    assert outcome.failure == why
    assert outcome.rows() == [("told", "–", "–", "–", f"**failed**: {why}")]


def test_figures_stay_where_a_bench_ends_badly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = told(tmp_path, monkeypatch, REPORTS + "report.end()\nraise SystemExit(1)")
    assert len(outcome.goals) == 2
    assert outcome.failure


def test_a_bench_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it started."""
    monkeypatch.setattr(harness, "LEAST_S", 3.0)
    outcome = told(tmp_path, monkeypatch, HANGS, about_s=0.0)
    assert outcome.failure == "not done within 3 s"
    child = tmp_path / "child"
    if child.exists():
        state = Path(f"/proc/{child.read_text()}/stat")
        assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_missing_peer_is_a_row() -> None:
    missing = no_peer("beside", 2, "freno", unit="×")
    assert missing.row() == ("beside", "≥ 2 ×", "–", "no peer: freno")
    assert missing.held is None


def test_a_bench_whose_peer_is_missing_does_not_run() -> None:
    beside = Bench("proxy", (), 1.0, needs=("no-such-program",), module="no_such_bench")
    outcome = outcome_of(beside, {})
    assert outcome.rows() == [("proxy", "all of it", "–", "–", "no peer: no-such-program")]
    assert not outcome.failure


@pytest.mark.parametrize(
    ("goal", "outcome"),
    [
        (Goal("w", 2.0, 3.0), "held"),
        (Goal("w", 4.0, 3.0), "**missed**"),
        (Goal("w", 4.0, 3.0, at_least=True), "held"),
        (Goal("w", 1.02, None), ""),
    ],
)
def test_a_goal_says_what_came_of_it(goal: Goal, outcome: str) -> None:
    assert goal.row()[3] == outcome


def test_a_ratio_is_of_the_same_round() -> None:
    goal = ratio_goal("w", [2.0, 20.0, 3.0], [1.0, 10.0, 1.0], 2.0)
    assert (goal.figure, goal.held) == (2.0, True)


def test_tables_are_written_between_their_markers() -> None:
    text = (
        "before\n<!-- bench: goals -->\nold\n<!-- bench: end -->\nbetween\n"
        "<!-- bench: other -->\nkept\n<!-- bench: end -->\nafter\n"
    )
    told = Outcome("told", (Goal("w", 2.0, 3.0),), {"Shown": [{"what": "a"}]})
    written = filled(text, sections([told], "Measured today."))
    assert "| told | w | ≤ 3 | 2 | held |" in written
    assert "old\n" not in written.replace("told", "")
    assert written.startswith("before\n")
    assert "\nbetween\n" in written
    assert "<!-- bench: other -->\nkept\n<!-- bench: end -->\nafter\n" in written
    assert filled(written, sections([told], "Measured today.")) == written


def test_a_failed_bench_leaves_its_table_as_it_was() -> None:
    failed = Outcome("told", (), {"Shown": [{"what": "a"}]}, failure="it broke")
    assert "told" not in sections([failed], "")


def test_all_of_them_fit_into_their_time() -> None:
    assert sum(bench.about_s for bench in BENCHES) <= MOST_S


@pytest.mark.parametrize("bench", BENCHES, ids=lambda bench: bench.name)
def test_each_takes_the_options_of_its_short_form(bench: Bench) -> None:
    command = bench.command({peer: Path("/x") for peer in bench.peers}, Path("/f"))
    ran = subprocess.run([*command, "--help"], capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    given = [word for word in command if word.startswith("--")]
    assert [word for word in given if word not in ran.stdout] == []


IN_C = sorted([*ROOT.glob("bench/*.c"), *ROOT.glob("native/tests/bench_*.c")])


@pytest.mark.parametrize("source", IN_C, ids=lambda path: path.name)
def test_what_is_in_c_compiles(source: Path) -> None:
    flags = ["-fsyntax-only", "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Werror"]
    command = ["cc", *flags, f"-I{ROOT / 'native'}", str(source)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_a_report_hands_over_what_it_found(tmp_path: Path) -> None:
    report = Report("told", Chosen(json=tmp_path / "figures.json"))
    report.goals.append(Goal("w", 2.0, 3.0))
    report.end()
    assert '"held": true' in (tmp_path / "figures.json").read_text()


@pytest.mark.parametrize("bench", BENCHES_WITH_AN_AGENT)
def test_an_agent_takes_the_settings_that_a_bench_writes(bench: str) -> None:
    """One that rejects its file ends, and the bench waits for its first answer."""
    written = import_module(f"bench.{bench}").SETTINGS.format_map(IN_SETTINGS)
    assert parse_settings(written).databases
