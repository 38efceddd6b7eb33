"""What a leader knows of a follower, in its three phases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.node.raft.rules.progress import Phase, Progress, majority_of


def replicating(next_index: int = 1) -> Progress:
    progress = Progress(next_index)
    progress.replicate()
    return progress


def test_a_new_follower_is_probed_and_known_to_match_nothing() -> None:
    progress = Progress(9)
    assert (progress.phase, progress.match, progress.next) == (Phase.PROBE, 0, 9)


def test_next_runs_ahead_and_never_moves_back_on_success() -> None:
    progress = replicating()
    for last in (3, 5, 9):
        progress.sent(last, 100)
    assert progress.next == 10
    assert progress.accepted(3)
    assert (progress.match, progress.next, progress.inflight_bytes) == (3, 10, 200)
    assert not progress.accepted(2)
    assert (progress.match, progress.next) == (3, 10)


def test_a_match_beyond_next_moves_it() -> None:
    progress = Progress(3)
    assert progress.accepted(7)
    assert (progress.match, progress.next) == (7, 8)


def test_what_is_under_way_is_bounded_in_messages_and_bytes() -> None:
    progress = replicating()
    progress.sent(1, 10)
    assert progress.may_send(2, 100)
    progress.sent(2, 10)
    assert not progress.may_send(2, 100)
    assert not progress.may_send(9, 20)
    progress.accepted(2)
    assert progress.may_send(2, 20)


def test_rejection_while_replicating_starts_over_after_the_match() -> None:
    progress = replicating()
    progress.sent(5, 10)
    progress.accepted(3)
    assert not progress.rejected(3, 0), "it has acknowledged that one since"
    assert progress.rejected(4, 2)
    assert (progress.phase, progress.next, progress.inflight_bytes) == (Phase.PROBE, 4, 0)


def test_rejection_of_a_probe_goes_to_the_hint() -> None:
    progress = Progress(10)
    assert not progress.rejected(7, 2), "an answer to another probe"
    assert progress.rejected(9, 4)
    assert progress.next == 5
    assert progress.rejected(4, 9), "a hint that leads nowhere still goes one back"
    assert progress.next == 4


def test_rejection_never_goes_below_what_matches() -> None:
    progress = Progress(10)
    progress.accepted(5)
    assert progress.rejected(9, 0)
    assert progress.next == 6


def test_snapshot_phase_takes_no_rejection() -> None:
    progress = Progress(10)
    progress.snapshot()
    assert not progress.rejected(0, 0)
    assert progress.phase is Phase.SNAPSHOT


def test_reconnect_forgets_what_was_under_way() -> None:
    progress = replicating()
    progress.sent(8, 10)
    progress.accepted(3)
    progress.probe(progress.match + 1)
    assert (progress.next, progress.inflight_bytes) == (4, 0)
    assert progress.may_send(1, 1)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([4], 4), ([4, 2], 2), ([5, 3, 9], 5), ([1, 2, 3, 4], 2), ([7, 7, 0, 0, 7], 7), ([0, 0, 9], 0)],
)
def test_majority_of(values: list[int], expected: int) -> None:
    assert majority_of(values) == expected


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9))
def test_majority_of_is_reached_by_a_majority_and_nothing_larger_is(values: list[int]) -> None:
    found = majority_of(values)
    assert sum(value >= found for value in values) * 2 > len(values)
    assert all(
        sum(value >= more for value in values) * 2 <= len(values) for more in range(int(found) + 1, 11)
    )


@given(
    st.lists(
        st.tuples(st.sampled_from(["send", "accept", "reject", "probe"]), st.integers(0, 30)), max_size=60
    )
)
def test_match_never_falls_and_next_stays_above_it(steps: list[tuple[str, int]]) -> None:
    progress = replicating()
    match = 0
    for step, number in steps:
        if step == "send":
            progress.sent(progress.next + number, 1)
        elif step == "accept":
            progress.accepted(min(number, progress.next - 1))
        elif step == "reject":
            progress.rejected(number, number // 2)
        else:
            progress.probe(progress.match + 1)
        assert progress.match >= match
        assert progress.next > progress.match
        assert progress.inflight_bytes == len(progress._inflight)
        match = progress.match
