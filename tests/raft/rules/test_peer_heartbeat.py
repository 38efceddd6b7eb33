"""The digest of quiet groups: two sets have one digest exactly when they are equal."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from strandline.node.raft.rules.peer_heartbeat import PeerHeartbeat, QuiescedSet, fingerprint

SETS = st.dictionaries(st.integers(0, 40), st.integers(1, 6), max_size=12)
STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 12), st.integers(1, 4)), max_size=40)


def build(terms: dict[int, int], order: random.Random) -> QuiescedSet:
    quiet = QuiescedSet()
    for group in order.sample(sorted(terms), len(terms)):
        quiet.add(group, terms[group])
    return quiet


@given(SETS, SETS, st.randoms(use_true_random=False))
def test_digests_are_equal_exactly_when_the_sets_are(
    one: dict[int, int], other: dict[int, int], order: random.Random
) -> None:
    assert (build(one, order).digest == build(other, order).digest) == (one == other)
    assert build(one, order).digest == build(one, order).digest


@given(STEPS)
def test_digest_follows_every_change(steps: list[tuple[bool, int, int]]) -> None:
    quiet, terms = QuiescedSet(), dict[int, int]()
    for adds, group, term in steps:
        if adds:
            quiet.add(group, term)
            terms[group] = term
        else:
            quiet.discard(group)
            terms.pop(group, None)
        assert quiet.terms == terms
        assert quiet.digest == build(terms, random.Random(0)).digest


def test_fingerprints_of_many_groups_and_terms_differ() -> None:
    seen = {fingerprint(group, term) for group in range(2000) for term in range(1, 20)}
    assert len(seen) == 2000 * 19
    assert all(0 <= value < 1 << 64 for value in seen)
    ones = sum(value.bit_count() for value in seen) / len(seen)
    assert 31.5 < ones < 32.5


def test_large_group_ids_and_terms_fit() -> None:
    assert fingerprint(2**63 - 1, 2**63 - 1) != fingerprint(2**63 - 1, 2**63 - 2)


def test_swapped_terms_are_told_apart() -> None:
    one, other = QuiescedSet(), QuiescedSet()
    one.add(1, 2)
    one.add(2, 1)
    other.add(1, 1)
    other.add(2, 2)
    assert one.digest != other.digest


def test_first_group_starts_the_clock_and_later_ones_do_not() -> None:
    pair = PeerHeartbeat()
    pair.lead(1, 1, 10.0)
    pair.lead(2, 1, 20.0)
    assert pair.led_changed_at == 10.0
    pair.follow(1, 1, 30.0)
    pair.follow(2, 1, 40.0)
    assert pair.heard_at == 30.0


def test_heartbeat_matches_only_the_same_groups_in_the_same_terms() -> None:
    leader, follower = PeerHeartbeat(), PeerHeartbeat()
    assert follower.matches(*leader.heartbeat())
    leader.lead(1, 5, 0.0)
    assert not follower.matches(*leader.heartbeat())
    follower.follow(1, 4, 0.0)
    assert not follower.matches(*leader.heartbeat())
    follower.follow(1, 5, 0.0)
    assert follower.matches(*leader.heartbeat())
    leader.unlead(1)
    assert not follower.matches(*leader.heartbeat())
    follower.unfollow(1)
    assert follower.matches(*leader.heartbeat())
