"""What to tell of a rule beside the others.   RuleBook, RuleSpec ──RuleAdvisor──► Advice

Asked with every rule of a list: a list of thousands is not to hold up checks.
"""

from __future__ import annotations

from itertools import islice

from headgate.core.lint import Advice
from headgate.core.rule_advice import Sparing, advise, not_held
from headgate.core.rule_settings import KnownMetrics, RuleSpec
from headgate.core.rules import NO_RULES, Kind, RuleBook

MAX_COMPARED = 20
"""With so many of the same target."""


class RuleAdvisor:
    """Whoever asks for a list gives `known_metrics` that remember what they found."""

    def __init__(self) -> None:
        self._spared = (NO_RULES, Sparing(()))

    def advice(
        self, spec: RuleSpec, book: RuleBook, known_metrics: KnownMetrics, wall_s: float
    ) -> tuple[Advice, ...]:
        known = known_metrics(spec.rule.database)
        alike = list(islice(book.alike(spec.rule.target), MAX_COMPARED))
        advice = advise(spec, alike, known, wall_s)
        if spec.rule.kind is Kind.HOLD:
            advice += not_held(spec.rule, self._sparing(book).of(spec.rule), wall_s)
        return tuple(advice)

    def _sparing(self, of: RuleBook) -> Sparing:
        """Made once of a book: each hold of a list asks for it."""
        book, sparing = self._spared
        if book is not of:
            self._spared = book, sparing = of, Sparing(of.rules)
        return sparing
