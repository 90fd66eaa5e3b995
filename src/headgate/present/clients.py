"""Clients: how each is now, and all of them as a tree by the levels of their names. Pure.

documents ──seen_of──► ClientSummary ──listing──► ClientRow, … ──► terminal, live screen, page

Rules match levels wherever they are in a name, and so does the tree: a level that more clients have
is further up. `a1:etl:nightly`, `b2:etl:nightly` and `etl:hourly` are below `etl`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from headgate.check.api import ClientDoc, ClientsDoc
from headgate.check.model import Verdict
from headgate.present.view import DASH, Block, Cell, Said, Table, Tone, columns, line
from headgate.present.words import age, age_text, per_s, told_share

if TYPE_CHECKING:
    from headgate.history.api import ClientsSumsDoc, SumsDoc

SILENT_AFTER_S = 60.0
THROTTLED_AFTER_S = 5.0
"""Rejected without a break for so long: shorter is the flicker of a metric at its threshold."""
PACED = "paced"
Place = tuple[str, str]
"""(client, database)"""


class CheckCounts(NamedTuple):
    """Checks of some time, or of a second on average, by what became of them."""

    admitted: float = 0
    rejected: float = 0
    paced: float = 0
    """Sent away until their turn."""
    by: tuple[tuple[str, int], ...] = ()

    @property
    def checks(self) -> float:
        return self.admitted + self.rejected + self.paced

    @property
    def throttled_share(self) -> float | None:
        """Rejected or paced; None: there was no check."""
        return (self.rejected + self.paced) / self.checks if self.checks else None

    def per_s(self, seconds: float) -> CheckCounts:
        if seconds == 1.0:
            return self
        return CheckCounts(
            self.admitted / seconds, self.rejected / seconds, self.paced / seconds, self.by
        )


NO_CHECKS = CheckCounts()


class Recent(NamedTuple):
    """Counts by client and database, over these seconds."""

    counts: Mapping[Place, CheckCounts]
    seconds: float
    is_whole: bool = True
    """A client that is not in it made no check; else nothing is known of it."""

    def of(self, docs: Sequence[ClientDoc]) -> CheckCounts | None:
        missing = NO_CHECKS if self.is_whole else None
        if len(docs) == 1:
            return self.counts.get((docs[0].client, docs[0].database), missing)
        return added(self.counts.get((one.client, one.database), missing) for one in docs)


class ClientSummary(NamedTuple):
    """One client, on all of its databases or on one of them."""

    name: str
    databases: tuple[str, ...]
    throttled_s: float | None
    """On the database where that is longest; None: it is not throttled."""
    by: str
    """What rejected it last, if its last check was rejected."""
    is_paced: bool
    seen_s_ago: float
    rates: CheckCounts | None
    """A second; None: not known."""
    hour: CheckCounts | None
    places: tuple[ClientSummary, ...] = ()
    """On each of its databases, where it has several."""

    @property
    def is_silent(self) -> bool:
        return self.seen_s_ago > SILENT_AFTER_S


# --- clients ------------------------------------------------------------------------------------


def seen_of(
    docs: Iterable[ClientDoc], recent: Recent | None = None, hour: Recent | None = None
) -> list[ClientSummary]:
    by_name: dict[str, list[ClientDoc]] = {}
    for doc in docs:
        by_name.setdefault(doc.client, []).append(doc)
    found = []
    for mine in by_name.values():
        places: tuple[ClientSummary, ...] = ()
        longest = mine[0]
        if len(mine) > 1:
            longest = max(mine, key=lambda doc: throttled_for(doc) or 0.0)
            places = tuple(_seen([doc], doc, recent, hour) for doc in mine)
        found.append(_seen(mine, longest, recent, hour, places))
    return found


def _seen(
    docs: Sequence[ClientDoc],
    longest: ClientDoc,
    recent: Recent | None,
    hour: Recent | None,
    places: tuple[ClientSummary, ...] = (),
) -> ClientSummary:
    counts = recent.of(docs) if recent is not None else None
    is_alone, is_rejected = len(docs) == 1, longest.rejected_for_s is not None
    return ClientSummary(
        name=longest.client,
        databases=(longest.database,) if is_alone else tuple(sorted(d.database for d in docs)),
        throttled_s=throttled_for(longest),
        by=throttled_by(longest.last_verdict, longest.rejected_by) if is_rejected else "",
        is_paced=longest.last_verdict == Verdict.PACED.value,
        seen_s_ago=longest.last_seen_s_ago if is_alone else min(d.last_seen_s_ago for d in docs),
        rates=counts.per_s(recent.seconds) if counts is not None and recent is not None else None,
        hour=hour.of(docs) if hour is not None else None,
        places=places,
    )


def sums_of(doc: ClientsSumsDoc) -> Recent:
    counts = {(one.client, one.database): counts_of(one.sums) for one in doc.clients}
    return Recent(counts, doc.seconds or 1.0)


def counts_of(sums: SumsDoc) -> CheckCounts:
    paced = sums.by_reason.get(PACED, 0)
    by = tuple((told.by, told.count) for told in sums.by[:3])
    return CheckCounts(sums.admitted, sums.rejected - paced, paced, by)


def added(counts: Iterable[CheckCounts | None]) -> CheckCounts | None:
    """None where one is not known: a sum of the others would read like all."""
    admitted = rejected = paced = 0.0
    by: Counter[str] = Counter()
    for one in counts:
        if one is None:
            return None
        admitted, rejected, paced = admitted + one[0], rejected + one[1], paced + one[2]
        for name, count in one.by:
            by[name] += count
    return CheckCounts(admitted, rejected, paced, tuple(by.most_common(3)))


# --- its state in words -------------------------------------------------------------------------


def throttled_for(doc: ClientDoc) -> float | None:
    """None: admitted, silent for so long that nobody knows, or rejected only just now."""
    for_s = doc.rejected_for_s
    if for_s is None or for_s < THROTTLED_AFTER_S or doc.last_seen_s_ago > SILENT_AFTER_S:
        return None
    return for_s


_BY_VERDICT = {
    Verdict.ON_HOLD.value: "the agent: no client name, or its state is lost",
    Verdict.PACED.value: "pacing",
    Verdict.OVER_BUDGET.value: "a budget",
    Verdict.UNKNOWN_METRIC.value: "an unknown metric",
    Verdict.METRIC_UNAVAILABLE.value: "a metric without a value",
    Verdict.WRONG_AGENT.value: "checking at the wrong agent",
}


def throttled_by(verdict: str, by: str) -> str:
    """`shard/lag`, `rule r7`, `ratio rule r7`, `budget etl`, `pacing`."""
    kind, _, name = by.partition(":")
    if kind == "rule" and name:
        is_ratio = verdict == Verdict.REJECTED_BY_RATIO.value
        return f"ratio rule {name}" if is_ratio else f"rule {name}"
    if kind == "budget" and name:
        return f"budget {name}"
    return by if by and by not in _BY_VERDICT else _BY_VERDICT.get(by or verdict, by or verdict)


def by_words(by: str) -> str:
    """As history names it, which keeps no verdict with it."""
    return throttled_by("", by)


def loud(text: str, tone: Tone) -> Said:
    """For a terminal: the word for a bad state is in capitals."""
    return Said(text.replace("throttled", "THROTTLED", 1) if tone == "bad" else text, tone)


class ClientState(NamedTuple):
    word: str
    tone: Tone
    detail: str = ""


def state_of(doc: ClientDoc) -> Said:
    word, tone, detail = _state(_seen([doc], doc, None, None))
    return Said(f"{word} {detail}".rstrip(), tone)


def _state(one: ClientSummary) -> ClientState:
    by = "" if one.is_paced else f"by {one.by}"
    if one.throttled_s is not None:
        if one.is_paced:
            return ClientState(f"paced {age(one.throttled_s)}", "warned")
        return ClientState(f"throttled {age(one.throttled_s)}", "bad", by)
    if one.is_silent:
        return ClientState("silent", "quiet")
    share = one.rates.throttled_share if one.rates is not None else None
    if one.rates is not None and share and one.rates.by:
        detail = f"lately, mostly by {by_words(one.rates.by[0][0])}"
        return ClientState(f"{told_share(share)} throttled", "warned", detail)
    if one.by:
        return ClientState("paced" if one.is_paced else "rejected", "warned", by)
    return ClientState("admitted", "good")


def state_of_all(clients: Sequence[ClientSummary]) -> ClientState:
    """Of a level; of one client, its own."""
    if len(clients) == 1:
        return _state(clients[0])
    throttled = [one for one in clients if one.throttled_s is not None]
    total = len(clients)
    if throttled:
        longest = max(throttled, key=lambda one: one.throttled_s or 0.0)
        tone: Tone = "warned" if all(one.is_paced for one in throttled) else "bad"
        detail = f"longest {age(longest.throttled_s)}, by {longest.by}"
        return ClientState(f"{len(throttled):,} of {total:,} throttled", tone, detail)
    awake = sum(not one.is_silent for one in clients)
    if not awake:
        return ClientState("silent", "quiet")
    return ClientState("none throttled", "good", f"{awake:,} of {total:,} check")


# --- the tree -----------------------------------------------------------------------------------


class Branch(NamedTuple):
    """A level with the clients that have it, or one client: by name alone."""

    app: str
    """What its history is found by: all levels down to here, in the order its clients have them."""
    parts: tuple[tuple[str, bool], ...]
    """The levels of its name; True: a row above has this one."""
    label: str
    """What its name adds to the rows above."""
    names: tuple[str, ...]
    below: tuple[Branch, ...] = ()


def _branch_of(
    app: str, above: tuple[str, ...], names: tuple[str, ...], below: tuple[Branch, ...] = ()
) -> Branch:
    parts = tuple((token, token in above) for token in app.split(":"))
    label = ":".join(token for token, is_known in parts if not is_known) or "(itself)"
    return Branch(app, parts, label, names, below)


@lru_cache(maxsize=16)
def grown(names: tuple[str, ...]) -> tuple[Branch, ...]:
    """The same for the same names: a live view looks at them every second."""
    levels = {name: tuple(dict.fromkeys(name.split(":"))) for name in names}
    places: dict[str, list[int]] = {}
    for tokens in levels.values():
        for at, token in enumerate(tokens):
            places.setdefault(token, []).append(at)
    # The most common level first; of equals, the one that clients mostly have earlier. The same for
    # all clients, so that two that have the same levels come together.
    rank = {token: (-len(at), sum(at) / len(at), token) for token, at in places.items()}
    paths = [(tuple(sorted(tokens, key=rank.__getitem__)), name) for name, tokens in levels.items()]
    return _below(paths, ())


_Paths = Sequence[tuple[tuple[str, ...], str]]


def _below(paths: _Paths, above: tuple[str, ...]) -> tuple[Branch, ...]:
    by_token: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    found: list[Branch] = []
    for path, name in paths:
        if len(path) == len(above):
            found.append(_branch_of(name, above, (name,)))
        else:
            by_token.setdefault(path[len(above)], []).append((path, name))
    return (*found, *(_branch(mine, (*above, token), above) for token, mine in by_token.items()))


def _branch(paths: _Paths, levels: tuple[str, ...], above: tuple[str, ...]) -> Branch:
    if len(paths) == 1:
        return _branch_of(paths[0][1], above, (paths[0][1],))
    below = _below(paths, levels)
    if len(below) == 1:  # All of them have the next level, too: one row for both.
        return _branch(paths, paths[0][0][: len(levels) + 1], above)
    names, wanted = tuple(name for _, name in paths), set(levels)
    tokens = dict.fromkeys(token for token in names[0].split(":") if token in wanted)
    return _branch_of(":".join(tokens), above, names, below)


# --- order --------------------------------------------------------------------------------------

Order = Callable[[str, Sequence[ClientSummary]], tuple[object, ...]]


def _by_throttled(app: str, clients: Sequence[ClientSummary]) -> tuple[object, ...]:
    """Longest first: all of them grow alike, so that no row jumps while it is read."""
    if len(clients) == 1:
        return -(clients[0].throttled_s or 0.0), clients[0].is_silent, app
    longest = max(one.throttled_s or 0.0 for one in clients)
    return -longest, all(one.is_silent for one in clients), app


def _by_rate(pick: Callable[[CheckCounts], float]) -> Order:
    def key(app: str, clients: Sequence[ClientSummary]) -> tuple[object, ...]:
        return -sum(pick(one.rates) for one in clients if one.rates is not None), app

    return key


SORTS: Mapping[str, tuple[str, Order]] = {
    "throttled": ("throttled longest", _by_throttled),
    "rejected": ("rejected most, now", _by_rate(lambda one: one.rejected + one.paced)),
    "admitted": ("admitted most, now", _by_rate(lambda one: one.admitted)),
    "seen": ("last seen", lambda app, of: (min(one.seen_s_ago for one in of), app)),
    "name": ("name", lambda app, _: (app,)),
}


# --- rows ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a person wants to see of them."""

    text: str = ""
    sort: str = "throttled"
    throttled_only: bool = False
    opened: tuple[str, ...] = ()
    shut: tuple[str, ...] = ()
    open_up_to: int = 30
    """So many rows are unfolded unless a person folds them."""
    max_rows: int = 100
    max_below: int = 30
    """Rows of one level."""
    as_tree: bool = True
    by_database: bool = False
    """A client on several databases has a row for each below it."""


