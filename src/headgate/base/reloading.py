"""Whether a settings file that is read again may replace the current one. Pure.

A file is often cut short or empty for a moment while something writes it, and stays so when a disk
is full. To follow such a file would open the gate: nothing decides checks about a
database that is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headgate.errors import Fault


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What an operator says that the file does on purpose."""

    drop: frozenset[str] = frozenset()
    """Databases that the file may drop."""
    whole: bool = False
    """The file is complete, although it ends like one that was cut short."""


NOTHING = Confirmed()


Judged = Mapping[str, object]
"""What decides checks: for each database, everything that the file says about it."""


def reload_faults(
    judged: Judged,
    content: str,
    new_judged: Judged,
    new_content: str,
    confirmed: Confirmed = NOTHING,
) -> list[Fault]:
    """Why not, and how it is confirmed; of the file in force, and of the new one."""
    lost = sorted(set(judged) - set(new_judged) - confirmed.drop)
    faults = [
        Fault(
            f"databases.{name}",
            f"is no longer in the file. If that is intended: `headgate reload --drop {name}`, "
            "or restart the agent",
        )
        for name in lost
    ]
    cut = _ends_within_a_line(content, new_content)
    if not lost and new_content != content and content.startswith(new_content):
        cut = cut or any(new_judged.get(name) != said for name, said in judged.items())
    if cut and not confirmed.whole:
        message = (
            "ends like a file that was cut short while it was written. Write the complete file; if "
            "it is complete: `headgate reload --whole`, or restart the agent"
        )
        faults.append(Fault("", message))
    return faults


def _ends_within_a_line(content: str, new_content: str) -> bool:
    return content.endswith("\n") and not new_content.endswith("\n")
