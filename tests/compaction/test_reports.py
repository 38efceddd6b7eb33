"""What replicas tell leaders of their logs: the newest word on the present connection counts."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.node.compaction.removal_minimum import Ends
from strandline.node.compaction.reports import MAX_OFFSET, NONE, ROWS, TELL_ALL_SECONDS
from strandline.node.controller.leaders import Leader
from tests.compaction.removal_nodes import Post, RemovalNode, Replica
from tests.level_zero.samples import started
from tests.runtime.manual_loop import manual_loop
from tests.simulation.world import World


class Three:
    """Node 1 leads the groups; 2 and 3 follow. All are connected."""

    def __init__(self, groups: int = 1) -> None:
        self.post, loop = Post(), manual_loop()
        self.nodes = {node: RemovalNode(self.post, node, loop) for node in (1, 2, 3)}
        for node in self.nodes.values():
            for group in range(1, groups + 1):
                node.replicas[group] = Replica(group)
                node.disk[group] = Ends(10 * node.node_id, 15 * node.node_id)
                node.leaders[group] = Leader(1, 1)
        for one, other in ((1, 2), (1, 3), (2, 3)):
            self.post.connect(one, other)

    @property
    def leader(self) -> RemovalNode:
        return self.nodes[1]

    def known(self, term: int = 1) -> dict[int, Ends]:
        return self.leader.known(1, term)

    def pass_on(self) -> None:
        for node in self.nodes.values():
            node.look()
        self.post.deliver_all()

    def frames(self) -> list[tuple[int, int, Any]]:
        return [(*way, frame) for way, frames in self.post.waiting.items() for frame in frames]


def test_each_tells_the_leader_and_nothing_is_said_twice() -> None:
    three = Three()
    assert three.known() == {1: Ends(10, 15)}, "the leader's own counts by itself"
    three.nodes[1].look()
    assert three.frames() == []
    three.pass_on()
    assert three.known() == {1: Ends(10, 15), 2: Ends(20, 30), 3: Ends(30, 45)}
    for node in three.nodes.values():
        node.look()
    assert three.frames() == []
    three.nodes[2].disk[1] = Ends(21, 30)
    three.nodes[2].look()
    assert three.frames() == [(2, 1, [2, [[1, 1, 21, 30]]])]
    three.nodes[2].look(everything=True)
    assert len(three.frames()) == 2


def test_the_newest_word_counts_also_if_it_is_lower() -> None:
    three = Three()
    three.pass_on()
    three.nodes[2].disk[1] = Ends(3, 4)
    three.pass_on()
    assert three.known()[2] == Ends(3, 4)


def test_a_frame_that_comes_twice_or_late_undoes_nothing() -> None:
    three = Three()
    three.nodes[2].look()
    ((_, _, old),) = three.frames()
    three.post.deliver_all()
    three.nodes[2].disk[1] = Ends(3, 4)
    three.pass_on()
    assert three.post.deliver(2, 1, old) is None
    assert three.known()[2] == Ends(3, 4)


def test_a_lost_connection_clears_what_came_over_it_and_the_next_one_brings_it() -> None:
    three = Three()
    three.pass_on()
    three.post.disconnect(1, 2)
    assert three.known() == {1: Ends(10, 15), 3: Ends(30, 45)}
    three.pass_on()
    assert 2 not in three.known()
    three.post.connect(1, 2)
    assert 2 not in three.known()
    three.pass_on()
    assert three.known()[2] == Ends(20, 30)


def test_a_process_that_comes_after_begins_to_count_from_one() -> None:
    three = Three()
    for mcco in range(5):
        three.nodes[2].disk[1] = Ends(mcco, 30)
        three.pass_on()
    three.post.disconnect(1, 2)
    three.post.disconnect(2, 3)
    again = RemovalNode(three.post, 2, manual_loop())
    again.replicas, again.leaders, again.disk[1] = three.nodes[2].replicas, three.nodes[2].leaders, Ends(1, 2)
    three.post.connect(1, 2)
    again.look()
    three.post.deliver_all()
    assert three.known()[2] == Ends(1, 2)


def test_only_words_to_the_leader_of_this_term_count() -> None:
    three = Three()
    three.pass_on()
    assert three.known(2) == {1: Ends(10, 15)}
    for node in three.nodes.values():
        node.leaders[1] = Leader(1, 2)
    three.pass_on()
    assert three.known(2).keys() == {1, 2, 3}
    assert three.known(1).keys() == {1}


def test_a_new_leader_is_told_and_the_old_one_no_more() -> None:
    three = Three()
    three.pass_on()
    for node in three.nodes.values():
        node.leaders[1] = Leader(3, 2)
    three.nodes[2].look()
    assert three.frames() == [(2, 3, [2, [[1, 2, 20, 30]]])]
    del three.nodes[2].leaders[1]
    three.nodes[2].disk[1] = Ends(25, 30)
    three.post.deliver_all()
    three.nodes[2].look()
    assert three.frames() == [], "no leader is known"


@pytest.mark.parametrize("gone", [True, False])
def test_a_log_that_is_gone_or_does_not_count_takes_its_word_back(gone: bool) -> None:
    three = Three()
    three.pass_on()
    if gone:
        del three.nodes[2].disk[1]
    else:
        three.nodes[2].disk[1] = None
    three.nodes[2].look()
    assert three.frames() == [(2, 1, [2, [[1, 1, NONE, NONE]]])]
    three.post.deliver_all()
    assert 2 not in three.known()
    three.nodes[2].look()
    assert three.frames() == []
    three.nodes[2].disk[1] = Ends(1, 1)
    three.pass_on()
    assert three.known()[2] == Ends(1, 1)


def test_the_leaders_own_log_that_does_not_count_is_no_report() -> None:
    three = Three()
    three.leader.disk[1] = None
    assert three.known() == {}
    del three.leader.disk[1]
    assert three.known() == {}


def test_what_could_not_be_sent_is_sent_at_the_next_look() -> None:
    three = Three()
    three.nodes[2].full = True
    three.pass_on()
    assert 2 not in three.known()
    assert three.nodes[2].reports.counters["unsent"] == 1
    three.nodes[2].full = False
    three.pass_on()
    assert three.known()[2] == Ends(20, 30)


def test_many_reports_travel_in_few_frames_of_bounded_size() -> None:
    three = Three(groups=2 * ROWS + 5)
    three.nodes[2].look()
    assert [len(frame[1]) for _, _, frame in three.frames()] == [ROWS, ROWS, 5]
    three.post.deliver_all()
    assert three.leader.known(2 * ROWS + 5)[2] == Ends(20, 30)
    assert three.leader.reports.counters["heard"] == 2 * ROWS + 5


def test_groups_that_are_not_here_take_no_room() -> None:
    three = Three(groups=2)
    del three.leader.replicas[2], three.leader.disk[2]
    three.pass_on()
    assert three.leader.reports.counters["unknown"] == 2
    assert three.leader.known(2) == {}
    three.leader.replicas[2] = Replica(2)
    assert three.leader.known(2) == {}


@pytest.mark.parametrize(
    "payload",
    [
        None,
        [],
        [1],
        ["1", []],
        [1, [[1, 1, 5]]],
        [1, [[1, 1, 5, 4]]],
        [1, [[1, 1, NONE, 4]]],
        [1, [[1, 1, -2, -2]]],
        [1, [[1, 1, 5, MAX_OFFSET + 1]]],
        [1, [[1, -1, 5, 5]]],
        [1, [[1, 1, 5, 5.0]]],
        [1, [[1, 1, True, 5]]],
        [1, [(1, 1, 5, 5), None]],
        [1, [[1, 1, 5, 5]] * (ROWS + 1)],
    ],
)
def test_what_is_no_report_is_refused_whole(payload: Any) -> None:
    three = Three()
    assert "rows of group, term, MCCO and MXFO" in (three.post.deliver(2, 1, payload) or "")
    assert 2 not in three.known()


def test_words_behind_the_end_of_their_connection_do_not_count() -> None:
    three = Three()
    three.nodes[2].look()
    ((_, _, frame),) = three.frames()
    three.post.disconnect(1, 2)
    assert three.post.deliver(2, 1, frame) is None
    assert 2 not in three.known()


def test_that_a_log_is_gone_is_told_twice_as_the_first_word_may_be_lost() -> None:
    three = Three()
    three.pass_on()
    del three.nodes[2].disk[1]
    three.nodes[2].look()
    three.post.waiting.clear()
    assert three.known()[2] == Ends(20, 30), "what was said before still counts"
    three.nodes[2].look(everything=True)
    three.post.deliver_all()
    assert 2 not in three.known()
    for _ in range(2):
        three.nodes[2].look(everything=True)
        assert three.frames() == []


def test_everything_is_told_again_twice_a_minute_and_what_is_gone_is_forgotten() -> None:
    with World(1) as world:
        sim = started(world)
        post = Post()
        one, two = (RemovalNode(post, node, sim.loop) for node in (1, 2))
        for node in (one, two):
            for group in (1, 2):
                node.replicas[group], node.leaders[group] = Replica(group), Leader(1, 1)
        two.disk = {1: Ends(1, 1), 2: Ends(2, 2)}
        post.connect(1, 2)
        for node in (one, two):
            sim.call(node.reports.start)
        world.run(world.now + 2)
        assert len(post.waiting[2, 1]) == 1
        post.waiting.clear()
        world.run(world.now + TELL_ALL_SECONDS)
        assert post.waiting[2, 1] == [[2, [[1, 1, 1, 1], [2, 1, 2, 2]]]], "what was lost comes again"
        post.deliver_all()
        assert 2 in one.known(2)
        replica = one.replicas.pop(2)
        world.run(world.now + TELL_ALL_SECONDS + 1)
        one.replicas[2] = replica
        assert 2 not in one.known(2)
        two.reports.close()
        post.waiting.clear()
        two.disk[1] = Ends(9, 9)
        world.run(world.now + 2 * TELL_ALL_SECONDS)
        assert post.waiting == {}
        one.reports.close()
        world.check()


def test_a_look_that_fails_is_told_and_the_next_one_goes_on() -> None:
    with World(1) as world:
        sim = started(world)
        post = Post()
        one, two = (RemovalNode(post, node, sim.loop) for node in (1, 2))
        for node in (one, two):
            node.replicas[1], node.leaders[1] = Replica(1), Leader(1, 1)
        two.disk[1] = Ends(1, 1)
        post.connect(1, 2)
        errors: list[dict[str, Any]] = []
        sim.loop.call_exception_handler = errors.append  # type: ignore[method-assign, assignment]
        replica = two.replicas.pop(1)
        sim.call(two.reports.start)
        world.run(world.now + 1.5)
        assert "reports on local logs failed" in errors[0]["message"]
        two.replicas[1] = replica
        world.run(world.now + 2)
        assert post.waiting[2, 1] == [[1, [[1, 1, 1, 1]]]]
        two.reports.close()
