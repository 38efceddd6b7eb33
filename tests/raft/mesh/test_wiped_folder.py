"""A data folder that was wiped and started again under its old node id neither votes nor counts.

The scene of the first tests lost, without a word, what two untouched disks of three held: entries that nodes
2 and 3 acknowledged while node 1 was down, then node 3's folder wiped, then nodes 1 and 3 started.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import msgpack
import pytest

from strandline.node.raft.data_folder import NO_FOLDER, Folder, RunBlocking, Standing
from strandline.node.raft.folder_file import FolderError, FolderFields, FolderFile, FolderKey
from strandline.node.raft.host import RaftHost
from strandline.node.raft.mesh.link import Link
from strandline.node.raft.outcome import Applied
from strandline.node.raft.rules.progress import NEVER
from strandline.node.raft.wal.write_ahead_log import WalError
from tests.raft.memory_folder import memory_folder, run_at_once, store
from tests.raft.small_cluster import SmallCluster
from tests.simulation.disk import SimCrash, SimDisk


def wipe(cluster: SmallCluster, node: int) -> None:
    """The node is down, and comes back with nothing."""
    cluster.stop(node)
    cluster.world.nodes[node].replace_disk()
    cluster.start(node)


def acknowledged_by_two_and_one_of_them_wiped(cluster: SmallCluster) -> None:
    """Until nodes 1 and 3 run, of which neither holds the newest entries."""
    cluster.serve()
    cluster.load()
    cluster.run(1.0)
    cluster.stop(1)
    cluster.run(3.0)
    cluster.unload()
    cluster.run(0.5)
    assert all(len(acked) > 100 for acked in cluster.acked.values())
    cluster.stop(2)
    cluster.start(1)
    wipe(cluster, 3)
    cluster.run(10.0)


def lost(cluster: SmallCluster, node: int) -> list[int]:
    machine = cluster.machine(node)
    return [command for command in cluster.acked[1] if command not in machine.applied]


def test_majority_with_a_wiped_folder_elects_no_leader_and_says_why_on_both_sides() -> None:
    with SmallCluster() as cluster:
        acknowledged_by_two_and_one_of_them_wiped(cluster)
        assert not any(cluster.leaders(group) for group in cluster.group_ids)
        [there] = [line for line in cluster.problems[1] if "other_folder" in line]
        assert "and node 3 of this cluster had another" in there
        assert "`strandline node replace 3`" in there
        [here] = [line for line in cluster.problems[3] if "other_folder" in line]
        assert "it knows this node by another data folder" in here or "knows this node by data folder" in here
        assert cluster.hosts[1].mesh.strangers.known.keys() == {3}
        assert cluster.hosts[3].mesh.strangers.is_disowned()
        cluster.start(2)
        cluster.run(5.0)
        leader = cluster.leader()
        assert leader in (1, 2)
        assert lost(cluster, leader) == []
        assert not cluster.group(3).journal.last, "the wiped node got nothing"


def test_wiped_folder_is_known_as_such_after_every_node_restarted() -> None:
    with SmallCluster() as cluster:
        acknowledged_by_two_and_one_of_them_wiped(cluster)
        for node in (1, 3):
            cluster.stop(node, "power")
        cluster.start(1, 3)
        cluster.run(5.0)
        assert not cluster.leaders()
        cluster.start(2)
        cluster.run(5.0)
        assert lost(cluster, cluster.leader()) == []


@pytest.mark.parametrize("node", [1, 3], ids=["it is dialled", "it dials"])
def test_wiped_node_knows_that_the_others_disown_it(node: int) -> None:
    """It says so itself, in /health, and lets no other node be replaced."""
    with SmallCluster() as cluster:
        cluster.serve()
        cluster.run(1.0)
        wipe(cluster, node)
        cluster.run(3.0)
        for other in cluster.voters:
            strangers = cluster.hosts[other].mesh.strangers
            assert strangers.is_disowned() == (other == node)
            assert list(strangers.knocking()) == ([] if other == node else [node])


def folders_not_compared() -> contextlib.AbstractContextManager[object]:
    return patch.object(Folder, "reason_to_refuse", lambda *_: None)


def folders_kept_in_memory() -> contextlib.AbstractContextManager[object]:
    """What a node knows of the others is gone with its process."""
    made = Folder.__init__

    def forget(folder: Folder, file: FolderFile, fields: FolderFields, run_blocking: RunBlocking) -> None:
        made(folder, file, replace(fields, peers={}), run_blocking)

    return patch.object(Folder, "__init__", forget)


@pytest.mark.parametrize("hole", [folders_not_compared, folders_kept_in_memory])
def test_the_scene_loses_what_was_acknowledged_when_a_hole_is_open(
    hole: Callable[[], contextlib.AbstractContextManager[object]],
) -> None:
    """The tests above prove something: each hole, opened again, makes the wiped folder's vote count."""
    with hole(), SmallCluster() as cluster:
        acknowledged_by_two_and_one_of_them_wiped(cluster)
        assert lost(cluster, cluster.leader()) != []


