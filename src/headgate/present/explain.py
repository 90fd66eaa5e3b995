"""Explain a check: every step from the client to the verdict, and what would have to change. Pure.

ExplainDoc ──explained──► Explained ──► terminal, live screen, page
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from headgate.check.answer_api import DebitDoc, MetricDoc
from headgate.check.model import State, Verdict
from headgate.check.reasons import duration
from headgate.pacing.api import PaceDoc
from headgate.present.metrics import nearest, threshold_text, value_text
from headgate.present.rules import chance_text, matched_view
from headgate.present.status import pace_words
from headgate.present.view import Block, Readings, Said, Tone, line
from headgate.present.words import bare_reason, share_text, told_quantity, told_share
from headgate.rules.api import ExplainDoc, MatchDoc


class StepMark(Enum):
    """How a step ends."""

    PASSES = "passes"
    REJECTS = "rejects"
    NOTHING = "does not apply"
    IDLE = "idle"
    UNREACHED = "not reached"


_TONES: Mapping[StepMark, Tone] = {StepMark.PASSES: "good", StepMark.REJECTS: "bad"}


@dataclass(frozen=True, slots=True)
class ExplainStep:
    name: str
    title: str
    mark: StepMark
    lines: tuple[str, ...] = ()
    rules: tuple[MatchDoc, ...] = ()
    metrics: tuple[MetricDoc, ...] = ()

    @property
    def tone(self) -> Tone:
        return _TONES.get(self.mark, "")

    @property
    def is_telling(self) -> bool:
        """Worth a line where room is scarce."""
        return (self.mark in _TONES or self.mark is StepMark.IDLE) and bool(
            self.lines or self.rules or self.metrics
        )


@dataclass(frozen=True, slots=True)
class Explained:
    doc: ExplainDoc
    title: str
    word: str
    tone: Tone
    why: str
    needed_title: str
    summary: str
    steps: tuple[ExplainStep, ...]


def explained(doc: ExplainDoc) -> Explained:
    chance = chance_text(doc)
    tone: Tone = "bad" if not doc.admitted else "warned" if chance else "good"
    word = f"admitted {chance}".rstrip() if doc.admitted else "rejected"
    if doc.idle:
        tone, word = "", "idle"
    return Explained(
        doc=doc,
        title=f"{doc.app} on {doc.database}",
        word=word,
        tone=tone,
        why=_why(doc),
        needed_title="To be admitted:",
        summary=_summary(doc),
        steps=_steps(doc),
    )


def explain_view(doc: ExplainDoc) -> list[Block]:
    found = explained(doc)
    word = found.word.replace("admitted", "ADMITTED", 1).replace("rejected", "REJECTED", 1)
    word = word if doc.admitted else f"{word}  {doc.verdict}"
    said = (f"{found.title}  would be ", Said(word, found.tone))
    if doc.idle:
        said = (f"{found.title}  ", Said("IDLE"))
    blocks: list[Block] = [line(*said)]
    blocks += [line(told) for told in (found.why, found.summary) if told]
    if doc.needed:
        blocks += [line(), line(found.needed_title), *(line(f"  · {one}") for one in doc.needed)]
    for step in found.steps:
        blocks += [line(), *_told(step)] if step.is_telling else []
    return blocks


def _told(step: ExplainStep) -> Iterator[Block]:
    yield line(Said(step.title, "strong"), Said(f"  {step.mark.value}", step.tone))
    yield from (line(f"  {told}") for told in step.lines)
    yield from matched_view(step.rules) if step.rules else ()
    yield from [Readings(step.metrics)] if step.metrics else ()


def _why(doc: ExplainDoc) -> str:
    reason = bare_reason(doc)
    if doc.idle:
        return reason[:1].upper() + reason[1:]
    if doc.admitted or doc.retry_after_ms is None:
        return reason
    retry = f"Retry after {duration(doc.retry_after_ms / 1000)}."
    return f"{reason}. {retry}" if reason else retry


def _summary(doc: ExplainDoc) -> str:
    exempted = [metric.name for metric in doc.metrics if metric.state == State.EXEMPTED.value]
    if doc.admitted and exempted:
        return f"EXEMPT: {', '.join(exempted)} would reject every other client."
    metric = nearest(doc.metrics)
    if metric is None or metric.share is None:
        has_any = "No metric has a value to compare with its threshold."
        return has_any if doc.metrics else "No metric was compared with its threshold."
    told = f"{value_text(metric)}; rejected {threshold_text(metric)}"
    share = share_text(metric.share)
    return f"Nearest to its threshold: {metric.name}, at {share} of it ({told})."


# --- steps --------------------------------------------------------------------------------------

_STOPPED_BY: Mapping[str, str] = {
    Verdict.ON_HOLD.value: "rules",
    Verdict.REJECTED_BY_RATIO.value: "ratio",
    Verdict.WRONG_AGENT.value: "client",
    Verdict.PACED.value: "pacing",
    Verdict.OVER_BUDGET.value: "budget",
}


def _stopped_at(doc: ExplainDoc) -> str:
    """The step that rejects; empty: none does."""
    if doc.admitted:
        return ""
    if doc.verdict == Verdict.ON_HOLD.value and doc.rule is None:
        return "client"
    return _STOPPED_BY.get(doc.verdict, "metrics")


def _steps(doc: ExplainDoc) -> tuple[ExplainStep, ...]:
    steps = [
        ExplainStep("client", "Client", StepMark.PASSES, _client(doc)),
        _rules(doc),
        ExplainStep("ratio", "Ratio", *_ratio(doc)),
        _metrics(doc),
        ExplainStep("exemption", "Exemption", *_exemption(doc)),
        ExplainStep("pacing", "Pacing", *_pacing(doc.pace)),
        ExplainStep("budget", "Budget", *_budget(doc.budget)),
    ]
    stopped = _stopped_at(doc)
    names = [step.name for step in steps]
    at = names.index(stopped) if stopped else len(steps)
    mark = StepMark.IDLE if doc.idle else StepMark.REJECTS
    rejects = [replace(step, mark=mark) for step in steps[at : at + 1]]
    unreached = [replace(step, mark=StepMark.UNREACHED) for step in steps[at + 1 :]]
    return (*steps[:at], *rejects, *unreached)


def _client(doc: ExplainDoc) -> tuple[str, ...]:
    levels = doc.app.split(":")
    matched = f"rules match any of its levels: {', '.join(levels)}" if len(levels) > 1 else ""
    database = doc.check_at_database or doc.database
    elsewhere = f"check at {doc.check_at}, database {database}" if doc.check_at else ""
    return tuple(line for line in (matched, elsewhere) if line)


def _rules(doc: ExplainDoc) -> ExplainStep:
    if not doc.matched:
        return ExplainStep("rules", "Rules", StepMark.NOTHING, ("no rule matches this client",))
    applies = any(rule.state == "applies" for rule in doc.matched)
    lines = () if applies else ("rules match, but none of them applies now",)
    return ExplainStep("rules", "Rules", StepMark.PASSES, lines, rules=tuple(doc.matched))


def _ratio(doc: ExplainDoc) -> tuple[StepMark, tuple[str, ...]]:
    if doc.odds is None:
        return StepMark.NOTHING, ("no ratio rule applies",)
    told = f"{told_share(doc.odds)} of such checks reach the metrics; this answer is of one of them"
    return StepMark.PASSES, (told, doc.fairness) if doc.fairness else (told,)


def _metrics(doc: ExplainDoc) -> ExplainStep:
    if not doc.metrics:
        return ExplainStep("metrics", "Metrics", StepMark.NOTHING, ("no metric was compared",))
    return ExplainStep("metrics", "Metrics", StepMark.PASSES, metrics=tuple(doc.metrics))


def _exemption(doc: ExplainDoc) -> tuple[StepMark, tuple[str, ...]]:
    exempting = [rule for rule in doc.matched if rule.kind == "exempt"]
    if not exempting:
        return StepMark.NOTHING, ("no rule exempts it",)
    if doc.exempted:
        told = ", ".join(
            f"{one.metric} ({told_quantity(one.value, one.unit)}, threshold "
            f"{told_quantity(one.threshold, one.unit)})"
            for one in doc.exempted
        )
        return StepMark.PASSES, (f"exempted, though it would reject other clients: {told}",)
    if not any(rule.state == "applies" for rule in exempting):
        return StepMark.NOTHING, ("a rule exempts it, but does not apply now",)
    return StepMark.NOTHING, ("it is exempt, and no metric had to be exempted",)


def _pacing(pace: PaceDoc | None) -> tuple[StepMark, tuple[str, ...]]:
    if pace is None:
        return StepMark.NOTHING, ("no metric of this database is paced",)
    return StepMark.PASSES, tuple(pace_words(pace))


def _budget(debit: DebitDoc | None) -> tuple[StepMark, tuple[str, ...]]:
    if debit is None:
        return StepMark.NOTHING, ("the check names no budget",)
    told = f"{debit.budget}: {debit.state}; it would be charged {debit.cost_s:.3g} s of CPU"
    debt = ""
    if debit.debt_s is not None and debit.capacity_s is not None:
        debt = f"its debt is {debit.debt_s:.3g} s of {debit.capacity_s:.3g} s"
    kept = f"kept {debit.ledger}" if debit.ledger else ""
    return StepMark.PASSES, tuple(line for line in (told, debt, debit.note, kept) if line)