EVERYTHING = 1_000_000


class ClientRow(NamedTuple):
    branch: Branch
    depth: int
    clients: Sequence[ClientSummary]
    is_open: bool = False
    database: str = ""
    """Of a row for one database; empty: of all of its databases."""
    more: int = 0
    """Not a client: so many of this level are left out."""

    @property
    def app(self) -> str:
        return self.branch.app

    @property
    def parts(self) -> tuple[tuple[str, bool], ...]:
        return self.branch.parts

    @property
    def is_level(self) -> bool:
        return bool(self.branch.below)

    @property
    def label(self) -> str:
        return f"on {self.database}" if self.database else self.branch.label

    @property
    def state(self) -> ClientState:
        return state_of_all(self.clients)

    @property
    def rates(self) -> CheckCounts | None:
        return added(one.rates for one in self.clients)

    @property
    def hour(self) -> CheckCounts | None:
        return added(one.hour for one in self.clients)

    @property
    def seen_s_ago(self) -> float:
        return min((one.seen_s_ago for one in self.clients), default=0.0)

    @property
    def databases(self) -> tuple[str, ...]:
        return tuple(sorted({name for one in self.clients for name in one.databases}))

    @property
    def key(self) -> str:
        """`etl:nightly main`; of a level, or on several databases, `etl`: names have no spaces."""
        databases = () if self.is_level else self.clients[0].databases
        return f"{self.app} {databases[0]}" if len(databases) == 1 else self.app


