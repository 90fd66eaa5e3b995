"""What is a tag in a statement's comments, and what only looks like one (R120)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.budgets.model import Dialect
from headgate.budgets.sql_text import MAX_TAGS, fingerprint, pieces, read_tags, shape

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


def test_of_a_key_given_twice_the_last_one_counts() -> None:
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


# One shape, one number: whatever the literals, the case and the comments (H2, M4, L3, P5).


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("SELECT * FROM T WHERE id = 5", "select * from t where id = ? "),
        ("select *  from t\nwhere id=7;", "select * from t where id = ? "),
        ("select * from t where id=? /*x*/ ; ;", "select * from t where id = ? "),
        ("SELECT /*+ hint */ a -- why\n", "select a "),
        ("x IN (1, 2, 3)", "x in ( ? ) "),
        ("VALUES (1,'a'), (2,'b'),(3,'c')", "values ( ? ) "),
        ("VALUES (1, now()), (2, now())", "values ( ? , now ( ) ) , ( ? , now ( ) ) "),
        ("a = -1", "a = - ? "),
        ("a is NULL and b = TRUE", "a is null and b = true "),
        ("a <= b >= c <> d != e || f -> g ->> h", "a <= b >= c <> d != e || f -> g ->> h "),
        ("1.5e-3 .5 0xFFe 1e5 0b10 0o7 1_000", "? ? ? ? ? ? ? "),
        ("1.into 1e5into 1into 1efor 0x1g", "? into ? into ? into ? efor ? g "),
        ("EXPLAIN SELECT 1", "explain select ? "),
        ("EXPLAIN ANALYZE SELECT 1", "select ? "),
        ("explain analyze format=json select 1", "select ? "),
        ("EXPLAIN (BUFFERS, ANALYZE) DELETE FROM t", "delete from t "),
        ("explain (select analyze from t)", "explain ( select analyze from t ) "),
        ("a.b.c", "a . b . c "),
        ("Größe", "größe "),
        ("", ""),
    ],
)
def test_both_dialects_give_the_same_shape(text: str, made: str) -> None:
    assert {shape(text.encode(), dialect) for dialect in Dialect} == {made.encode()}


@pytest.mark.parametrize(
    ("dialect", "text", "made"),
    [
        (PG, rb"""E'a\'b' b'1' X'ff' n'x' U&'y' 'it''s' $$d$$ $t$d$t$""", b"? ? ? ? ? ? ? ? "),
        (MY, rb"""'a\'b' b'1' X'ff' n'x' "it""s" """, b"? ? ? ? ? "),
        (PG, b'"Mixed ""Case""" u&"x"', b'"Mixed ""Case""" u&"x" '),
        (MY, b"`Mixed``Case`", b"`Mixed``Case` "),
        (PG, b"a::text = :name", b"a :: text = ? "),
        (MY, b"a := :name", b"a : = : name "),
        (PG, b"a#b --c\nd", b"a # b d "),
        (MY, b"a#b\nd --e", b"a d - - e "),
        (PG, b"t$1 $1a", b"t$1 ? a "),
        (PG, b"a '", b"a ? "),
        (PG, b"a --b\rc", b"a c "),
        (MY, b"a -- b\rc\nd #e\rf", b"a d "),
        (MY, b"a --\x7fb\nc", b"a c "),
        (PG, b"a /*/*/b*/*/ c", b"a c "),
        (MY, b"a /*/*/b /*/ c /*/ d", b"a b d "),
        (PG, b"a /*!50000 b */ c", b"a c "),
        (MY, b"a /*!50000 b */ /*M!100100 c*/ /*!'*/' d*/ e", b"a b c ? d e "),
        (MY, b"ANALYZE SELECT 1", b"select ? "),
        (PG, b"ANALYZE t", b"analyze t "),
        (MY, b"ANALYZE LOCAL TABLE t", b"analyze local table t "),
        (MY, b"desc analyze select 1", b"select ? "),
    ],
)
def test_each_dialect_reads_its_own_literals(dialect: Dialect, text: bytes, made: bytes) -> None:
    assert shape(text, dialect) == made


def test_the_number_is_the_same_everywhere() -> None:
    """Rules name it: it may never change."""
    assert f"{fingerprint(b'SELECT 1', PG):016x}" == f"{fingerprint(b'select  2;', MY):016x}"
    assert f"{fingerprint(b'SELECT 1', PG):016x}" == "f2a4332cff7c915b"


@given(st.text(alphabet="ab'\"`$/*-#\\\n ;(),?1.:e&U", max_size=40), st.sampled_from(Dialect))
def test_the_pieces_are_the_text(text: str, dialect: Dialect) -> None:
    assert b"".join(p.text for p in pieces(text.encode(), dialect)) == text.encode()


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=9), st.sampled_from(Dialect))
def test_a_list_of_any_length_has_one_shape(numbers: list[int], dialect: Dialect) -> None:
    listed = f"SELECT a FROM t WHERE a IN ({', '.join(map(str, numbers))})".encode()
    assert fingerprint(listed, dialect) == fingerprint(
        b"select A from T where a in (?) -- one", dialect
    )
