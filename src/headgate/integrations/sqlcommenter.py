"""Tags on a statement, as SQLCommenter writes them:   SELECT 1 /*app='etl%3Anightly'*/

Tags are of a session, not of a statement: made once, they always give the same text, and what
keeps statements by their text (prepared statements, plan caches, pg_stat_statements on old
servers) keeps one of each. A trace id would make every statement a new one; tags that change
belong out of band, where the driver has such a place:

    Postgres (libpq)      application_name      of a connection, changed by SET
    MySQL, MariaDB        program_name          an attribute of the connection, set when it opens

By the specification a statement that carries a comment already is left as it is, so that nothing
is tagged twice and no hint is broken.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote

from headgate.base.names import parse_identity
from headgate.errors import Fault, InvalidSettings

MAX_KEY_BYTES = 65
MAX_VALUE_BYTES = 1024
MAX_TAGS = 32
# Postgres keeps that much of a name, and cuts the rest off at the end.
MAX_APPLICATION_NAME_BYTES = 63

# What may hide a comment's beginning: strings, quoted names, dollar quotes, and comments.
_PIECE = r"""
    "(?:[^"]|"")*" | `(?:[^`]|``)*` | \$(?P<mark>[A-Za-z_\x80-\uffff][\w]*|)\$.*?\$(?P=mark)\$