@dataclass(frozen=True, slots=True)
class ClientListing:
    rows: tuple[ClientRow, ...]
    clients: int
    """That there are."""
    chosen: int
    """That the filter leaves."""
    throttled: int
    left_out: int
    """Of the chosen, for want of room."""


def listing(clients: Sequence[ClientSummary], wanted: Wanted) -> ClientListing:
    words = wanted.text.lower().split()
    chosen = {one.name: one for one in clients if _is_wanted(one, wanted, words)}
    names = tuple(chosen)
    branches = grown(names) if wanted.as_tree else tuple(_branch_of(n, (), (n,)) for n in names)
    most = wanted.open_up_to
    opens_all = bool(words) or most == EVERYTHING or _count(branches) <= most
    rows: list[ClientRow] = []
    _Lister(chosen, wanted, opens_all, SORTS[wanted.sort][1], rows.append).list(branches, 0)
    shown, left_out = _cut(rows, wanted.max_rows)
    throttled = sum(one.throttled_s is not None for one in clients)
    return ClientListing(tuple(shown), len(clients), len(chosen), throttled, left_out)


def _is_wanted(one: ClientSummary, wanted: Wanted, words: Sequence[str]) -> bool:
    """Every word is in its name, a database's, or in what is said of it."""
    if wanted.throttled_only and one.throttled_s is None:
        return False
    if not words:
        return True
    state = _state(one)
    about = " ".join((one.name, *one.databases, state.word, state.detail)).lower()
    return all(word in about for word in words)


