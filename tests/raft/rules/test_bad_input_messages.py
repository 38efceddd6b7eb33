"""Malformed messages of an authenticated peer: its connection ends, and no group changes or stops by them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.node.raft.bad_message import BadMessage
from strandline.node.raft.entries import EntryKind, pack_entries, pack_members, unpack_entries, unpack_members
from strandline.node.raft.mesh.problems import MeshReason
from strandline.node.raft.rules.messages import FIELDS, MessageKind, decode
from tests.raft.mesh.mesh_nodes import Node, on_loop, started
from tests.raft.register_map import set_register
from tests.raft.small_cluster import SmallCluster

FUZZ = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
SET = bytes([EntryKind.REGULAR]) + set_register(10**9, "r", 1)

junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
small = st.integers(0, 2000)
plain = {int: small | st.integers(0, 2**63 - 1), float: st.floats(0, 1e9), bool: st.booleans()}


@pytest.fixture(scope="module")
def cluster() -> Iterator[SmallCluster]:
    with SmallCluster(groups=(1,)) as made:
        made.serve()
        made.load()
        made.run(2.0)
        made.unload()
        made.run(2.0)
        yield made


def state(cluster: SmallCluster, node: int) -> Any:
    group = cluster.group(node)
    return (
        group.failure, group.term, group.vote, group.role, group.leader, group.commit, group.applied,
        group.journal.base, group.journal.last, group.journal.last_term, group.journal.written,
        group.voters, group.damaged_below, group.quiesced_under, group.receiving.receiver,
        sorted((peer, each.match, each.next, each.phase) for peer, each in group.progress.items()),
    )  # fmt: skip


def assert_refused(cluster: SmallCluster, payload: Any) -> None:
    """By every node, from every peer, and as if it had never come."""
    for node in (1, 2, 3):
        before = state(cluster, node)
        for peer in (1, 2, 3):
            if peer != node:
                with pytest.raises(BadMessage) as raised:
                    cluster.hosts[node].peer_traffic.on_frame(peer, payload)
                assert str(raised.value).isprintable()
                assert len(str(raised.value)) < 200
        assert state(cluster, node) == before


def is_well_formed(payload: Any) -> bool:
    if type(payload) is not list or len(payload) != 2 or payload[0] != 0 or type(payload[1]) is not list:
        return False
    try:
        for message in payload[1]:
            decode(message)
    except BadMessage:
        return False
    return True


@FUZZ
@given(payload=junk | st.lists(junk, min_size=2, max_size=2))
def test_a_frame_that_is_anything_at_all(cluster: SmallCluster, payload: Any) -> None:
    if not is_well_formed(payload):
        if type(payload) is list and payload and type(payload[0]) is int and 1 <= payload[0] <= 4:
            return  # The pairs' own frames have a test of their own.
        assert_refused(cluster, payload)


@st.composite
def nearly_right(draw: st.DrawFn) -> list[Any]:
    """A message of a real kind with one thing wrong."""
    kind = draw(st.sampled_from(list(MessageKind)))
    fields = [draw(plain.get(each, st.just(b""))) for each in FIELDS[kind]]
    message: list[Any] = [1, int(kind), draw(small), *fields]
    position = draw(st.integers(0, len(message)))
    if position == len(message):
        message.append(draw(junk))
    elif draw(st.booleans()):
        message[position] = draw(junk)
    else:
        del message[position]
    return message


@FUZZ
@given(message=nearly_right())
def test_a_message_with_one_thing_wrong(cluster: SmallCluster, message: list[Any]) -> None:
    if not is_well_formed([0, [message]]):
        assert_refused(cluster, [0, [message]])


@pytest.mark.parametrize(
    "message",
    [
        [1, int(MessageKind.VOTE), 2**64 - 1, 1, 1, False],
        [1, int(MessageKind.VOTE), -1, 1, 1, False],
        [1, int(MessageKind.VOTE), 9, 2**64 - 1, 1, False],
        [1, int(MessageKind.VOTE), 9, 1, -1, False],
        [1, int(MessageKind.VOTE), 9, 1, 1, 0],
        [1, int(MessageKind.VOTE), True, 1, 1, False],
        [1, int(MessageKind.VOTE), 9, 1.0, 1, False],
        [1, int(MessageKind.APPEND_REPLY), 1, True, 2**63, 0, 0, 1.0],
        [1, int(MessageKind.APPEND_REPLY), 1, True, 1, 0, 0, float("nan")],
        [1, int(MessageKind.APPEND_REPLY), 1, True, 1, 0, 0, float("inf")],
        [1, int(MessageKind.APPEND), 9, 1, 1, 0, "text", 1.0],
        [1, int(MessageKind.SNAPSHOT), 9, 1, 1, 0, 2**63, b"", b"", 1.0],
        [1, 0, 9],
        [1, 99, 9],
        ["1", int(MessageKind.TIMEOUT_NOW), 9],
        [1, int(MessageKind.TIMEOUT_NOW), 9, 9],
    ],
)
def test_a_message_out_of_shape_or_range(cluster: SmallCluster, message: list[Any]) -> None:
    assert_refused(cluster, [0, [message]])


@pytest.mark.parametrize(
    "packed",
    [
        b"\xc1",
        b"garbage",
        msgpack.packb([1, [1, 1]]),
        msgpack.packb([1, [1, 1], []]),
        msgpack.packb([1, [1, 1], [b""]]),
        msgpack.packb([1, [1, 1], ["text"]]),
        msgpack.packb([1, [1, 1], b"text"]),
        msgpack.packb([1, [1, 2], [SET]]),
        msgpack.packb([1, [1], [SET]]),
        msgpack.packb([1, [], [SET]]),
        msgpack.packb([1, {"a": 1}, [SET]]),
        msgpack.packb([1, ["1", 1], [SET]]),
        msgpack.packb([1, [1.0, 1], [SET]]),
        msgpack.packb([1, [True, 1], [SET]]),
        msgpack.packb([1, [-1, 1], [SET]]),
        msgpack.packb([1, [0, 1], [SET]]),
        msgpack.packb([1, [2**64 - 1, 1], [SET]]),
        msgpack.packb([1, [2, 1, 1, 1], [SET, SET]]),
        msgpack.packb([1, [1, 2**40, 2, 1 - 2**40], [SET]]),
        msgpack.packb([0, [1, 1], [SET]]),
        msgpack.packb(["1", [1, 1], [SET]]),
        msgpack.packb([2**64 - 1, [1, 1], [SET]]),
        msgpack.packb([1, [1, 1], [b"\x09 of no known kind"]]),
        msgpack.packb([1, [1, 1], [b"\x02"]]),
        msgpack.packb([1, [1, 1], [b"\x02" + msgpack.packb(["ab", []])]]),
        msgpack.packb([1, [1, 1], [b"\x02" + msgpack.packb([["a"], []])]]),
        msgpack.packb([1, [1, 1], [b"\x02" + msgpack.packb([[], [1]])]]),
        msgpack.packb([1, [1, 1], [b"\x02" + msgpack.packb([[1, 1], []])]]),
        msgpack.packb([1, [1, 1], [b"\x02" + msgpack.packb([[1, 2], [2]])]]),
        msgpack.packb([1, [1, 1], [b"\x02" + msgpack.packb([[0, 2], []])]]),
        pack_entries([(SET, 1, 1)])[:-1],
        pack_entries([(SET, 1, 1)]) + b"\0",
    ],
)
def test_a_run_of_entries_that_is_none(cluster: SmallCluster, packed: bytes) -> None:
    with pytest.raises(BadMessage):
        unpack_entries(packed)
    for ahead in (0, 1):
        term = cluster.group(cluster.leader()).term + ahead
        message = [1, int(MessageKind.APPEND), term, 0, 0, 0, packed, 1.0]
        node = cluster.followers()[0]
        before = state(cluster, node)
        with pytest.raises(BadMessage):
            cluster.hosts[node].peer_traffic.on_frame(cluster.leader(), [0, [message]])
        assert state(cluster, node) == before, "not even the term"


def test_entries_that_cannot_follow_are_refused(cluster: SmallCluster) -> None:
    leader, node = cluster.leader(), cluster.followers()[0]
    group = cluster.group(node)
    last, term = group.journal.last, group.term
    for entry, previous_term in [
        ((SET, last + 2, term), term),  # leaves a gap
        ((SET, last, term), term),  # does not follow the previous one
        ((SET, last + 1, term + 1), term),  # newer than its leader
        ((SET, last + 1, term - 1 or 1), term + 1),  # older than what it follows
    ]:
        message = [1, int(MessageKind.APPEND), term, last, previous_term, 0, pack_entries([entry]), 1.0]
        before = state(cluster, node)
        with pytest.raises(BadMessage):
            cluster.hosts[node].peer_traffic.on_frame(leader, [0, [message]])
        assert state(cluster, node) == before


@FUZZ
@given(st.binary(max_size=60) | junk.map(msgpack.packb) | st.tuples(junk, junk, junk).map(msgpack.packb))
def test_whatever_a_run_of_entries_holds_it_is_read_or_refused(data: bytes) -> None:
    try:
        entries = unpack_entries(data)
    except BadMessage:
        return
    assert [index for _, index, _ in entries] == list(range(entries[0][1], entries[0][1] + len(entries)))
    assert all(type(term) is int and type(command) is bytes for command, _, term in entries)


@FUZZ
@given(st.binary(max_size=30) | st.lists(junk, max_size=3).map(msgpack.packb))
def test_whatever_a_membership_entry_holds_it_is_read_or_refused(data: bytes) -> None:
    try:
        voters, learners, folders = unpack_members(b"\x02" + data)
    except BadMessage:
        return
    again = unpack_members(pack_members(voters, learners, folders))
    assert again == (tuple(sorted(voters)), tuple(sorted(learners)), folders)


@pytest.mark.parametrize(
    "folders",
    [[], [1], [1, 7, 2], [1, 0], [1, -7], [2, 7, 1, 7], [1, 7, 1, 8], [9, 7], ["1", 7], [1, 2**63], 7],
)
def test_membership_entry_with_folders_that_cannot_be_is_refused(folders: Any) -> None:
    with pytest.raises(BadMessage):
        unpack_members(b"\x02" + msgpack.packb([[1, 2], [3], folders]))


@FUZZ
@given(kind=st.integers(1, 6), fields=st.lists(junk, max_size=4), lists=st.lists(junk, max_size=4))
def test_frames_about_quiet_groups(cluster: SmallCluster, kind: int, fields: list[Any], lists: Any) -> None:
    """A pair's frame may wake a group, and then it says what it says itself; it changes nothing else."""
    cluster.run(0.3)
    for payload in ([kind, *fields], [kind, lists], [kind, [*lists, [1, 1]]]):
        for node in (1, 2, 3):
            before = state(cluster, node)[:13]
            try:
                cluster.hosts[node].peer_traffic.on_frame(1 + node % 3, payload)
            except BadMessage as error:
                assert len(str(error)) < 200  # noqa: PT017 - most are refused, none need be
            assert state(cluster, node)[:13] == before


