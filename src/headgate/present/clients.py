"""Clients as a tree by the levels of their names. Pure.   documents ──► Seen ──grown──► Node

Rules match levels wherever they stand, and so does the tree: a level that more clients have is
further up. `a1:etl:nightly`, `b2:etl:nightly` and `etl:hourly` hang below `etl`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from headgate.core.decision import Verdict
from headgate.present.view import Said, Tone
from headgate.present.words import age
from headgate.wire.reasons import duration

if TYPE_CHECKING:
    from headgate.wire.history import ClientsSumsDoc, SumsDoc
    from headgate.wire.status import ClientDoc

SILENT_AFTER_S = 60.0
HELD_AFTER_S = 5.0
"""Refused without a break for so long: shorter is the flicker of a metric at its threshold."""
PACED = "paced"
Place = tuple[str, str]
"""(client, database)"""


class Counts(NamedTuple):
    """Checks of some time, by what became of them."""

    admitted: int = 0
    refused: int = 0
    delayed: int = 0
    """Told to come back when its turn is."""
    by: tuple[tuple[str, int], ...] = ()

    @property
    def checks(self) -> int:
        return self.admitted + self.refused + self.delayed

    @property
    def held_share(self) -> float | None:
        """Refused or delayed; None: nobody asked."""
        return (self.refused + self.delayed) / self.checks if self.checks else None


@dataclass(frozen=True, slots=True)
class Seen:
    """One client, on all of its databases."""

    name: str
    tokens: tuple[str, ...]
    databases: tuple[str, ...]
    held_for_s: float | None
    """On the database where that is longest; None: not held."""
    held_by: str
    is_paced: bool
    seen_s_ago: float
    minute: Counts | None
    """None: not known."""
    hour: Counts | None


@dataclass(frozen=True, slots=True)
class Node:
    """A level with the clients that have it, or one client."""

    app: str
    """What it is asked for by: all levels down to here, in the order its clients have them."""
    above: frozenset[str]
    """Levels that the row above has told."""
    clients: tuple[Seen, ...]
    below: tuple[Node, ...] = ()

    @property
    def only(self) -> Seen | None:
        return None if self.below else self.clients[0]


# --- clients ------------------------------------------------------------------------------------


def seen_of(
    docs: Iterable[ClientDoc], minute: ClientsSumsDoc | None, hour: ClientsSumsDoc | None
) -> list[Seen]:
    by_name: dict[str, list[ClientDoc]] = {}
    for doc in docs:
        by_name.setdefault(doc.client, []).append(doc)
    in_minute, in_hour = _by_client(minute), _by_client(hour)
    return [_seen(name, mine, in_minute, in_hour) for name, mine in by_name.items()]


_Sums: TypeAlias = "Mapping[str, list[SumsDoc]]"


def _by_client(doc: ClientsSumsDoc | None) -> _Sums | None:
    if doc is None:
        return None
    found: dict[str, list[SumsDoc]] = {}
    for one in doc.clients:
        found.setdefault(one.client, []).append(one.sums)
    return found


def _seen(name: str, docs: Sequence[ClientDoc], minute: _Sums | None, hour: _Sums | None) -> Seen:
    held = max(docs, key=lambda doc: -1.0 if _held_for(doc) is None else doc.refused_for_s or 0.0)
    return Seen(
        name=name,
        tokens=tuple(dict.fromkeys(name.split(":"))),
        databases=tuple(sorted(doc.database for doc in docs)),
        held_for_s=_held_for(held),
        held_by=held_by(held.last_verdict, held.refused_by),
        is_paced=held.last_verdict == Verdict.PACED.value,
        seen_s_ago=min(doc.last_seen_s_ago for doc in docs),
        minute=None if minute is None else counts_of(minute.get(name, ())),
        hour=None if hour is None else counts_of(hour.get(name, ())),
    )


def rejected_for(doc: ClientDoc) -> float | None:
    """None: admitted, or silent for so long that nobody knows."""
    return None if doc.last_seen_s_ago > SILENT_AFTER_S else doc.refused_for_s


def _held_for(doc: ClientDoc) -> float | None:
    held_s = rejected_for(doc)
    return None if held_s is None or held_s < HELD_AFTER_S else held_s


def counts_of(sums: Iterable[SumsDoc]) -> Counts:
    admitted = refused = delayed = 0
    by: Counter[str] = Counter()
    for one in sums:
        paced = one.by_reason.get(PACED, 0)
        admitted, delayed = admitted + one.admitted, delayed + paced
        refused += one.refused - paced
        by.update({told.by: told.count for told in one.by})
    return Counts(admitted, refused, delayed, tuple(by.most_common(3)))


def added(counts: Iterable[Counts | None]) -> Counts | None:
    """None where one is not known: a sum of what is left would read like all."""
    known = list(counts)
    told = [one for one in known if one is not None]
    if len(told) < len(known):
        return None
    by: Counter[str] = Counter()
    for one in told:
        by.update(dict(one.by))
    return Counts(
        sum(one.admitted for one in told),
        sum(one.refused for one in told),
        sum(one.delayed for one in told),
        tuple(by.most_common(3)),
    )


_BY_VERDICT = {
    Verdict.ON_HOLD.value: "the agent: no client name, or its state is lost",
    Verdict.PACED.value: "pacing",
    Verdict.OVER_BUDGET.value: "a budget",
    Verdict.UNKNOWN_METRIC.value: "an unknown metric",
    Verdict.METRIC_UNAVAILABLE.value: "a metric without a value",
    Verdict.WRONG_AGENT.value: "checking at the wrong agent",
}


def held_by(verdict: str, by: str) -> str:
    """`shard/lag`, `rule r7`, `dice of rule r7`, `budget etl`, `pacing`."""
    kind, _, name = by.partition(":")
    if kind == "rule" and name:
        return (
            f"dice of rule {name}" if verdict == Verdict.REJECTED_BY_RATIO.value else f"rule {name}"
        )
    if kind == "budget" and name:
        return f"budget {name}"
    return by if by and by not in _BY_VERDICT else _BY_VERDICT.get(by or verdict, by or verdict)


def by_words(by: str) -> str:
    """As history names it, where the verdict is not told besides."""
    return held_by("", by)


def held_words(for_s: float, by: str, *, is_paced: bool) -> tuple[Tone, str, str]:
    lasted = age(for_s) if for_s >= 1 else duration(for_s)
    if is_paced:
        return "warned", f"waits {lasted}", f"by {by}"
    return "bad", f"held {lasted}", f"by {by}"


def state_of(doc: ClientDoc) -> Said:
    if doc.last_seen_s_ago > SILENT_AFTER_S:
        return Said("silent", "quiet")
    if doc.refused_for_s is None:
        return Said("admitted", "good")
    by, is_paced = held_by(doc.last_verdict, doc.refused_by), doc.last_verdict == "PACED"
    tone, word, told = held_words(doc.refused_for_s, by, is_paced=is_paced)
    return Said(f"{word} {told}", tone)


# --- the tree -----------------------------------------------------------------------------------


def grown(clients: Iterable[Seen]) -> list[Node]:
    known = list(clients)
    rank = _ranks(known)
    paths = [(tuple(sorted(one.tokens, key=rank.__getitem__)), one) for one in known]
    return _below(paths, ())


_Paths = Sequence[tuple[tuple[str, ...], Seen]]
_Rank = tuple[int, float, str]


def _ranks(known: Iterable[Seen]) -> dict[str, _Rank]:
    """The most common level first; of equals, the one that clients mostly say earlier. The same
    for all clients, so that two that have the same levels meet."""
    places: dict[str, list[int]] = {}
    for one in known:
        for at, token in enumerate(one.tokens):
            places.setdefault(token, []).append(at)
    return {name: (-len(at), sum(at) / len(at), name) for name, at in places.items()}


def _below(paths: _Paths, above: tuple[str, ...]) -> list[Node]:
    by_token: dict[str, list[tuple[tuple[str, ...], Seen]]] = {}
    found: list[Node] = []
    for path, one in paths:
        if len(path) == len(above):
            found.append(Node(one.name, frozenset(above), (one,)))
        else:
            by_token.setdefault(path[len(above)], []).append((path, one))
    return [*found, *(_node(mine, (*above, token), above) for token, mine in by_token.items())]


def _node(paths: _Paths, levels: tuple[str, ...], above: tuple[str, ...]) -> Node:
    if len(paths) == 1:
        return Node(paths[0][1].name, frozenset(above), (paths[0][1],))
    below = _below(paths, levels)
    if len(below) == 1:  # All of them have the next level, too: told as one.
        return _node(paths, _shared(paths, levels), above)
    clients = tuple(one for _, one in paths)
    return Node(_name(clients[0], levels), frozenset(above), clients, tuple(below))


def _shared(paths: _Paths, levels: tuple[str, ...]) -> tuple[str, ...]:
    return paths[0][0][: len(levels) + 1]


def _name(client: Seen, levels: Iterable[str]) -> str:
    wanted = set(levels)
    return ":".join(token for token in client.tokens if token in wanted)
