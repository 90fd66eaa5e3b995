"""What a person, a shell or a check waits for, by the processor's time; each has a bound.

.venv/bin/python -m bench.bounds [--rounds 5]

The best of several rounds counts, and a busy machine changes little in it. It exits with 1 where a
bound is broken. Most bounds are there for what grows faster than its input, so they are wide.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from tests.builders import NOW, member, metric, role, sample, shard_view

from bench.report import Goal, Report, chosen_of, options
from headgate.budgets.advice import advise
from headgate.budgets.compiled import compile_policy
from headgate.budgets.parse import parse_policy
from headgate.budgets.policy import Policy
from headgate.changes.reach import Place, parse_reach
from headgate.shard.api import shard_doc
from headgate.shard.model import MAX_MEMBERS
from headgate.shard.topology import Downstream, Role

MANY = 10_000


class Bound(NamedTuple):
    what: str
    most_ms: float
    prepare: Callable[[], Callable[[], object]]
    """Makes what is measured. A float that this returns is its own count of milliseconds."""


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    rounds, report = given.rounds, Report("bounds", chosen_of(given))
    best_ms = [min(round_ms(bound.prepare()) for _ in range(rounds)) for bound in BOUNDS]
    report.goals = [
        Goal(f"{bound.what}, CPU", ms, bound.most_ms, unit="ms")
        for bound, ms in zip(BOUNDS, best_ms, strict=True)
    ]
    report.end()
    return 0 if all(goal.held for goal in report.goals) else 1


def round_ms(measured: Callable[[], object]) -> float:
    began_s = time.process_time()
    said = measured()
    return said if isinstance(said, float) else (time.process_time() - began_s) * 1000


def largest_shard() -> Callable[[], object]:
    names = [f"db-{number}" for number in range(MAX_MEMBERS)]
    listed = tuple(Downstream(name, name, bytes_behind=1) for name in names)
    readings = {"lag": sample(0.1)}
    views = [member(name, role(upstream="db-a:5432"), readings=readings) for name in names]
    leader = member("db-a", role(Role.PRIMARY, downstream=listed), local=True)
    view, specs = shard_view(leader, *views), {"lag": metric("lag")}
    return lambda: shard_doc(view, specs, NOW)


def many_stars() -> Callable[[], object]:
    reach = parse_reach("shard:" + "*a" * 60 + "*b")
    return lambda: reach.meets(Place(shard="a" * 127))


def policy_of(values: int) -> Policy:
    match = [{"tag.tenant": f"t{n % values}", "username": "web"} for n in range(MANY)]
    rules = [{"match": one} for one in match]
    return parse_policy({"budgets": [{"name": "b", "rate": 20, "capacity": 200, "rules": rules}]})


def compiling() -> Callable[[], object]:
    policy = policy_of(MANY)
    return lambda: compile_policy(policy, 1)


def advising() -> Callable[[], object]:
    policy = policy_of(MANY // 2)
    return lambda: list(advise(policy))


def imported() -> Callable[[], float]:
    program = (
        "import time; began_s = time.process_time()\n"
        "import headgate\n"
        "print((time.process_time() - began_s) * 1000)"
    )
    return lambda: float(_printed("-c", program))


def helped() -> Callable[[], float]:
    # Of the whole process, by its own account at its end.
    program = (
        "import atexit, time\n"
        "atexit.register(lambda: print(f'\\n{time.process_time() * 1000}'))\n"
        "import sys; sys.argv = ['headgate', '--help']\n"
        "from headgate.__main__ import main; main()"
    )
    return lambda: float(_printed("-c", program).split()[-1])


def _printed(*argv: str) -> str:
    ran = subprocess.run([sys.executable, *argv], capture_output=True, text=True, check=True)
    return ran.stdout


BOUNDS = (
    Bound("import headgate", 25, imported),
    Bound("headgate --help", 250, helped),
    Bound(f"a shard of {MAX_MEMBERS:,} members as a document", 100, largest_shard),
    Bound("a reach of 60 stars, beside a name of 127", 100, many_stars),
    Bound(f"compiling {MANY:,} values", 1000, compiling),
    Bound(f"advice on {MANY:,} rules", 5000, advising),
)


if __name__ == "__main__":
    sys.exit(main())