REPLIES = (
    MessageKind.APPEND_REPLY,
    MessageKind.VOTE_REPLY,
    MessageKind.PRE_VOTE_REPLY,
    MessageKind.SNAPSHOT_REPLY,
    MessageKind.NEED_SNAPSHOT,
)


def test_well_formed_lies_stop_no_replica() -> None:
    """A member is believed, but answers that cannot be must not take the replica down that hears them."""
    chance = random.Random(7)
    with SmallCluster(groups=(1,)) as cluster:
        cluster.serve()
        cluster.load()
        cluster.run(1.0)
        refused = 0
        for _ in range(2_000):
            leader = cluster.leader()
            last = cluster.group(leader).journal.last
            kind = chance.choice(REPLIES)
            fields: list[Any] = []
            for each in FIELDS[kind]:
                if each is int:
                    fields.append(last + chance.choice((1, 2, 10**6, 2**63 - 1 - last)))
                else:
                    fields.append(each(chance.randint(0, 1)))
            message = [1, int(kind), cluster.group(leader).term, *fields]
            try:
                cluster.hosts[leader].peer_traffic.on_frame(
                    chance.choice(cluster.followers()), [0, [message]]
                )
            except BadMessage:
                refused += 1
        assert refused > 500
        cluster.run(1.0)
        assert cluster.failed == []
        cluster.settle()


@on_loop
async def test_a_bad_message_ends_its_connection_with_one_line() -> None:
    def refuse(_: int, __: object) -> None:
        raise BadMessage("no such message")

    low, high = Node(1), Node(2, on_frame=refuse)
    async with started(low, high):
        low.mesh.send(2, "anything")
        assert "no such message" in str(await high.problem(MeshReason.GARBAGE))
        await high.until(lambda: ("down", 1) in high.events)


def test_after_all_that_the_cluster_still_serves(cluster: SmallCluster) -> None:
    cluster.settle()
    assert cluster.failed == []