def test_wiped_node_is_let_in_by_way_of_the_members_and_then_counts() -> None:
    """What `strandline node replace` does to the log: removed from every group, let in, added again."""
    with SmallCluster() as cluster:
        cluster.serve()
        cluster.load()
        cluster.run(1.0)
        cluster.voters_of[3] = ()
        wipe(cluster, 3)
        cluster.run(2.0)
        for group in cluster.group_ids:
            leading = cluster.group(cluster.leader(group), group)
            removed = leading.host.loop.create_task(ended(leading.remove_member(3)))
            assert cluster.world.run_until(removed.done, timeout=5.0)
            assert isinstance(removed.result(), Applied)
        folder = cluster.hosts[3].folder
        for node in (1, 2):
            cluster.world.nodes[node].call(told, cluster.hosts[node], {3: FolderKey(1, folder.id)})
        cluster.run(2.0)
        assert not cluster.group(3).voters, "connected, and no member yet"
        for group in cluster.group_ids:
            leading = cluster.group(cluster.leader(group), group)
            added = leading.host.loop.create_task(ended(leading.add_member(3)))
            assert cluster.world.run_until(added.done, timeout=10.0)
            assert isinstance(added.result(), Applied)
        # And now it counts: with it alone each of the others serves.
        for away in (1, 2):
            cluster.stop(away)
            cluster.run(3.0)
            assert cluster.all_led()
            cluster.start(away)
            cluster.run(2.0)
        cluster.settle()


def told(host: RaftHost, known: dict[int, FolderKey]) -> list[Exception | None]:
    """What the controller says comes to a node; the result of each write of it comes into the list."""
    results: list[Exception | None] = []
    host.know_folders(known)
    host.store_folder(results.append)
    return results


def as_newcomer(host: RaftHost) -> None:
    """Its folder may have had a predecessor, and nothing gives it a vote."""
    opened = host.open

    def open_as_newcomer() -> None:
        opened()
        host.folder.newcomer = True

    host.open = open_as_newcomer  # type: ignore[method-assign]


def newcomer_to(cluster: SmallCluster) -> tuple[RaftHost, SimDisk]:
    """Node 3, which comes to a cluster that serves, and its disk."""
    cluster.prepare[3] = as_newcomer
    cluster.serve()
    cluster.run(1.0)
    return cluster.hosts[3], cluster.world.nodes[3].disk


def test_newcomer_follows_and_counts_for_nothing() -> None:
    """Not for a commit, a lease, an election or a transfer, whichever of these is looked at alone."""
    with SmallCluster(groups=(1,)) as cluster:
        cluster.prepare[3] = as_newcomer
        cluster.serve()
        cluster.load()
        cluster.run(2.0)
        leader = cluster.leader()
        assert leader != 3
        other = 3 - leader
        leading = cluster.group(leader)
        assert leading.progress[3].match > 100, "it follows"
        assert leading.commitment.match_of(3) == 0
        assert leading.lease.acked_at(3) == NEVER
        assert not leading.has_majority({leader, 3})
        assert leading.has_majority({leader, other})
        assert not leading.leadership_transfer.could_lead(3)
        assert not leading.transfer(3)
        assert not cluster.group(3).election.has_vote()
        cluster.stop(other)
        cluster.run(0.02)
        known = len(cluster.acked[1])
        cluster.run(5.0)
        assert len(cluster.acked[1]) == known, "nothing is committed with a newcomer"
        assert not cluster.leaders()


