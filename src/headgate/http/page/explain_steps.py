"""A decision as steps, from who asks to the verdict. Pure.   ExplainDoc ──► Step, …"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from headgate.core.decision import Verdict
from headgate.present.words import told_quantity, told_share
from headgate.wire.answers import DebitDoc, MetricDoc
from headgate.wire.pacing import PaceDoc
from headgate.wire.rules import ExplainDoc, MatchDoc


class Mark(Enum):
    """How a step ends; the words stand beside the mark."""

    PASSES = "passes"
    STOPS = "stops here"
    NOTHING = "nothing to say"
    UNREACHED = "not reached"


TONES: Mapping[Mark, str] = {Mark.PASSES: "good", Mark.STOPS: "bad"}


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    title: str
    mark: Mark
    lines: tuple[str, ...] = ()
    rules: tuple[MatchDoc, ...] = ()
    metrics: tuple[MetricDoc, ...] = ()

    @property
    def tone(self) -> str:
        return TONES.get(self.mark, "")


ORDER = ("asks", "rules", "dice", "metrics", "exemption", "pacing", "budget")
STOPPED_BY: Mapping[str, str] = {
    Verdict.ON_HOLD.value: "rules",
    Verdict.REJECTED_BY_RATIO.value: "dice",
    Verdict.THRESHOLD_EXCEEDED.value: "metrics",
    Verdict.UNKNOWN_METRIC.value: "metrics",
    Verdict.METRIC_UNAVAILABLE.value: "metrics",
    Verdict.WRONG_AGENT.value: "asks",
    Verdict.PACED.value: "pacing",
    Verdict.OVER_BUDGET.value: "budget",
}


def stopped_at(doc: ExplainDoc) -> str:
    """The step that refused; empty: none did."""
    if doc.admitted:
        return ""
    if doc.verdict == Verdict.ON_HOLD.value and doc.rule is None:
        return "asks"
    return STOPPED_BY.get(doc.verdict, "metrics")


def steps_of(doc: ExplainDoc) -> list[Step]:
    found = [
        Step("asks", "Who asks", Mark.PASSES, _asks(doc)),
        Step("rules", "Rules", *_rules(doc)),
        Step("dice", "Dice", *_dice(doc)),
        Step("metrics", "Metrics", *_metrics(doc.metrics)),
        Step("exemption", "Exemption", *_exemption(doc)),
        Step("pacing", "Pacing", *_pacing(doc.pace)),
        Step("budget", "Budget", *_budget(doc.budget)),
    ]
    return _marked(found, stopped_at(doc))


def _marked(steps: Sequence[Step], stopped: str) -> list[Step]:
    if not stopped:
        return list(steps)
    at = ORDER.index(stopped)
    return [_with_mark(step, ORDER.index(step.name) - at) for step in steps]


def _with_mark(step: Step, after: int) -> Step:
    if after < 0:
        return step
    mark = Mark.STOPS if after == 0 else Mark.UNREACHED
    return Step(step.name, step.title, mark, step.lines, step.rules, step.metrics)


# --- each ---------------------------------------------------------------------------------------


def _asks(doc: ExplainDoc) -> tuple[str, ...]:
    levels = doc.app.split(":")
    told = f"{doc.app} asks about {doc.database}"
    named = f"rules meet it by any of its levels: {', '.join(levels)}" if len(levels) > 1 else ""
    elsewhere = f"ask at {doc.ask} about {doc.ask_database or doc.database}" if doc.ask else ""
    return tuple(line for line in (told, named, elsewhere) if line)


def _rules(doc: ExplainDoc) -> tuple[Mark, tuple[str, ...], tuple[MatchDoc, ...]]:
    if not doc.matched:
        return Mark.NOTHING, ("no rule is meant for it",), ()
    applies = any(rule.state == "applies" for rule in doc.matched)
    lines = () if applies else ("none of them applies just now",)
    return Mark.PASSES, lines, tuple(doc.matched)


def _dice(doc: ExplainDoc) -> tuple[Mark, tuple[str, ...]]:
    if doc.odds is None:
        return Mark.NOTHING, ("no dice are thrown for it",)
    told = (
        f"{told_share(doc.odds)} of such checks come through to the metrics; none was thrown now, "
        "and the verdict is that of the metrics"
    )
    lines = (told, doc.fairness) if doc.fairness else (told,)
    return Mark.PASSES, lines


def _metrics(
    metrics: Sequence[MetricDoc],
) -> tuple[Mark, tuple[str, ...], tuple[MatchDoc, ...], tuple[MetricDoc, ...]]:
    if not metrics:
        return Mark.NOTHING, ("no metric was looked at",), (), ()
    return Mark.PASSES, (), (), tuple(metrics)


def _exemption(doc: ExplainDoc) -> tuple[Mark, tuple[str, ...]]:
    exempting = [rule for rule in doc.matched if rule.kind == "exempt"]
    if not exempting:
        return Mark.NOTHING, ("it is not exempt from anything",)
    if doc.exempted:
        told = ", ".join(
            f"{one.metric} ({told_quantity(one.value, one.unit)}, threshold "
            f"{told_quantity(one.threshold, one.unit)})"
            for one in doc.exempted
        )
        return Mark.PASSES, (f"exempt, though it would reject others: {told}",)
    if not any(rule.state == "applies" for rule in exempting):
        return Mark.NOTHING, ("an exemption is meant for it, and does not apply now",)
    return Mark.NOTHING, ("it is exempt, but no metric would reject it",)


def _pacing(pace: PaceDoc | None) -> tuple[Mark, tuple[str, ...]]:
    if pace is None:
        return Mark.NOTHING, ("no metric of this database is paced",)
    by = f", set by {pace.metric}" if pace.metric else ""
    rate = f"{pace.rate:.3g} a second are released to all clients together{by}"
    points = [
        f"{one.metric} is kept at {told_quantity(one.set_point, one.unit)} "
        f"(now {told_quantity(one.value, one.unit)}, threshold "
        f"{told_quantity(one.threshold, one.unit)})"
        for one in pace.set_points
    ]
    waits = f"{pace.clients_total:,} clients wait for their turn" if pace.clients_total else ""
    return Mark.PASSES, tuple(line for line in (rate, *points, waits) if line)


def _budget(debit: DebitDoc | None) -> tuple[Mark, tuple[str, ...]]:
    if debit is None:
        return Mark.NOTHING, ("the check names no budget, or did not get as far",)
    told = f"{debit.budget}: {debit.state}; it would be charged {debit.cost_s:.3g} s of CPU"
    owed = ""
    if debit.owed_s is not None and debit.capacity_s is not None:
        owed = f"it owes {debit.owed_s:.3g} s of {debit.capacity_s:.3g} s"
    kept = f"kept {debit.ledger}" if debit.ledger else ""
    return Mark.PASSES, tuple(line for line in (told, owed, debit.note, kept) if line)
