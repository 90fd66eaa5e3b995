"""`headgate token` and `headgate version`."""

from __future__ import annotations

from typing import Annotated

import typer

TokenName = Annotated[str, typer.Option(metavar="NAME", help="Who will hold it, for the audit.")]
TokenRole = Annotated[str, typer.Option(metavar="viewer|operator|peer", help="What it may do.")]
SmallJson = Annotated[bool, typer.Option("--json", help="Print as JSON, for programs.")]


def token(
    name: TokenName = "operator",
    role: TokenRole = "operator",
    as_json: SmallJson = False,
) -> None:
    """Make a random token, shown once.

    With the lines for the agent's settings file, which keeps only its SHA-256.
    """
    import hashlib
    import json
    import secrets

    if role not in ("viewer", "operator", "peer"):
        raise typer.BadParameter(f"--role {role!r} must be viewer, operator or peer")
    made = secrets.token_urlsafe(32)
    sha256 = hashlib.sha256(made.encode()).hexdigest()
    if as_json:
        print(json.dumps({"token": made, "name": name, "role": role, "sha256": sha256}))
        return
    print(f"token, shown this once: {made}\n")
    print("for the agent's settings file, then `kill -HUP` it:\n")
    quoted = json.dumps(name, ensure_ascii=False)
    print(f'[[tokens]]\nname = {quoted}\nrole = "{role}"\nsha256 = "{sha256}"')


def version(as_json: SmallJson = False) -> None:
    """Print the version of this command."""
    from headgate.version import VERSION

    print(f'{{"version": "{VERSION}"}}' if as_json else f"headgate {VERSION}")