def test_node_is_left_out_once_a_majority_of_the_others_has_the_present_members() -> None:
    """A voter that still has fewer members needs fewer votes: one of four, and the new folder's, would do."""
    with SmallCluster(groups=(1,), nodes=(1, 2, 3, 4)) as cluster:
        cluster.serve()
        cluster.run(1.0)
        leading = cluster.group(cluster.leader())
        back, late, lost = cluster.followers()

        def change(future: object) -> None:
            task = leading.host.loop.create_task(ended(future))
            assert cluster.world.run_until(task.done, timeout=10.0)
            assert isinstance(task.result(), Applied)

        change(leading.remove_member(back))
        cluster.run(1.0)
        assert leading.members_held_without(lost), "all have them"
        cluster.stop(late)
        change(leading.add_member(back))
        assert len(leading.voters) == 4
        assert not leading.members_held_without(lost), "the late one still counts three members"
        cluster.start(late)
        cluster.run(3.0)
        assert leading.is_leader
        assert leading.members_held_without(lost)


async def ended(future: object) -> object:
    return await future  # type: ignore[misc]


def test_replica_that_knows_no_members_votes_for_nobody() -> None:
    """It may have belonged to the group before: a candidate with an old log must not win by its vote."""
    with SmallCluster(groups=(1,)) as cluster:
        cluster.voters_of[3] = ()
        cluster.start(1, 3)
        cluster.run(10.0)
        assert not cluster.leaders()
        assert not cluster.group(3).vote


def put_back(cluster: SmallCluster, node: int, files: dict[str, bytes]) -> None:
    """The node is down, and comes back with a copy of its folder."""
    cluster.stop(node)
    machine = cluster.world.nodes[node]
    machine.replace_disk()
    machine.disk.turn_on()
    for path, data in files.items():
        folder = path.rpartition("/")[0]
        if not machine.disk.exists(folder):
            machine.disk.mkdir(folder)
        file = machine.disk.open(path, create=True)
        file.write_durably([data])
        file.close()
        machine.disk.sync_dir(folder)
    cluster.start(node)


