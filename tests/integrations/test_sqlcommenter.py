"""Tags on statements: what any reader of SQLCommenter decodes, and what stays untouched."""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import InvalidSettings
from headgate.integrations.sqlcommenter import (
    SIGNATURE_TAG,
    Tags,
    application_name,
    has_comment,
    sign_tags,
)
from headgate.integrations.transactions import TransactionBatch, begins, ends

TAGS = Tags(app="etl:nightly")
COMMENT = "/*app='etl%3Anightly'*/"


def read_tags(statement: str) -> dict[str, str]:
    """As the specification has a reader do it."""
    found = re.search(r"/\*((?:[^*]|\*(?!/))*)\*/[\s;]*\Z", statement)
    assert found is not None, statement
    pairs = (pair.partition("=") for pair in found[1].split(","))
    return {unquote(key): unquote(value.strip("'").replace("\\'", "'")) for key, _, value in pairs}


@pytest.mark.parametrize(
    ("statement", "written"),
    [
        ("SELECT 1", f"SELECT 1 {COMMENT}"),
        ("SELECT 1;", f"SELECT 1 {COMMENT};"),
        ("SELECT 1 ;\n ", f"SELECT 1 {COMMENT} ;\n "),
        ("SELECT '--', '/* */'", f"SELECT '--', '/* */' {COMMENT}"),
        ("SELECT 'it''s -- so'", f"SELECT 'it''s -- so' {COMMENT}"),
        ('SELECT "a--b", `c/*d`', f'SELECT "a--b", `c/*d` {COMMENT}'),
        ("SELECT $x$ -- $$ /* $x$", f"SELECT $x$ -- $$ /* $x$ {COMMENT}"),
        ("SELECT data #>> '{a}'", f"SELECT data #>> '{{a}}' {COMMENT}"),
    ],
)
def test_tags_go_to_the_end_and_before_the_semicolon(statement: str, written: str) -> None:
    assert TAGS.on(statement) == written


@pytest.mark.parametrize(
    "statement",
    [
        f"SELECT 1 {COMMENT}",
        "SELECT /*+ SeqScan(t) */ 1",
        "SELECT 1 -- by hand",
        # Whether the backslash escapes is the server's setting: one reading has a comment.
        r"SELECT 'a\' -- b'",
        r"SELECT 'a\' /* b */ '",
        "SELECT 1 /* unended",
        "",
        " ; ",
    ],
)
def test_a_statement_with_a_comment_is_left_alone(statement: str) -> None:
    assert TAGS.on(statement) == statement
    assert TAGS.on(TAGS.on(statement)) == TAGS.on(statement)


def test_percent_signs_are_doubled_where_a_driver_reads_them() -> None:
    assert TAGS.on("SELECT %s", doubled=True) % (1,) == f"SELECT 1 {COMMENT}"


@given(st.binary(max_size=30))
def test_bytes_of_any_encoding_stay_as_they_are(statement: bytes) -> None:
    assert TAGS.on_bytes(statement).replace(f" {COMMENT}".encode(), b"") == statement
    assert Tags().on_bytes(statement) == statement


@pytest.mark.parametrize("last", ["à", "…", "\N{NO-BREAK SPACE}"])
def test_a_last_letter_is_not_cut_in_two(last: str) -> None:
    assert (
        TAGS.on_bytes(f"SELECT 1 AS a{last};".encode())
        == f"SELECT 1 AS a{last} {COMMENT};".encode()
    )


def test_keys_are_sorted_and_empty_tags_left_out() -> None:
    tags = Tags({"route": "/x y", "app": "a"}, action="", db_driver="it's")
    assert tags.comment == "/*app='a',db_driver='it%27s',route='%2Fx%20y'*/"
    assert hash(tags) == hash(Tags(dict(reversed(list(tags.items())))))


texts = st.text(
    alphabet=st.one_of(st.sampled_from("'%*/\\,=-;"), st.characters(codec="utf-8")),
    min_size=1,
    max_size=16,
)


@given(st.dictionaries(texts, texts, min_size=1, max_size=5))
def test_every_reader_gets_back_what_was_written(tags: dict[str, str]) -> None:
    written = Tags(tags).on("SELECT 1")
    assert read_tags(written) == tags
    assert written.count("*/") == 1, "nothing within a value ends the comment"


