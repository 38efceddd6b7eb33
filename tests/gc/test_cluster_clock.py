"""A node goes by the time that most of the cluster agrees on, and says when it cannot tell."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strandline.node.controller.cluster_clock import FAR_MS, SAMPLES, ClusterClock
from tests.runtime.manual_loop import ManualLoop, manual_loop

NOW = 1_800_000_000_000
HOUR = 3_600_000


class Node:
    """Node 1 of some, whose wall clock is `off` by so many ms."""

    def __init__(self, nodes: int = 3, off: int = 0) -> None:
        self.loop: ManualLoop = manual_loop()
        self.off = off
        members = range(1, nodes + 1)
        self.clock = ClusterClock(1, lambda: members, lambda: self.true() + self.off, loop=self.loop)

    def true(self) -> int:
        return NOW + int(1000 * self.loop.now)

    def hear(self, node: int, off: int = 0, late: float = 0.0) -> None:
        said = self.true() + off
        self.loop.advance(late)
        self.clock.observe(node, said)

    def trusted(self) -> bool:
        return self.clock.trusted

    def error(self) -> int:
        return self.clock.now_ms() - self.true()


def test_a_node_alone_in_its_cluster_goes_by_its_own_clock() -> None:
    node = Node(1, off=HOUR)
    assert node.trusted()
    assert node.error() == HOUR


def test_until_others_are_heard_a_node_has_only_its_own_and_does_not_trust_it() -> None:
    node = Node(3, off=HOUR)
    assert not node.trusted()
    assert node.error() == HOUR
    node.clock.observe(1, node.clock.own_ms())
    assert not node.trusted(), "its own word proves nothing"


def test_two_that_agree_are_a_majority_of_three() -> None:
    node = Node(3, off=3_000)
    node.hear(2)
    assert node.trusted()
    assert node.error() == 3_000, "a few seconds are left alone"


def test_a_clock_far_from_the_others_follows_them() -> None:
    for off in (HOUR, -HOUR, FAR_MS + 501, -FAR_MS - 501):
        node = Node(3, off=off)
        node.hear(2)
        assert not node.trusted(), "two that contradict each other"
        assert node.error() == off
        node.hear(3, off=500)
        assert node.trusted()
        assert abs(node.error()) <= 500
        assert node.clock.estimate().offset_ms == node.error() - off
        node.loop.advance(1_000)
        assert abs(node.error()) <= 500


def test_two_nodes_that_disagree_cannot_tell() -> None:
    node = Node(2, off=HOUR)
    node.hear(2)
    assert not node.trusted()
    assert node.error() == HOUR
    node.off = 0
    assert node.trusted()


def test_another_whose_clock_is_off_changes_nothing() -> None:
    node = Node(3)
    node.hear(2)
    node.hear(3, off=365 * 24 * HOUR)
    assert node.trusted()
    assert node.error() == 0


def test_three_that_contradict_each_other_are_not_believed() -> None:
    node = Node(3, off=HOUR)
    node.hear(2, off=-HOUR)
    node.hear(3)
    assert not node.trusted()
    assert node.error() == HOUR


def test_half_of_four_is_no_majority() -> None:
    node = Node(4)
    node.hear(2)
    node.hear(3, off=HOUR)
    node.hear(4, off=HOUR)
    assert not node.trusted()
    assert node.error() == 0


def test_the_own_clock_may_jump_at_any_time() -> None:
    node = Node(3)
    node.hear(2)
    node.hear(3)
    node.off = 5 * HOUR
    assert node.error() == 0, "found without another word"
    assert node.trusted()
    node.loop.advance(600)
    assert node.error() == 0
    node.off = 0
    assert node.error() == 0


def test_a_word_that_was_late_makes_nobody_look_slow() -> None:
    """A process that was stopped reads, when it goes on, what was said a minute ago."""
    node = Node(3)
    for peer in (2, 3):
        node.hear(peer)
        node.hear(peer, late=60)
    assert node.trusted()
    node.off = HOUR
    assert abs(node.error()) <= 1


def test_a_clock_that_was_set_right_is_believed_after_a_while() -> None:
    node = Node(3)
    node.hear(2, off=HOUR)
    assert not node.trusted()
    for _ in range(SAMPLES):
        node.hear(2)
    assert node.trusted()


@given(
    st.integers(1, 9),
    st.lists(st.integers(-3, 3), min_size=1, max_size=9),
    st.integers(0, 9),
)
def test_a_majority_within_the_limit_is_always_followed(nodes: int, offs: list[int], heard: int) -> None:
    """Clocks are off by whole hours, and by up to four seconds beside."""
    offs = (offs * nodes)[:nodes]
    node = Node(nodes, off=offs[0] * HOUR)
    for peer, off in list(enumerate(offs, 1))[1 : 1 + heard]:
        node.hear(peer, off * HOUR + 500 * (peer - 1))
    known = offs[: 1 + heard]
    agreed = [off for off in known if 2 * known.count(off) > nodes]
    assert node.trusted() == bool(agreed)
    if agreed:
        assert abs(node.error() - agreed[0] * HOUR) <= FAR_MS
    else:
        assert node.error() == offs[0] * HOUR
