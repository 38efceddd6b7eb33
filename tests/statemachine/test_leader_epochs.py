"""OffsetForLeaderEpoch: Kafka's answers (KIP-101, KIP-320) for every term one may ask about."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.statemachine.partition.leader_epochs import LeaderEpoch, LeaderEpochs


def history(*entries: tuple[int, int]) -> LeaderEpochs:
    return LeaderEpochs([LeaderEpoch(*entry) for entry in entries])


def test_each_term_ends_where_the_next_one_with_records_begins() -> None:
    epochs = history((2, 0), (5, 10), (6, 30))
    assert epochs.end_of(2, 40) == (2, 10)
    assert epochs.end_of(5, 40) == (5, 30)


def test_the_present_term_ends_at_the_next_offset() -> None:
    assert history((2, 0), (5, 10)).end_of(5, 40) == (5, 40)


def test_a_term_without_records_answers_as_the_one_before() -> None:
    assert history((2, 0), (5, 10)).end_of(4, 40) == (2, 10)


def test_a_term_older_than_all_that_is_known_ends_where_that_begins() -> None:
    assert history((4, 20), (5, 30)).end_of(3, 40) == (3, 20)


def test_a_term_ahead_of_all_is_unknown() -> None:
    assert history((2, 0), (5, 10)).end_of(6, 40) is None
    assert history().end_of(0, 0) is None


def test_a_term_that_wrote_nothing_is_forgotten_when_the_next_begins() -> None:
    epochs = history((2, 0))
    for term in (3, 4, 5):
        epochs.begin(term, 10)
    assert epochs.entries == [(2, 0), (5, 10)]


def test_trimming_forgets_terms_whose_records_are_gone() -> None:
    epochs = history((2, 0), (5, 10), (6, 30))
    epochs.trim(15)
    assert epochs.entries == [(5, 15), (6, 30)]
    epochs.trim(30)
    assert epochs.entries == [(6, 30)]


@pytest.mark.parametrize("entries", [[(3, 0), (2, 5)], [(2, 0), (2, 5)], [(2, 5), (3, 5)], [(2, 5), (3, 4)]])
def test_history_out_of_order_is_refused(entries: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="out of order"):
        history(*entries)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 4)), max_size=8),
    st.integers(0, 30),
)
def test_answers_are_those_of_a_term_for_each_record(steps: list[tuple[int, int, int]], asked: int) -> None:
    """The model knows the term of every record; each step is a new term, its records, and a trim."""
    epochs, term, start = LeaderEpochs([]), 0, 0
    records: list[int] = []
    for terms, count, trimmed in steps:
        term += terms
        epochs.begin(term, len(records))
        records += [term] * count
        start = min(start + trimmed, len(records))
        epochs.trim(start)
    known = sorted({*records[start:], term}) if steps else []
    answer = epochs.end_of(asked, len(records))
    if not known or asked > known[-1]:
        assert answer is None
    else:
        named = max((one for one in known if one <= asked), default=asked)
        later = (offset for offset in range(start, len(records)) if records[offset] > asked)
        assert answer == (named, next(later, len(records)))