@given(st.text(alphabet="a'\"`$-/*; \\n%\n", max_size=30))
def test_no_statement_is_tagged_twice(statement: str) -> None:
    once = TAGS.on(statement)
    assert TAGS.on(once) == once
    assert has_comment(statement) <= (once == statement)


@pytest.mark.parametrize("tags", [{"a" * 66: "b"}, {"a": "b" * 1025}, {"": "b"}, {"a": "\ud800"}])
def test_what_no_reader_would_take_is_rejected(tags: dict[str, str]) -> None:
    """R120: a key has at most 65 bytes, a value 1,024."""
    with pytest.raises(InvalidSettings):
        Tags(tags)


def test_an_application_name_keeps_the_general_levels() -> None:
    assert application_name("run42:etl:nightly") == "run42:etl:nightly"
    assert application_name("x" * 60 + ":etl:nightly") == "etl:nightly"
    assert application_name("x" * 100) == "x" * 63


def test_a_batch_checks_before_its_first_transaction() -> None:
    batch = TransactionBatch(3)
    assert [batch.is_due() for _ in range(7)] == [True, False, False, True, False, False, True]
    batch.rejected()
    assert batch.is_due()
    with pytest.raises(InvalidSettings):
        TransactionBatch(0)


def test_what_begins_and_ends_a_transaction() -> None:
    assert begins("begin") and begins(" START TRANSACTION") and not begins("SELECT 'begin'")
    assert begins("/* who; */ -- why\n BEGIN") and not begins("/* BEGIN") and not begins("--BEGIN")
    assert ends("COMMIT;") and ends("rollback") and not ends("ROLLBACK TO SAVEPOINT a")


# --- signed (R149) -----------------------------------------------------------------------------

SECRET = b"sixteen bytes ok"
SIGNING: dict[str, Any] = {
    "secret": SECRET, "username": "app", "expires_unix_s": 1_700_000_000,
}  # fmt: skip


def test_a_signature_is_over_the_user_the_end_and_every_tag_by_key() -> None:
    """As a proxy reads it: lines, sorted by key."""
    signed = sign_tags({"priority": "0", "app": "etl:nightly"}, **SIGNING)
    message = b"v1\n1700000000\napp\napp=etl:nightly\npriority=0\n"
    digest = hmac.new(SECRET, message, hashlib.sha256).hexdigest()
    assert signed[SIGNATURE_TAG] == f"v1.1700000000.{digest}"
    assert read_tags(signed.on("SELECT 1")) == dict(signed)


@pytest.mark.parametrize(
    "other",
    [
        ({"app": "web"}, SIGNING),
        ({"app": "etl", "priority": "0"}, SIGNING),
        ({"app": "etl"}, {**SIGNING, "username": "root"}),
        ({"app": "etl"}, {**SIGNING, "expires_unix_s": 1_700_000_001}),
        ({"app": "etl"}, {**SIGNING, "secret": b"another sixteen!"}),
    ],
    ids=["value", "more tags", "user", "end", "secret"],
)
def test_nothing_that_is_signed_can_be_changed(other: tuple[dict[str, str], Any]) -> None:
    tags, signing = other
    ours = sign_tags({"app": "etl"}, **SIGNING)
    assert sign_tags(tags, **signing)[SIGNATURE_TAG] != ours[SIGNATURE_TAG]


def test_signing_again_replaces_the_signature() -> None:
    once = sign_tags({"app": "etl"}, **SIGNING)
    assert sign_tags(once, **SIGNING) == once


@pytest.mark.parametrize(
    ("tags", "more"),
    [
        ({"app": "etl\npriority=0"}, {}),
        ({"a=b": "c"}, {}),
        ({"app": "etl"}, {"secret": b"short"}),
        ({"app": "etl"}, {"secret": b"x" * 65}),
        ({"app": "etl"}, {"username": ""}),
        ({"app": "etl"}, {"username": "a\nb"}),
        ({"app": "etl"}, {"expires_unix_s": 0}),
        ({"app": "etl"}, {"expires_unix_s": float("inf")}),
    ],
)
def test_what_could_be_read_in_two_ways_is_not_signed(
    tags: dict[str, str], more: dict[str, Any]
) -> None:
    with pytest.raises(InvalidSettings):
        sign_tags(tags, **{**SIGNING, **more})
