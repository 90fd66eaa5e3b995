"""What is a tag in a statement's comments, and what only looks like one (R120)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.budgets.ask import Dialect
from headgate.budgets.sql_text import MAX_TAGS, read_tags

PG, MY = Dialect.POSTGRES, Dialect.MYSQL


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        (
            "SELECT 1 /*controller='export',tenant='acme'*/",
            {"controller": "export", "tenant": "acme"},
        ),
        ("/*a='1'*/ SELECT 1 /*b='2'*/", {"a": "1", "b": "2"}),
        ("SELECT /* a = '1' */ 1", {}),
        ("SELECT 1 /* a='1' , b='2' */", {"a": "1", "b": "2"}),
        (
            "SELECT 1 /*application:Bcx,controller:project*/",
            {"application": "Bcx", "controller": "project"},
        ),
        ("SELECT 1 /*a=b,route=/x/y:z*/", {"a": "b", "route": "/x/y:z"}),
        ("SELECT 1 /*route='%2Fpolls%2F1000'*/", {"route": "/polls/1000"}),
        ("SELECT 1 /*tr%61ce='a%2Cb'*/", {"trace": "a,b"}),
        ("SELECT 1 /* just a note, nothing else */", {}),
        ("SELECT 1 /* a='1', and prose */", {}),
        ("SELECT 1 /*+ a='1' */ /*! b='2' */", {}),
        ("SELECT '/*a=1*/' /*b=2*/", {"b": "2"}),
        ('SELECT "/*a=1*/" /*b=2*/', {"b": "2"}),
        ("SELECT 1 -- /*a=1*/", {}),
        ("SELECT 1 /*a=1*/;", {"a": "1"}),
        ("SELECT 1 /*a=1", {"a": "1"}),
        ("", {}),
    ],
)
def test_tags_are_read_from_comments_alone(text: str, pairs: dict[str, str]) -> None:
    for dialect in Dialect:
        tags = read_tags(text.encode(), dialect)
        assert {k.decode(): v.decode() for k, v in tags.pairs.items()} == pairs
        assert (tags.ignored, tags.duplicates) == (0, 0)


@pytest.mark.parametrize(
    ("dialect", "text", "pairs"),
    [
        (PG, rb"SELECT E'\' /*a=1*/' /*b=2*/", {b"b": b"2"}),
        (PG, rb"SELECT '\' /*a=1*/ , '' /*b=2*/", {b"a": b"1", b"b": b"2"}),
        (MY, rb"SELECT '\' /*a=1*/' /*b=2*/", {b"b": b"2"}),
        (PG, b"SELECT $x$ /*a=1*/ $y$ $x$ /*b=2*/", {b"b": b"2"}),
        (PG, b"SELECT $$ /*a=1*/ $$ /*b=2*/", {b"b": b"2"}),
        (MY, b"SELECT $$ /*a=1*/ $$ /*b=2*/", {b"a": b"1", b"b": b"2"}),
        (PG, b"SELECT 1 /* x /*a=1*/ */ /*b=2*/", {b"b": b"2"}),
        (MY, b"SELECT 1 /* x /*a=1*/ /*b=2*/", {b"b": b"2"}),
        (PG, b"SELECT 1 # /*a=1*/", {b"a": b"1"}),
        (MY, b"SELECT 1 # /*a=1*/\n/*b=2*/", {b"b": b"2"}),
        (PG, b"SELECT 1 --/*a=1*/\n/*b=2*/", {b"b": b"2"}),
        (MY, b"SELECT 1 --/*a=1*/\n/*b=2*/", {b"a": b"1", b"b": b"2"}),
        (MY, b"SELECT `/*a=1*/` /*b=2*/", {b"b": b"2"}),
        (PG, b"SELECT 1 -- x\r/*a=1*/", {b"a": b"1"}),
        (MY, b"SELECT 1 -- x\r/*a=1*/\n/*b=2*/", {b"b": b"2"}),
    ],
)
def test_each_dialect_has_its_own_literals(
    dialect: Dialect, text: bytes, pairs: dict[bytes, bytes]
) -> None:
    assert read_tags(text, dialect).pairs == pairs


@pytest.mark.parametrize(
    "text",
    [
        b"SELECT 1 /*a='b c'*/",
        rb"SELECT 1 /*a='it\'s'*/",
        b"SELECT 1 /*a='%20'*/",
        b"SELECT 1 /*a='%zz'*/",
        b"SELECT 1 /*a='%C3%A9'*/",
        b"SELECT 1 /*a=''*/",
        b"SELECT 1 /*" + b"k" * 66 + b"='v'*/",
        b"SELECT 1 /*k='" + b"v" * 1025 + b"'*/",
    ],
)
def test_a_pair_that_cannot_be_a_tag_is_ignored_and_counted(text: bytes) -> None:
    tags = read_tags(text, PG)
    assert (tags.pairs, tags.ignored) == ({}, 1)


def test_the_longest_key_and_value_still_count() -> None:
    key, value = b"k" * 65, b"v" * 1024
    assert read_tags(b"/*" + key + b"='" + value + b"'*/", PG).pairs == {key: value}


def test_of_a_key_given_twice_the_last_one_stands() -> None:
    tags = read_tags(b"/*a='1'*/ SELECT 1 /*a='2',b='3'*/", PG)
    assert (tags.pairs, tags.duplicates) == ({b"a": b"2", b"b": b"3"}, 1)


def test_more_tags_than_there_is_room_for_are_counted() -> None:
    many = ",".join(f"k{i}='v'" for i in range(MAX_TAGS + 5)).encode()
    tags = read_tags(b"/*" + many + b"*/", PG)
    assert (len(tags.pairs), tags.ignored) == (MAX_TAGS, 5)
    long = ",".join(f"k{i}='{'v' * 1024}'" for i in range(9)).encode()
    assert (len(read_tags(b"/*" + long + b"*/", PG).pairs)) == 7


@given(st.binary(max_size=60), st.sampled_from(Dialect))
def test_no_text_is_too_odd(text: bytes, dialect: Dialect) -> None:
    """Whatever comes before a comment: a literal that is never closed hides it, nothing else."""
    tags = read_tags(text, dialect)
    assert all(len(k) <= 65 and 0 < len(v) <= 1024 for k, v in tags.pairs.items())
