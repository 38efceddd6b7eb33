"""Which nodes vote in the controller's group, and in which steps that changes."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest

from strandline.node.controller.voter_choice import Act, Change, View, next_change, wanted_voters


def view(
    voters: Collection[int],
    learners: Collection[int] = (),
    *,
    leader: int = 1,
    nodes: int | None = None,
    racks: dict[int, str] | None = None,
    gone: Collection[int] = (),
    draining: Collection[int] = (),
    away: Collection[int] = (),
    chooses: bool = True,
) -> View:
    named = dict.fromkeys(range(1, (nodes or max((*voters, *learners))) + 1), "") | (racks or {})
    there = {node for node in (*voters, *learners) if node not in gone}
    return View(leader, voters, learners, named, there, named.keys() - set(gone), draining, away, chooses)


def test_one_two_three_or_five_vote() -> None:
    assert [wanted_voters(nodes) for nodes in (1, 2, 3, 4, 5, 6, 100)] == [1, 2, 3, 3, 5, 5, 5]
    assert next_change(view((1, 2, 3))) is None


def test_a_node_that_is_connected_follows_and_one_that_is_not_is_waited_for() -> None:
    assert next_change(view((1, 2, 3), nodes=4)) == Change(Act.FOLLOW, 4)
    assert next_change(view((1, 2, 3), nodes=4, gone={4})) is None
    assert next_change(view((1, 2, 3), (4,))) is None, "and stays without a vote"
    assert next_change(view((1, 2, 3), (4,), nodes=5)) == Change(Act.FOLLOW, 5)


def test_five_nodes_have_five_votes_and_a_learner_that_lags_waits() -> None:
    assert next_change(view((1, 2, 3), (4, 5))) == Change(Act.VOTE, 4)
    assert next_change(view((1, 2, 3, 4), (5,))) == Change(Act.VOTE, 5)
    assert next_change(view((1, 2, 3, 4), (5,), gone={5})) is None


def test_four_voters_lose_one_the_dead_one_first_and_never_a_majority() -> None:
    assert next_change(view((1, 2, 3, 4))) == Change(Act.UNVOTE, 4)
    assert next_change(view((1, 2, 3, 4), leader=4)) == Change(Act.UNVOTE, 3)
    assert next_change(view((1, 2, 3, 4), gone={2})) == Change(Act.UNVOTE, 2)
    assert next_change(view((1, 2, 3, 4), gone={2, 3}, draining={4})) is None, "2 of 3 would be gone"
    assert next_change(view((1, 2, 3, 4, 5), nodes=3)) == Change(Act.UNVOTE, 5), "no nodes any more"


def test_a_voter_that_is_away_for_long_is_replaced_by_one_that_votes_first() -> None:
    assert next_change(view((1, 2, 3), (4,), gone={2})) is None, "it may be back soon"
    assert next_change(view((1, 2, 3), (4,), gone={2}, away={2})) == Change(Act.VOTE, 4)
    assert next_change(view((1, 2, 3, 4), gone={2}, away={2})) == Change(Act.UNVOTE, 2)
    assert next_change(view((1, 3, 4), (2,), gone={2}, away={2})) is None


def test_a_drained_voter_gives_its_vote_and_a_leader_its_leadership_first() -> None:
    assert next_change(view((1, 2, 3), (4,), draining={3})) == Change(Act.VOTE, 4)
    assert next_change(view((1, 2, 3, 4), draining={3})) == Change(Act.UNVOTE, 3)
    assert next_change(view((1, 2, 3, 4), draining={1})) == Change(Act.HAND_OVER, 2)
    assert next_change(view((1, 2, 3), draining={3})) is None, "no other could vote"
    assert next_change(view((1, 2, 3), (4,), draining={3, 4})) is None


def test_of_two_the_one_that_is_not_drained_votes_alone() -> None:
    """Neither is a majority, so that it could not even remove the other one once that is stopped."""
    assert next_change(view((1, 2), draining={2})) == Change(Act.UNVOTE, 2)
    assert next_change(view((1, 2), draining={1})) == Change(Act.HAND_OVER, 2), "1 leads"
    assert next_change(view((1,), (2,), draining={2})) is None
    assert next_change(view((1,), (2,))) == Change(Act.VOTE, 2), "the drain was undone"
    assert next_change(view((1, 2), draining={2}, gone={2})) == Change(Act.UNVOTE, 2), "with its word alone"
    assert next_change(view((1, 2), draining={1, 2})) is None
    assert next_change(view((1, 2), draining={3})) is None, "no node of the cluster"
    assert next_change(view((1, 2), draining={2}, chooses=False)) is None


def test_voters_stand_in_different_racks() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "c"}
    assert next_change(view((1, 2, 3), (4,), racks=racks)) == Change(Act.VOTE, 4)
    assert next_change(view((1, 2, 3, 4), racks=racks)) == Change(Act.UNVOTE, 2), "1 leads"
    assert next_change(view((1, 3, 4), (2,), racks=racks)) is None


def test_unnamed_racks_are_no_reason_and_of_learners_the_one_of_another_rack_votes() -> None:
    assert next_change(view((1, 2, 3), (4,), racks={1: "a", 2: "b", 3: "b"})) is None
    assert next_change(view((1, 2, 3), (4, 5), racks={1: "a", 2: "b", 3: "c", 4: "a", 5: "d"})) == Change(
        Act.VOTE, 5
    )


def test_a_node_that_is_removed_loses_its_vote_first_and_gets_none() -> None:
    assert next_change(view((1, 2, 3, 4), nodes=3, gone={2}, away={2})) == Change(Act.UNVOTE, 4)
    assert next_change(view((1, 2, 3), (4,), nodes=3, gone={3}, away={3})) is None


def test_a_learner_that_is_drained_votes_after_the_others() -> None:
    assert next_change(view((1, 2, 3), (4, 5), draining={4})) == Change(Act.VOTE, 5)


def test_below_the_feature_level_the_votes_stay_as_they_are() -> None:
    assert next_change(view((1, 2, 3, 4), chooses=False)) is None
    assert next_change(view((1, 2, 3), nodes=4, chooses=False)) == Change(Act.FOLLOW, 4)


@pytest.mark.parametrize("seed", range(200))
def test_whatever_there_is_it_comes_to_rest_and_each_state_has_a_majority(seed: int) -> None:
    """Random clusters, in which nothing fails on the way."""
    rng = random.Random(seed)
    nodes = range(1, rng.randint(1, 9) + 1)
    racks = {node: rng.choice(["", "a", "b", "c"]) for node in nodes}
    voters = set(rng.sample(nodes, rng.randint(1, len(nodes))))
    learners = {node for node in nodes if node not in voters and rng.random() < 0.7}
    gone = {node for node in nodes if rng.random() < 0.2}
    gone -= set(sorted(gone & voters)[: max(0, 2 * len(gone & voters) - len(voters) + 1)])
    away = {node for node in gone if rng.random() < 0.5}
    draining = {node for node in nodes if rng.random() < 0.2}
    leader = min(voters - gone)
    for _ in range(40):
        members = voters | learners
        present = View(
            leader, voters, learners, racks, members - gone, racks.keys() - gone, draining, away, True
        )
        change = next_change(present)
        if change is None:
            break
        match change.act:
            case Act.FOLLOW:
                learners.add(change.node)
            case Act.VOTE:
                learners.remove(change.node)
                voters.add(change.node)
            case Act.UNVOTE:
                voters.remove(change.node)
                learners.add(change.node)
            case Act.HAND_OVER:
                assert change.node in voters - gone
                leader = change.node
        assert leader in voters
        assert 2 * len(voters - gone) > len(voters), "no majority could be had"
    else:
        raise AssertionError(f"it never rests: {voters} {learners}")
    assert len(voters) <= max(wanted_voters(len(racks)), 1) or 2 * len(voters - gone) - 1 <= len(voters)