def test_leader_says_that_a_node_came_back_with_an_older_copy_of_its_folder(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The identity is the right one, and what it acknowledged since is gone: nothing else tells of that."""
    with SmallCluster(groups=(1,)) as cluster:
        cluster.serve()
        cluster.load()
        cluster.run(1.0)
        leading, back = cluster.group(cluster.leader()), cluster.followers()[0]
        copy = cluster.world.nodes[back].disk.snapshot()
        cluster.run(0.5)
        cluster.unload()
        cluster.run(0.5)
        held = leading.progress[back].match
        put_back(cluster, back, copy)
        cluster.run(5.0)
        assert leading.is_leader
        assert leading.lost_acknowledged == {back}
        assert leading.in_sync() == 2
        [told] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert f"node {back} no longer holds entries up to {held}, which it had acknowledged" in told
        assert f"`strandline node replace {back}`" in told
        # Once the log begins above that, a snapshot brings all of it back.
        cluster.load()
        cluster.run(5.0)
        assert leading.is_leader
        assert leading.lost_acknowledged == set()
        assert leading.in_sync() == 3


def test_node_that_left_the_group_has_lost_nothing_of_it_any_more() -> None:
    with SmallCluster(groups=(1,)) as cluster:
        cluster.serve()
        leading, (other, _) = cluster.group(cluster.leader()), cluster.followers()
        cluster.stop(other)
        leading.lost_acknowledged.add(other)
        removed = leading.host.loop.create_task(ended(leading.remove_member(other)))
        assert cluster.world.run_until(removed.done, timeout=5.0)
        assert leading.lost_acknowledged == set()


def test_leader_of_a_later_term_says_nothing_of_what_an_earlier_one_found() -> None:
    with SmallCluster(groups=(1,)) as cluster:
        cluster.serve()
        leading, (other, away) = cluster.group(cluster.leader()), cluster.followers()
        cluster.stop(away)
        leading.lost_acknowledged.add(away)
        assert leading.transfer(other)
        cluster.run(2.0)
        assert cluster.leader() == other
        assert cluster.group(other).transfer(leading.host.node_id)
        cluster.run(2.0)
        assert leading.is_leader
        assert leading.lost_acknowledged == set()


# The file.


def test_folder_keeps_its_identity_and_what_it_knows() -> None:
    folder = memory_folder(3)
    folder.meet(1, Standing(FolderKey(0, 11)))
    folder.meet(2, Standing(FolderKey(2, 22)))
    folder.settle(votes=True, generation=1, incarnation="i")
    store(folder)
    again = reopened(folder)
    assert (again.id, again.generation, again.incarnation, again.votes) == (folder.id, 1, "i", True)
    assert again.known == {1: FolderKey(0, 11), 2: FolderKey(2, 22)}


def test_what_the_controller_said_of_a_folder_is_not_taken_back() -> None:
    folder = memory_folder(3)
    folder.settle(votes=True, generation=2, incarnation="first")
    store(folder)
    folder.settle(votes=False, generation=1, incarnation="second")
    store(folder)
    again = reopened(folder)
    assert (again.generation, again.incarnation, again.votes) == (2, "first", True)


def reopened(folder: Folder, *, logged: bool = True, node: int = 3, cluster: str = "blue") -> Folder:
    return Folder.open(disk_of(folder), "/data", node, cluster, random.Random(9), run_at_once, logged=logged)


def disk_of(folder: Folder) -> SimDisk:
    disk = folder._file._disk
    assert isinstance(disk, SimDisk)
    return disk


def test_crash_at_any_step_of_a_change_keeps_the_old_or_the_new() -> None:
    steps = 0
    while True:
        steps += 1
        folder = memory_folder(3)
        disk = disk_of(folder)
        folder.meet(1, Standing(FolderKey(0, 11)))
        store(folder)
        disk.on_crash = lambda kind, disk=disk: disk.crash(kind)
        disk.crash_at(steps)
        try:
            folder.meet(2, Standing(FolderKey(0, 22)))
            store(folder)
        except SimCrash:
            disk.turn_on()
            again = reopened(folder)
            assert again.id == folder.id
            assert again.known in ({1: FolderKey(0, 11)}, {1: FolderKey(0, 11), 2: FolderKey(0, 22)})
            continue
        break
    assert steps > 4


def test_peer_does_not_count_when_the_disk_did_not_take_its_folder() -> None:
    folder, met = memory_folder(3), Standing(FolderKey(0, 11))
    disk_of(folder).fill(0)
    folder.meet(1, met)
    with pytest.raises(OSError, match="No space left"):
        store(folder)
    assert not folder.has_stored(1, met)
    assert reopened(folder).known == {}
    disk_of(folder).empty()
    store(folder)
    assert folder.has_stored(1, met)
    assert reopened(folder).known == {1: FolderKey(0, 11)}


def test_nothing_that_lets_a_folder_in_holds_before_it_is_durable() -> None:
    """A vote and a peer wait for the disk; what keeps a folder out does not."""
    jobs: list[tuple[Callable[[], object], Callable[[Any, Exception | None], None]]] = []
    ends: list[str] = []
    folder = memory_folder(3)
    folder.meet(2, Standing(FolderKey(1, 22)))
    store(folder)
    folder._run_blocking = lambda job, done: jobs.append((job, done))
    folder.meet(1, Standing(FolderKey(0, 11)))
    folder.store(lambda error: ends.append(f"met {error}"))
    folder.learn({2: FolderKey(2, 33)})
    folder.settle(votes=True, generation=1, incarnation="i")
    folder.store(lambda error: ends.append(f"voted {error}"))
    assert len(jobs) == 1, "one write at a time"
    assert ends == []
    assert not folder.has_stored(1, Standing(FolderKey(0, 11)))
    assert folder.reason_to_refuse(2, Standing(FolderKey(1, 22))) is not None, "at once"
    job, done = jobs.pop()
    job()
    done(None, None)
    assert ends == ["met None"]
    assert folder.has_stored(1, Standing(FolderKey(0, 11)))
    assert not folder.has_stored(2, Standing(FolderKey(2, 33)))
    assert (folder.votes, folder.generation) == (False, 0)
    job, done = jobs.pop()
    done(None, OSError(28, "No space left on device"))
    assert ends == ["met None", "voted [Errno 28] No space left on device"]
    assert not folder.votes
    folder.store(lambda error: ends.append(f"again {error}"))
    job, done = jobs.pop()
    job()
    done(None, None)
    assert ends[2:] == ["again None"]
    assert (folder.votes, folder.generation, folder.incarnation) == (True, 1, "i")
    assert folder.has_stored(2, Standing(FolderKey(2, 33)))
    assert reopened(folder).known == {1: FolderKey(0, 11), 2: FolderKey(2, 33)}
    assert not jobs


def test_peer_counts_once_its_folder_is_on_the_disk_and_the_loop_goes_on_meanwhile() -> None:
    """What it sends meanwhile is kept. A disk that hangs ends the connection, which is made again."""
    sent: list[Any] = []
    seen: list[tuple[bool, Any]] = []

    def note_what_is_sent(host: RaftHost) -> None:
        send = host.mesh.send

        def noted(peer: int, payload: Any) -> bool:
            taken = send(peer, payload)
            if taken:
                sent.append(msgpack.unpackb(msgpack.packb(payload)))
            return taken

        host.mesh.send = noted  # type: ignore[method-assign]

    with SmallCluster(groups=(1,)) as cluster:
        cluster.prepare[2] = note_what_is_sent
        cluster.start(1, 2)
        disk = cluster.world.nodes[1].disk
        disk.stall()
        cluster.run(3.0)
        assert sent
        host = cluster.hosts[1]
        assert not host.connected(2)
        assert cluster.hosts[2].connected(1)
        assert host.mesh.counters["frames_received"] == 0
        taken = host.peer_traffic.on_frame

        def take(peer: int, frame: Any) -> None:
            seen.append((host.connected(peer), frame))
            taken(peer, frame)

        host.mesh._on_frame = take
        disk.unstall()
        cluster.run(1.0)
        assert host.connected(2)
        assert [frame for _, frame in seen[:5]] == sent[:5]
        assert all(connected for connected, _ in seen)
        assert not any("not_noted" in line for line in cluster.problems.get(1, ()))
    with SmallCluster(groups=(1,)) as cluster:
        cluster.start(1, 2)
        cluster.world.nodes[1].disk.stall()
        cluster.run(20.0)
        assert any("is not on this node's disk after" in line for line in cluster.problems[1])
        cluster.world.nodes[1].disk.unstall()
        cluster.run(5.0)
        assert cluster.hosts[1].connected(2)


def test_vote_counts_once_it_is_on_the_disk() -> None:
    with SmallCluster(groups=(1,)) as cluster:
        host, disk = newcomer_to(cluster)
        ends: list[Exception | None] = []

        def give() -> None:
            host.give_vote()
            host.store_folder(ends.append)

        disk.stall()
        cluster.world.nodes[3].call(give)
        cluster.run(0.2)
        before = host.newcomer, list(ends)
        disk.unstall()
        cluster.run(2.0)
        assert before == (True, [])
        assert (host.newcomer, ends) == (False, [None])
        assert all(cluster.hosts[node].is_newcomer(3) is False for node in (1, 2))


def test_newcomer_stays_one_while_the_disk_does_not_take_its_vote_and_whatever_else_it_takes() -> None:
    with SmallCluster(groups=(1,)) as cluster:
        host, disk = newcomer_to(cluster)
        ends: list[Exception | None] = []

        def stored() -> tuple[str, bool]:
            host.store_folder(ends.append)
            cluster.run(0.5)
            return str(ends.pop()), host.newcomer

        host.know_folders({1: FolderKey(1, host.folder.known[1].folder)})
        assert stored() == ("None", True), "a list of folders was written, and no vote"
        disk.fill(0)
        host.give_vote()
        error, newcomer = stored()
        assert "No space left" in error
        assert newcomer
        disk.empty()
        assert stored() == ("None", False)


def test_node_that_has_stopped_writes_no_identity_any_more() -> None:
    """The log's lock went with it, and another process may have the folder."""
    with SmallCluster(groups=(1,)) as cluster:
        cluster.serve()
        cluster.run(1.0)
        host, disk = cluster.hosts[1], cluster.world.nodes[1].disk
        stopping = host.loop.create_task(host.stop(0.0))
        assert cluster.world.run_until(stopping.done, timeout=10.0)
        before = disk.read("/data/identity")
        told(host, {3: FolderKey(2, 0xD)})
        cluster.run(1.0)
        assert disk.read("/data/identity") == before


def test_folder_that_was_replaced_is_let_go_of_at_once() -> None:
    """Its process may still run where the controller does not hear it."""
    with SmallCluster(groups=(1,)) as cluster:
        cluster.serve()
        cluster.run(1.0)
        host = cluster.hosts[1]
        assert host.connected(3)
        told(host, {3: FolderKey(2, 0xD)})
        assert not host.connected(3)
        cluster.run(3.0)
        assert not host.connected(3)


def test_folder_that_was_replaced_counts_no_more_though_the_disk_cannot_note_it() -> None:
    """A leader whose disk is full would count the old folder's word where the new one is a member."""
    with SmallCluster(groups=(1,)) as cluster:
        cluster.serve()
        cluster.run(1.0)
        host, disk = cluster.hosts[1], cluster.world.nodes[1].disk
        disk.fill(0)
        results = told(host, {3: FolderKey(2, 0xD)})
        cluster.run(3.0)
        assert "No space left" in str(results)
        assert not host.mesh.connected(3)
        in_force = Standing(FolderKey(2, 0xD))
        assert not host.folder.has_stored(3, in_force)
        disk.empty()
        results = told(host, {3: FolderKey(2, 0xD)})
        cluster.run(3.0)
        assert results == [None]
        assert not host.mesh.connected(3), "it is not the one in force"
        assert host.folder.has_stored(3, in_force)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "is damaged"),
        (b"{}", "is damaged"),
        (b'{"crc32": 1, "identity": "{}"}', "its checksum does not match"),
    ],
)
def test_damaged_identity_is_refused_with_the_cure(data: bytes, text: str) -> None:
    folder = memory_folder(3)
    disk_of(folder).unlink("/data/identity")
    file = disk_of(folder).open("/data/identity", create=True)
    file.pwrite(data, 0)
    with pytest.raises(FolderError, match=text) as caught:
        reopened(folder)
    assert str(caught.value).startswith("/data/identity is damaged")
    assert "strandline node replace" in str(caught.value)


