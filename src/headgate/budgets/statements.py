"""What statements say, by the server's number of them.   statements probe ──► Statements ──► state

The extension counts statements by query id, and has no text. Every ten seconds while the database
is awake it is looked for, on a connection that the probes share. Only shapes are kept: no literal,
no comment ever gets past `shape_text`.
"""

from __future__ import annotations

import heapq
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import structlog

from headgate.base.ports import Clock
from headgate.budgets.model import Dialect
from headgate.budgets.readings import BudgetReadings
from headgate.budgets.sql_text import shape
from headgate.check.demand import Demands
from headgate.check.model import Activity
from headgate.errors import ProbeFailed

log = structlog.get_logger()

LOOK_INTERVAL_S = 10.0
NOTICE_INTERVAL_S = 2.0
"""A statement that is new among the most expensive ones gets its text this soon."""
ASK_AGAIN_S = 60.0
"""After this, a text that was not found is looked up again."""
MAX_TEXTS = 1000
MAX_CHARS = 2000
MAX_WANTED = 100
"""How many texts are looked up at once: as many as are ever shown."""
NEVER_BEFORE = float("-inf")
NOT_LOOKED = "texts have not been read yet: the first look is within ten seconds"
ASLEEP = "the database hibernates: texts are read only while clients check"
NOT_SEEN = (
    "its text was not seen yet: the agent reads sessions every ten seconds; with the extension "
    "`pg_stat_statements` in the agent's database it finds texts at once"
)
NOT_TOLD = "its text is not visible: `GRANT pg_monitor TO {role}` makes it visible to the agent"
NO_ROLE = "the agent's role"
_TIGHT = re.compile(r" (?=[,)\].;])|(?<=[(\[.]) | (?=::)|(?<=::) ")
_HIDDEN = ("<insufficient privilege>", "<backend information not available>")


class StatementsProbe(Protocol):
    async def read(self, wanted: Sequence[int]) -> Sequence[tuple[int, str]]:
        """Query ids and texts: of what runs, and of `wanted` where the server keeps texts. Or
        ProbeFailed with the cause."""
        ...


class CountedDatabase(Protocol):
    """A database whose statements are counted."""

    @property
    def readings(self) -> BudgetReadings | None: ...


class StatementTexts:
    """One database's: the least recently seen go first."""

    def __init__(self) -> None:
        self._texts: OrderedDict[int, str] = OrderedDict()
        self._asked_at: OrderedDict[int, float] = OrderedDict()
        self._hidden = False
        self._look_at = NEVER_BEFORE
        self.fault = NOT_LOOKED
        """Why nothing new comes; empty: it comes."""

    def learn(self, seen: Sequence[tuple[int, str]]) -> None:
        self.fault = ""
        self._hidden = any(text in _HIDDEN for _, text in seen)
        for query_id, text in seen:
            if known := self._texts.pop(key_of(query_id), "") or shape_text(text):
                self._texts[key_of(query_id)] = known
        while len(self._texts) > MAX_TEXTS:
            self._texts.popitem(last=False)

    def is_due(self, readings: BudgetReadings | None, mono_s: float) -> bool:
        """Whether to look now: it is time, or a new statement is among the most expensive."""
        return mono_s >= self._look_at or bool(self._missing(readings, mono_s))

    def wanted(self, readings: BudgetReadings | None, mono_s: float) -> list[int]:
        """To ask for now: those that cost most and have no text, but for those asked for lately."""
        found = self._missing(readings, mono_s)
        self._look_at = mono_s + LOOK_INTERVAL_S
        for query_id in found:
            self._asked_at[key_of(query_id)] = mono_s
            self._asked_at.move_to_end(key_of(query_id))
        while len(self._asked_at) > MAX_TEXTS:
            self._asked_at.popitem(last=False)
        return found

    def _missing(self, readings: BudgetReadings | None, mono_s: float) -> list[int]:
        patterns = readings.patterns if readings is not None else ()
        dearest = heapq.nlargest(MAX_WANTED, patterns, key=lambda p: p.cpu_total_ns)
        return [p.query_id for p in dearest if self._is_missing(p.query_id, mono_s)]

    def _is_missing(self, query_id: int, mono_s: float) -> bool:
        key = key_of(query_id)
        asked_at = self._asked_at.get(key)
        return key not in self._texts and (asked_at is None or mono_s >= asked_at + ASK_AGAIN_S)

    def text(self, query_id: int) -> str | None:
        return self._texts.get(key_of(query_id))

    def cause(self, role: str) -> str:
        """Why one has no text."""
        if self.fault:
            return self.fault
        return NOT_TOLD.format(role=role or NO_ROLE) if self._hidden else NOT_SEEN

    def __len__(self) -> int:
        return len(self._texts)


class Statements:
    def __init__(
        self,
        watched: Callable[[], Mapping[str, tuple[CountedDatabase | None, StatementTexts]]],
        demands: Demands,
        clock: Clock,
        open_probe: Callable[[str], StatementsProbe | None],
    ) -> None:
        """`watched`: the databases whose statements are counted, as they are now."""
        self._watched = watched
        self._demands = demands
        self._clock = clock
        self._open_probe = open_probe

    async def run(self) -> None:
        while True:
            await self.look()
            await self._clock.sleep(NOTICE_INTERVAL_S)

    async def look(self) -> None:
        """At those whose turn it is."""
        mono_s = self._clock.now().mono_s
        for database, (watch, texts) in list(self._watched().items()):
            demand = self._demands.by_database.get(database)
            if demand is not None and demand.state is Activity.HIBERNATING:
                texts.fault = ASLEEP
            elif watch is not None and texts.is_due(watch.readings, mono_s):
                await self._look_at(database, watch, texts)

    async def _look_at(self, database: str, watch: CountedDatabase, texts: StatementTexts) -> None:
        probe = self._open_probe(database)
        if probe is None:
            return
        wanted = texts.wanted(watch.readings, self._clock.now().mono_s)
        try:
            texts.learn(await probe.read(wanted))
        except ProbeFailed as failure:
            if texts.fault != failure.detail:
                log.warning("statements.not_read", database=database, detail=failure.detail)
            texts.fault = failure.detail


def key_of(query_id: int) -> int:
    """Servers number them with a sign in one place, and without in another."""
    return query_id % 2**64


def shape_text(text: str) -> str:
    """The statement without literals and comments, for people; empty where that is not certain."""
    # With standard_conforming_strings off, \' does not end a literal: what follows could be one.
    if text in _HIDDEN or "\\'" in text:
        return ""
    told = shape(text.encode(errors="replace"), Dialect.POSTGRES).decode(errors="replace").strip()
    if " ; " in told:
        return ""  # Several statements in one text: which of them it is, nobody knows.
    tight = _TIGHT.sub("", told)
    return tight if len(tight) <= MAX_CHARS else f"{tight[: MAX_CHARS - 1]}…"
