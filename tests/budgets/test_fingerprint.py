"""One shape, one number: whatever the literals, the case and the comments (H2, M4, L3, P5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.budgets.ask import Dialect
from headgate.budgets.sql_text import fingerprint, pieces, shape

PG, MY = Dialect.POSTGRES, Dialect.MYSQL


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