def test_identity_of_another_node_or_cluster_is_refused() -> None:
    folder = memory_folder(3)
    for node, cluster in ((2, "blue"), (3, "green")):
        with pytest.raises(FolderError, match="belongs to node 3 of cluster 'blue', this is node"):
            reopened(folder, node=node, cluster=cluster)


def test_log_without_an_identity_and_identity_without_a_log_are_refused() -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        cluster.load()
        cluster.run(1.0)
        cluster.stop(3)
        disk = cluster.world.nodes[3].disk
        disk.turn_on()
        disk.unlink("/data/identity")
        cluster.start(3)
        cluster.run(0.1)
        assert isinstance(cluster.refusals[3], FolderError)
        assert "/data/identity is missing while the write-ahead log is there" in str(cluster.refusals[3])
        cluster.stop(2)
        disk = cluster.world.nodes[2].disk
        disk.turn_on()
        for path in list(disk.snapshot()):
            if path != "/data/identity":
                disk.unlink(path)
        cluster.start(2)
        cluster.run(0.1)
        assert isinstance(cluster.refusals[2], WalError)
        assert "/data/wal holds no log while /data/identity exists" in str(cluster.refusals[2])


def test_a_folder_of_a_higher_generation_takes_the_place_of_an_earlier_one() -> None:
    """A node that was away while another was replaced lets the new folder in, and the old one no more."""
    folder = memory_folder(1)
    folder.meet(3, Standing(FolderKey(1, 0xC)))
    assert folder.reason_to_refuse(3, Standing(FolderKey(0, 0xD))) is not None
    assert folder.reason_to_refuse(3, Standing(FolderKey(1, 0xD))) is not None
    assert folder.reason_to_refuse(3, Standing(FolderKey(2, 0xD))) is None
    folder.meet(3, Standing(FolderKey(2, 0xD)))
    assert folder.reason_to_refuse(3, Standing(FolderKey(1, 0xC))) is not None
    assert folder.reason_to_refuse(3, Standing(FolderKey(0, 0xD))) is None, (
        "it was let in, and has not heard of it"
    )