"""
_STANDARD = re.compile(rf"'(?:[^']|'')*' | {_PIECE}", re.VERBOSE | re.DOTALL)
# With backslashes, as MySQL and Postgres's E'…' read them.
_ESCAPED = re.compile(rf"'(?:[^'\\]|''|\\.)*' | {_PIECE}", re.VERBOSE | re.DOTALL)
# ASCII's alone: to a server a no-break space is a letter, and in bytes half of one.
_TAIL = " \t\n\r\f\v;"


class Tags(Mapping[str, str]):
    """Of a session. `Tags(app="etl:nightly").on("SELECT 1")`; equal tags write equal text."""

    __slots__ = ("_doubled", "_tags", "comment")

    def __init__(self, tags: Mapping[str, str] | None = None, /, **more: str) -> None:
        given = {**(tags or {}), **more}
        faults = list(_faults(given))
        if faults:
            raise InvalidSettings(faults)
        self._tags = {key: given[key] for key in sorted(given) if given[key]}
        pairs = ",".join(f"{_encoded(key)}='{_encoded(value)}'" for key, value in self.items())
        self.comment = f"/*{pairs}*/" if pairs else ""
        self._doubled = self.comment.replace("%", "%%")

    def on(self, statement: str, *, doubled: bool = False) -> str:
        """The statement with its tags. `doubled`: the driver reads `%` as the start of a
        placeholder, as those do that take `%s` and are given parameters."""
        if not self.comment or has_comment(statement):
            return statement
        head = statement.rstrip(_TAIL)
        tail = statement[len(head) :]
        return f"{head} {self._doubled if doubled else self.comment}{tail}" if head else statement

    def on_bytes(self, statement: bytes, *, doubled: bool = False) -> bytes:
        """In whichever encoding the connection has: what is read and written here is ASCII."""
        if not self.comment:
            return statement
        return self.on(statement.decode("latin-1"), doubled=doubled).encode("latin-1")

    def __or__(self, other: Mapping[str, str]) -> Tags:
        return Tags({**self, **other})

    def __getitem__(self, key: str) -> str:
        return self._tags[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tags)

    def __len__(self) -> int:
        return len(self._tags)

    def __hash__(self) -> int:
        return hash(self.comment)

    def __repr__(self) -> str:
        return f"Tags({self._tags!r})"


SIGNATURE_TAG = "headgate_sig"
MIN_SECRET_BYTES, MAX_SECRET_BYTES = 16, 64
MAX_EXPIRY_S = 2**53


def sign_tags(
    tags: Mapping[str, str], *, secret: bytes, username: str, expires_unix_s: float
) -> Tags:
    """The tags with a signature over all of them, for a proxy that trusts signed tags only.

    `username` is the database user of the statements. The signature expires: a comment copied from
    a log gives neither access to another role's budget nor lasting access to this one's. Sign once
    for a session, rather than for a statement, so that texts stay the same.
    """
    unsigned = Tags({key: value for key, value in tags.items() if key != SIGNATURE_TAG})
    faults = [*_signing_faults(secret, username, expires_unix_s), *_ambiguous(unsigned)]
    if faults:
        raise InvalidSettings(faults)
    expires = int(expires_unix_s)
    said = "".join(f"{key}={value}\n" for key, value in unsigned.items())
    message = f"v1\n{expires}\n{username}\n{said}".encode()
    digest = hmac.new(secret, message, hashlib.sha256).hexdigest()
    return unsigned | {SIGNATURE_TAG: f"v1.{expires}.{digest}"}


def _signing_faults(secret: bytes, username: str, expires_unix_s: float) -> Iterator[Fault]:
    if not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
        sizes = f"{MIN_SECRET_BYTES} to {MAX_SECRET_BYTES}"
        yield Fault("secret", f"has {len(secret)} bytes, must have {sizes}, as the proxy's has")
    if not username or "\n" in username or _size_bytes(username) < 0:
        yield Fault("username", "must be the database user that the statements are sent as")
    if not 0 < expires_unix_s < MAX_EXPIRY_S:
        yield Fault("expires_unix_s", "must be a time of the clock, in Unix seconds")


def _ambiguous(tags: Mapping[str, str]) -> Iterator[Fault]:
    """What is signed is lines of `key=value`: one tag must not read as two."""
    for key, value in tags.items():
        if "=" in key or "\n" in key or "\n" in value:
            yield Fault(
                f"tags.{key[:80]}", "cannot be signed: it has a line break, or = in its key"
            )


def as_tags(tags: Mapping[str, str] | None) -> Tags:
    return tags if isinstance(tags, Tags) else Tags(tags)


def has_comment(statement: str) -> bool:
    """Also where it might be one: which quotes hold depends on the server's settings, and a
    statement that goes untagged is better than one that is broken."""
    if "/*" not in statement and "--" not in statement:
        return False
    bares = (quoted.sub("''", statement) for quoted in (_STANDARD, _ESCAPED))
    # An odd quote is left over where a string did not end as this pattern thought it would.
    return any("/*" in bare or "--" in bare or "'" in bare.replace("''", "") for bare in bares)


def application_name(app: str) -> str:
    """A client's name as Postgres can keep it: the most particular levels give way first."""
    tokens = parse_identity(app).tokens
    for first in range(len(tokens)):
        name = ":".join(tokens[first:])
        if len(name.encode()) <= MAX_APPLICATION_NAME_BYTES:
            return name
    return tokens[-1].encode()[:MAX_APPLICATION_NAME_BYTES].decode(errors="ignore")


def _encoded(text: str) -> str:
    # A quote is never left to escape: it is encoded as well, and every reader decodes it.
    return quote(text, safe="")


def _faults(tags: Mapping[str, str]) -> Iterator[Fault]:
    if len(tags) > MAX_TAGS:
        yield Fault("tags", f"there are {len(tags)}, at most {MAX_TAGS}")
    for key, value in tags.items():
        if not 1 <= _size_bytes(key) <= MAX_KEY_BYTES:
            yield Fault("tags", f"the key {key[:80]!r} must be text of 1 to {MAX_KEY_BYTES} bytes")
        if not 0 <= _size_bytes(value) <= MAX_VALUE_BYTES:
            yield Fault(f"tags.{key[:80]}", f"must be text of at most {MAX_VALUE_BYTES} bytes")


def _size_bytes(text: str) -> int:
    """-1 for what is no text: half a character, as broken file names give."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return -1


NO_TAGS = Tags()
