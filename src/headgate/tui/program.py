"""One program behind `top`, `budget top` and `fleet status --watch`: which view it begins with."""

from __future__ import annotations

import typer

from headgate.cli.api import connect
from headgate.cli.output import console
from headgate.cli.top import Watched
from headgate.tui.poller import Poller
from headgate.tui.sources import Chosen
from headgate.tui.views import VIEWS

POLL_TIMEOUT_S = 2.0
PATIENT_TIMEOUT_S = 10.0
"""For history and changes, which are more work than a status."""


def watch(wanted: Watched) -> None:
    numbers = {view.key: view.name for view in VIEWS.values()}
    view = VIEWS.get(numbers.get(wanted.view, wanted.view))
    if view is None:
        told = f"{wanted.view!r} is no view; there are: {', '.join(VIEWS)}"
        raise typer.BadParameter(told, param_hint="--view")
    api = connect(wanted.url, wanted.token, timeout_s=POLL_TIMEOUT_S)
    patient = connect(wanted.url, wanted.token, timeout_s=PATIENT_TIMEOUT_S)
    narrowed = wanted.database is not None or bool(wanted.fleet)
    chosen = Chosen(wanted.database, wanted.fleet, wanted.interval_s if narrowed else None)
    if wanted.as_json or (wanted.snapshot is not None and wanted.snapshot.suffix == ".json"):
        from headgate.tui.export import print_document, save_document

        if wanted.snapshot is None:
            print_document(patient)
        else:
            save_document(wanted.snapshot, patient)
        return
    if wanted.once or wanted.snapshot is not None:
        from headgate.tui.export import one_frame

        one_frame(
            api, patient, view, wanted.interval_s, chosen=chosen, snapshot=wanted.snapshot,
            wake=wanted.wake,
        )  # fmt: skip
        return
    screen = console()
    with Poller(api, wanted.interval_s, wake=wanted.wake, patient=patient, chosen=chosen) as poller:
        if screen.is_terminal and not screen.is_dumb_terminal:
            from headgate.cli.signals import ending_on_signals
            from headgate.tui.session import Session

            with ending_on_signals():
                Session(screen, poller, patient, VIEWS, view.name).run()
        else:
            from headgate.tui.export import scroll

            scroll(screen, poller, view, wanted.interval_s, wanted.interval_s + POLL_TIMEOUT_S)
