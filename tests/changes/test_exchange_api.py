"""What agents of a shard tell each other of its changes comes out as it went in, byte for byte."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.changes.exchange_api import (
    copies_doc,
    decode_answer,
    decode_offer,
    encode_answer,
    encode_offer,
)
from headgate.changes.exchanged import ExchangeAnswer, Inventory, Offer, Version, VersionPage
from headgate.changes.state import Copies
from headgate.errors import InvalidRequest, PeerFailed

EMPTY = Inventory().digest
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)
names = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=20)
digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
values = st.dictionaries(texts, st.none() | st.integers() | texts, max_size=4)
entries = st.lists(
    st.tuples(texts, values.map(lambda value: json.dumps(value, ensure_ascii=False).encode())),
    max_size=5,
).map(tuple)
versions = st.builds(
    Version,
    st.integers(0, 9),
    st.booleans(),
    st.floats(0, 2e9),
    st.integers(0, 10**11),
    texts,
    st.integers(0, 2**64 - 1),
)
pages = st.builds(VersionPage, st.lists(st.tuples(texts, versions), max_size=5).map(tuple), texts)
offers = st.builds(
    Offer,
    names,
    names,
    names,
    digests,
    entries,
    st.none() | pages,
    texts,
    st.floats(0, 60),
    st.booleans(),
    texts,
)
answers = st.builds(ExchangeAnswer, digests, entries, st.lists(texts, max_size=5).map(tuple), texts)


@given(offers)
def test_an_offer_comes_out_as_it_went_in(offer: Offer) -> None:
    assert decode_offer(encode_offer(offer)) == offer


@given(answers)
def test_an_answer_comes_out_as_it_went_in(answer: ExchangeAnswer) -> None:
    assert decode_answer(encode_answer(answer)) == answer


@given(st.binary(max_size=100))
def test_what_is_neither_is_rejected(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="exchange"):
        decode_offer(body)
    with pytest.raises(PeerFailed, match="exchange"):
        decode_answer(body)


def test_fields_of_a_newer_version_are_passed_over() -> None:
    """R156"""
    body = encode_answer(ExchangeAnswer(EMPTY)).replace(
        b'"version":1', b'"version":2,"hint":{"a":[1]}'
    )
    assert decode_answer(body) == ExchangeAnswer(EMPTY)


def test_who_has_a_copy_is_a_document_with_a_text_for_it() -> None:
    doc = copies_doc(Copies(1, 2, ("db-c does not answer",)))
    assert doc is not None
    assert (doc.have, doc.of, doc.standby) == (1, 2, None)
    assert doc.says == "in force here; 1 of 2 replicas have a copy: db-c does not answer"
    assert copies_doc(None) is None