def _count(branches: Iterable[Branch]) -> int:
    return sum(1 + _count(branch.below) for branch in branches)


def _cut(rows: Sequence[ClientRow], most: int) -> tuple[Sequence[ClientRow], int]:
    """`left_out` counts clients; those that a folded level sums up are not left out."""
    left_out = sum(row.more for row in rows[:most])
    for row in rows[most:]:
        if not (row.is_level and row.is_open) and not row.database:  # Whose clients follow.
            left_out += row.more or len(row.clients)
    return rows[:most], left_out


class _Lister(NamedTuple):
    seen: Mapping[str, ClientSummary]
    wanted: Wanted
    opens_all: bool
    order: Order
    add: Callable[[ClientRow], None]

    def list(self, branches: Sequence[Branch], depth: int) -> None:
        seen, order = self.seen, self.order
        found = [(one, [seen[name] for name in one.names]) for one in branches]
        found.sort(key=lambda pair: order(pair[0].app, pair[1]))
        most = self.wanted.max_below if depth else len(found)
        for branch, clients in found[:most]:
            is_open = bool(branch.below) and self._is_open(branch.app)
            self.add(ClientRow(branch, depth, clients, is_open))
            if is_open:
                self.list(branch.below, depth + 1)
            elif self.wanted.by_database and not branch.below:
                for place in clients[0].places:
                    self.add(ClientRow(branch, depth + 1, [place], database=place.databases[0]))
        if rest := found[most:]:
            more = sum(len(clients) for _, clients in rest)
            self.add(ClientRow(Branch("", (), "", ()), depth, (), more=more))

    def _is_open(self, app: str) -> bool:
        if app in self.wanted.shut:
            return False
        return self.opens_all or app in self.wanted.opened