def test_folder_that_has_not_heard_of_its_count_yet_does_not_lower_it() -> None:
    """Else the folder before it, which knows its own, would count as the newer one."""
    folder = memory_folder(1)
    folder.learn({3: FolderKey(2, 0xD)})
    for generation in (0, 1):
        folder.meet(3, Standing(FolderKey(generation, 0xD)))
    assert folder.known == {3: FolderKey(2, 0xD)}
    assert folder.reason_to_refuse(3, Standing(FolderKey(1, 0xC))) is not None


def test_new_folder_is_let_in_once_the_groups_have_left_the_one_before_out() -> None:
    folder = memory_folder(1)
    folder.learn({3: FolderKey(1, 0xC)})
    folder.learn({3: FolderKey(2, NO_FOLDER)})
    store(folder)
    folder = reopened(folder, node=1)
    for key in (FolderKey(1, 0xC), FolderKey(0, 0xD)):
        refusal = folder.reason_to_refuse(3, Standing(key))
        assert refusal is not None
        assert "is being replaced" in refusal
    folder.learn({3: FolderKey(2, 0xD)})
    assert folder.reason_to_refuse(3, Standing(FolderKey(0, 0xD))) is None
    assert folder.reason_to_refuse(3, Standing(FolderKey(1, 0xC))) is not None


