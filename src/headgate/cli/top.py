"""`headgate top`: the operator's screen.   threads ──Scene──► compose ──frame──► screen
                                            keys ──press──► State, errands ──► threads

The agent is asked in threads, so that a hung agent hangs no key and no resize.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headgate.cli.options import Token, Url

POLL_TIMEOUT_S = 2.0
PATIENT_TIMEOUT_S = 10.0
"""For history and changes, which are more work than a status."""
VIEW_NAMES = ("overview", "shard", "clients", "rules", "budgets", "past", "explain")

Interval = Annotated[
    float, typer.Option(min=0.1, max=60, metavar="SECONDS", help="Time between two looks.")
]
Once = Annotated[bool, typer.Option("--once", help="Print one frame and leave.")]
Snapshot = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="Write one frame to a .svg, .html or text file and leave.",
    ),
]
ViewName = Annotated[
    str,
    typer.Option(
        "--view",
        metavar="NAME",
        help=f"The view to begin with: {', '.join(VIEW_NAMES)}, or its number.",
    ),
]
Wake = Annotated[
    bool,
    typer.Option("--wake", help="Keep its databases awake while this runs, as a check would."),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print the whole picture as one JSON document and leave."),
]


def top(
    interval: Interval = 0.5,
    once: Once = False,
    snapshot: Snapshot = None,
    view: ViewName = "overview",
    wake: Wake = False,
    as_json: AsJson = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Watch what is unhealthy, who is held, by what, and what to do; q leaves.

    Seven views, switched by the keys 1 to 7; ? tells all keys. Rules can be lifted and extended,
    clients held: each change is tried and shown first. Looking wakes no database that hibernates;
    the key w does, or --wake. A bar's end is the threshold; beyond it the bar is red. On a
    terminal without cursor control, and into a pipe, frames are printed one after another.
    """
    from headgate.cli.api import connect
    from headgate.cli.output import console
    from headgate.cli.poller import Poller
    from headgate.cli.top_export import one_frame, print_document, scroll
    from headgate.cli.top_run import Session

    name = _view(view)
    api = connect(url, token, timeout_s=POLL_TIMEOUT_S)
    patient = connect(url, token, timeout_s=PATIENT_TIMEOUT_S)
    if as_json:
        print_document(patient)
        return
    if once or snapshot is not None:
        one_frame(api, patient, name, interval, snapshot=snapshot, wake=wake)
        return
    screen = console()
    with Poller(api, interval, wake=wake, patient=patient) as poller:
        if screen.is_terminal and not screen.is_dumb_terminal:
            Session(screen, poller, patient, name).run()
        else:
            scroll(screen, poller, name, interval + POLL_TIMEOUT_S)


def _view(given: str) -> str:
    numbers = {str(at): name for at, name in enumerate(VIEW_NAMES, 1)}
    name = numbers.get(given, given)
    if name not in VIEW_NAMES:
        raise typer.BadParameter(
            f"{given!r} is no view; there are: {', '.join(VIEW_NAMES)}", param_hint="--view"
        )
    return name