# --- as a list ----------------------------------------------------------------------------------

Rates = Mapping[tuple[str, str], tuple[float, float]]
"""(database, client) → admitted and rejected a second."""
WIDE = 80
NOBODY = "no client has checked yet"


def clients_view(found: ClientsDoc) -> list[Block]:
    if not found.clients:
        return [line(Said(NOBODY, "quiet"))]
    return [clients_table(throttled_first(found.clients))]


def throttled_first(clients: Sequence[ClientDoc]) -> list[ClientDoc]:
    """The longest first; then those that checked last."""
    return sorted(clients, key=lambda c: (-(throttled_for(c) or 0.0), c.last_seen_s_ago))


def clients_table(clients: Sequence[ClientDoc], rates: Rates | None = None) -> Table:
    """With rates, a second's instead of all there were."""
    counts = ("admitted", "rejected") if rates is None else ("admitted/s", "rejected/s")
    names = columns(
        "client", "database", *counts, "seen", "now", right=(*counts, "seen"),
        database=WIDE, seen=WIDE,
    )  # fmt: skip
    return Table(names, [_client_row(client, rates) for client in clients])


def _client_row(client: ClientDoc, rates: Rates | None) -> list[Cell]:
    if rates is None:
        admitted, rejected = f"{client.admitted:,}", f"{client.rejected:,}"
    else:
        pair = rates.get((client.database, client.client), ())
        admitted, rejected = map(per_s, pair) if pair else (DASH, DASH)
    return [
        client.client,
        Said(client.database, "quiet"),
        admitted,
        Said(rejected, "" if rejected in ("0", DASH) else "bad"),
        Said(age_text(client.last_seen_s_ago), "quiet"),
        loud(*state_of(client)),
    ]