def test_controller_state_of_before_a_replacement_brings_no_folder_back() -> None:
    """A node that starts applies the log from the beginning; meanwhile the folders of then may come."""
    folder = memory_folder(1)
    folder.learn({3: FolderKey(2, 0xD)})
    folder.learn({3: FolderKey(1, 0xC)})
    assert folder.known == {3: FolderKey(2, 0xD)}
    assert folder.reason_to_refuse(3, Standing(FolderKey(1, 0xC))) is not None
    folder.learn({3: FolderKey(2, NO_FOLDER)})
    assert folder.known == {3: FolderKey(2, 0xD)}, "nor does one of amid the replacement lock the new one out"
    assert folder.reason_to_refuse(3, Standing(FolderKey(2, 0xD))) is None


def test_a_folder_of_another_incarnation_is_refused() -> None:
    folder = memory_folder(1)
    folder.settle(votes=True, generation=1, incarnation="first")
    store(folder)
    assert folder.reason_to_refuse(3, Standing(FolderKey(0, 0xD), "")) is None
    refusal = folder.reason_to_refuse(3, Standing(FolderKey(0, 0xD), "second"))
    assert refusal is not None
    assert "another incarnation of this cluster (second, here first)" in refusal


@pytest.mark.parametrize(("node", "peer"), [(1, 3), (3, 1)], ids=["it is dialled", "it dials"])
def test_folder_that_is_replaced_during_a_handshake_is_not_let_in(node: int, peer: int) -> None:
    """What either side knew of the other's folder when the connection was opened is no longer true."""

    def then_replaced(host: RaftHost) -> None:
        link_opened = host.mesh.link_opened

        def opened(link: Link) -> None:
            link_opened(link)
            host.loop.call_soon(host.know_folders, {peer: FolderKey(2, 0xD)})

        host.mesh.link_opened = opened  # type: ignore[method-assign]

    with SmallCluster() as cluster:
        cluster.prepare[node] = then_replaced
        came: list[int] = []
        cluster.start()
        cluster.run(0.0)
        cluster.hosts[node].watch_peers(came.append, lambda _: None)
        cluster.run(5.0)
        assert peer not in came
        assert not cluster.hosts[node].mesh.connected(peer)


@pytest.mark.parametrize("node", [1, 3], ids=["it is dialled", "it dials"])
def test_vote_that_comes_during_a_handshake_is_known_to_the_peers(node: int) -> None:
    """What the hello said was true when it was sent, and would hold for as long as the connection does."""

    def newcomer(host: RaftHost) -> None:
        opened, link_opened = host.open, host.mesh.link_opened

        def open_as_newcomer() -> None:
            opened()
            host.folder.newcomer = True

        def vote() -> None:
            host.give_vote()
            host.store_folder(lambda _: None)

        def then_a_vote(link: Link) -> None:
            link_opened(link)
            host.loop.call_soon(vote)

        host.open = open_as_newcomer  # type: ignore[method-assign]
        host.mesh.link_opened = then_a_vote  # type: ignore[method-assign]

    with SmallCluster() as cluster:
        cluster.prepare[node] = newcomer
        cluster.start()
        cluster.run(5.0)
        assert not cluster.hosts[node].newcomer
        for other in cluster.voters:
            if other != node:
                assert cluster.hosts[other].mesh.connected(node)
                assert not cluster.hosts[other].is_newcomer(node)
