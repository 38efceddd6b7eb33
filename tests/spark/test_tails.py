"""States that tails lead to, against a plain model: whatever is stored, in whichever order it is seen."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.snapshot.document import SnapshotDocument
from strandline.snapshot.log_document import pack_entry
from strandline.snapshot.names import snapshot_name
from strandline.snapshot.restore_point import GroupState, RestorePoint, point_name
from strandline.snapshot.spark import views
from strandline.snapshot.spark.fetch import ObjectGone
from strandline.snapshot.spark.newest import NewestCheckpoints
from strandline.snapshot.spark.options import SourceError, parse
from strandline.snapshot.spark.tails import Tails
from strandline.snapshot.spark.views import partition_views
from strandline.snapshot.storage import ObjectMissing, Storage, StorageError
from strandline.snapshot.tail_document import OWNER_NAME, Section, TailDocument, tail_name
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_commands import Bootstrap, CreateTopic, DeleteTopic
from strandline.statemachine.controller.controller_commands import encode as encode_controller
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from strandline.statemachine.machine import Captured
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import AppendInline, SetStartOffset, encode
from strandline.statemachine.partition.placeholder import InlineBatch
from tests.statemachine.controller_harness import registration, topic_id

CLUSTER, GROUP, KIND = "harbour", 7, PartitionStateMachine.kind
ONE, TWO = "2026-11-26T13:02:53Z-00000001", "2026-11-27T13:02:53Z-00000002"
ENTRIES = 12


class Bucket(Storage):
    """Objects in memory."""

    def __init__(self, incarnation: str = ONE) -> None:
        self.url = "memory://"
        self.objects: dict[str, bytes] = {}
        self.gets: list[str] = []
        self.own(incarnation)

    def own(self, incarnation: str) -> None:
        self.objects[OWNER_NAME] = json.dumps({"incarnation": incarnation}).encode()

    def put(self, *sections: Section, made_ms: int = 0, life: str = ONE, node: int = 1) -> str:
        name = tail_name(CLUSTER, life, made_ms or len(self.objects), node, len(self.objects))
        self.objects[name] = TailDocument(CLUSTER, node, sections).encode()
        return name

    def folders(self, prefix: str) -> list[str]:
        raise NotImplementedError

    def get(self, key: str) -> bytes:
        self.gets.append(key)
        if key not in self.objects:
            raise ObjectMissing(f"there is no object {key}")
        return self.objects[key]

    def get_range(self, key: str, start: int, length: int) -> bytes:
        raise NotImplementedError

    def sizes(self, prefix: str) -> dict[str, int]:
        raise NotImplementedError

    def versions(self, prefix: str) -> dict[str, str]:
        raise NotImplementedError

    def list(self, prefix: str) -> list[str]:
        return sorted(name for name in self.objects if name.startswith(prefix))


def _ignore(index: int, captured: Captured) -> None:
    """No checkpoint is in these logs."""


@dataclass
class History:
    """A partition's log, with its state after each entry; some indexes are of no entry of the machine."""

    entries: dict[int, bytes] = field(default_factory=dict)
    states: list[bytes] = field(default_factory=list)

    @staticmethod
    def made() -> History:
        made, machine = History(), PartitionStateMachine(1, _ignore)
        made.states.append(machine.snapshot())
        for index in range(1, ENTRIES + 1):
            if index == 1 or index == 8:
                machine.begin_term(index, index, 1)
                made.entries[index] = pack_entry(index, index, 1)
            elif index != 5:
                command = SetStartOffset(1) if index == 10 else AppendInline([InlineBatch(1, 1_000, b"one")])
                entry = encode(machine.term, 1_000, [command])
                machine.apply(index, machine.term, entry)
                made.entries[index] = pack_entry(index, machine.term, entry)
            made.states.append(machine.snapshot())
        return made

    def section(self, after: int, until: int, *, state: bool) -> Section:
        """Its entries above `after`; the last one is at or below `until`."""
        held = [index for index in self.entries if after < index <= until]
        packed = b"".join(self.entries[index] for index in held)
        last = held[-1] if held else after
        return Section(KIND, GROUP, after, last, self.states[after] if state else None, packed)

    def checkpoint(self, index: int) -> tuple[str, SnapshotDocument]:
        return f"checkpoint-{index}", SnapshotDocument(
            CLUSTER, KIND, GROUP, index, 1, (1,), (), self.states[index]
        )


HISTORY = History.made()


def reached(known: int, sections: list[Section]) -> int:
    """The plain model: the last entry up to which nothing is missing, from anything that is whole."""
    best = max([known, *(one.after for one in sections if one.state is not None)])
    while True:
        further = [one.log_index for one in sections if best > 0 and one.after <= best < one.log_index]
        if not further:
            return best
        best = max(further)


cuts = st.tuples(st.integers(0, ENTRIES), st.integers(0, 5), st.booleans()).map(
    lambda cut: HISTORY.section(cut[0], min(cut[0] + cut[1], ENTRIES), state=cut[2])
)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(cuts, min_size=1, max_size=2), st.none() | st.integers(1, ENTRIES)), max_size=6
    )
)
def test_a_reader_has_the_newest_state_that_is_whole_and_never_another(
    rounds: list[tuple[list[Section], int | None]],
) -> None:
    bucket = Bucket()
    tails = Tails(bucket, CLUSTER)
    tails.follow([GROUP])
    known, stored = 0, []
    for sections, checkpoint in rounds:
        bucket.put(*sections)
        stored += sections
        told = tails.read()
        assert told == {GROUP}
        base = None if checkpoint is None else HISTORY.checkpoint(checkpoint)
        found = tails.state(GROUP, base)
        known = reached(max(known, checkpoint or 0), stored)
        if not known:
            assert found is None
            continue
        assert found is not None
        name, document = found
        assert (document.index, document.kind) == (known, KIND)
        assert document.state == HISTORY.states[known]
        assert name in bucket.objects or name.startswith("checkpoint-")


def test_each_tail_is_read_once_and_later_groups_from_those_that_are_there() -> None:
    bucket = Bucket()
    first = bucket.put(HISTORY.section(3, 3, state=True))
    tails = Tails(bucket, CLUSTER)
    assert tails.read() == frozenset()
    tails.follow([GROUP])
    assert _index(tails) == 3
    bucket.gets.clear()
    assert tails.read() == frozenset()
    assert bucket.gets == []
    second = bucket.put(HISTORY.section(3, 4, state=False))
    assert tails.read() == {GROUP}
    assert bucket.gets == [second]
    assert _index(tails) == 4
    del bucket.objects[first]
    assert tails.read() == frozenset()
    assert _index(tails) == 4


def test_what_is_damaged_or_gone_is_passed_over_until_a_newer_state_comes() -> None:
    bucket = Bucket()
    bucket.put(HISTORY.section(2, 3, state=True))
    damaged = bucket.put(HISTORY.section(3, 4, state=False))
    bucket.objects[damaged] = bucket.objects[damaged][:-1]
    bucket.put(HISTORY.section(4, 7, state=False))
    bucket.objects[f"{damaged}.tmp"] = b"not a tail's name"
    tails = Tails(bucket, CLUSTER)
    tails.follow([GROUP])
    tails.read()
    assert _index(tails) == 3
    bucket.put(HISTORY.section(6, 9, state=True))
    tails.read()
    assert _index(tails) == 9


def test_a_restored_cluster_has_no_tails_of_the_life_before() -> None:
    bucket = Bucket()
    bucket.put(HISTORY.section(9, 12, state=True))
    tails = Tails(bucket, CLUSTER)
    tails.follow([GROUP])
    tails.read()
    assert _index(tails) == 12
    bucket.own(TWO)
    bucket.put(HISTORY.section(2, 4, state=True), life=TWO)
    tails.read()
    assert _index(tails) == 4
    fresh = Tails(bucket, CLUSTER)
    fresh.follow([GROUP])
    fresh.read()
    assert _index(fresh) == 4


def test_after_a_restore_a_group_has_its_checkpoint_again_before_it_has_tails() -> None:
    bucket = Bucket()
    key, document = snapshot_name(CLUSTER, GROUP, 4, 1), HISTORY.checkpoint(4)[1]
    bucket.objects[key] = b"".join(bytes(part) for part in document.parts())
    bucket.put(HISTORY.section(9, 12, state=True))
    newest = NewestCheckpoints(bucket, CLUSTER)
    newest.look(whole=True)
    newest.follow([GROUP])

    def index() -> int | None:
        return newest.of_group(GROUP, lambda _, found: found.index)

    assert index() == 12
    bucket.own(TWO)
    bucket.put(HISTORY.section(2, 4, state=True)._replace(group=GROUP + 1), life=TWO)
    newest.look(whole=False)
    assert index() == 4
    bucket.put(HISTORY.section(6, 7, state=True), life=TWO)
    newest.look(whole=False)
    assert index() == 7
    # Once more, and no node of that life publishes tails.
    bucket.own(ONE[:-1] + "3")
    newest.look(whole=True)
    assert index() == 4


def test_nothing_is_kept_of_a_topic_that_was_deleted() -> None:
    bucket, controller = Bucket(), Controller(_ignore)
    controller.begin_term(1, 1, 1)

    def control(index: int, command: Any) -> None:
        controller.apply(index, 1, encode_controller(command))
        state = controller.snapshot(secrets=False)
        bucket.put(Section(Controller.kind, CONTROLLER_GROUP, index, index, state, b""))

    control(2, Bootstrap(CLUSTER, ONE))
    control(3, registration(1))
    control(4, CreateTopic(topic_id(1), "brief", 1, 1, None, [], 3))
    newest = NewestCheckpoints(bucket, CLUSTER)
    ((group,),) = ([one.group for one in topic.partitions] for topic in newest.controller().topics.values())
    bucket.put(HISTORY.section(3, 4, state=True)._replace(group=group))
    newest.follow([group])
    newest.look(whole=False)
    assert newest.of_group(group, lambda _, found: found.index) == 4
    control(5, DeleteTopic(topic_id(1)))
    newest.look(whole=False)
    assert not newest.controller().topics
    bucket.put(HISTORY.section(4, 5, state=True)._replace(group=group))
    assert newest.look(whole=False) == frozenset()
    assert newest._kept.keys() == {CONTROLLER_GROUP}


def test_tails_that_could_not_be_read_are_read_by_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket()
    bucket.put(HISTORY.section(2, 3, state=True))
    tails = Tails(bucket, CLUSTER)
    tails.read()
    with monkeypatch.context() as patch:
        patch.setattr(bucket, "get", _refuse)
        with pytest.raises(StorageError, match="busy"):
            tails.follow([GROUP])
    tails.follow([GROUP])
    assert _index(tails) == 3


def test_what_cannot_be_read_says_so() -> None:
    bucket = Bucket()
    wrong = HISTORY.section(2, 2, state=True)._replace(state=b"\xc1")
    bucket.put(wrong, HISTORY.section(2, 4, state=False))
    tails = Tails(bucket, CLUSTER)
    tails.follow([GROUP])
    tails.read()
    with pytest.raises(SourceError, match=f"group {GROUP}: .*report this"):
        tails.state(GROUP, None)
    del bucket.objects[OWNER_NAME]
    with pytest.raises(SourceError, match="there is no object cluster"):
        Tails(bucket, CLUSTER).read()
    newer = Bucket()
    name = newer.put(wrong)
    newer.objects[name] = newer.objects[name].replace(b"\x94\x01", b"\x94\x02", 1)
    reader = Tails(newer, CLUSTER)
    reader.follow([GROUP])
    reader.read()  # a changed byte is damage, whatever it says
    assert reader.state(GROUP, None) is None


@pytest.mark.parametrize("published", ["soon", "never", "without tails", "by number"])
def test_a_read_waits_for_a_new_partition_only_where_its_state_can_come(
    published: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, controller = Bucket(), Controller(_ignore)
    controller.begin_term(1, 1, 1)
    commands: list[Any] = [
        Bootstrap(CLUSTER, "x"),
        registration(1),
        CreateTopic(topic_id(1), "new", 1, 1, None, [], 3),
    ]
    for index, command in enumerate(commands, 2):
        controller.apply(index, 1, encode_controller(command))
    state = controller.snapshot(secrets=False)
    (group,) = (place.group for place in controller.topics[0].partitions)
    options = {"url": bucket.url, "topic": "new", "cluster": CLUSTER}
    if published in ("soon", "never"):
        bucket.put(Section(Controller.kind, CONTROLLER_GROUP, 4, 4, state, b""), made_ms=5)
    else:
        document = SnapshotDocument(CLUSTER, Controller.kind, CONTROLLER_GROUP, 4, 1, (1,), (), state)
        bucket.objects[snapshot_name(CLUSTER, CONTROLLER_GROUP, 4, 1)] = document.encode()
    if published == "by number":
        # The documents of a point do not come later.
        point = RestorePoint(CLUSTER, "x", 4, 1, 1, 0, (GroupState(CONTROLLER_GROUP, 4, 1),))
        bucket.objects[point_name(CLUSTER, 4)] = point.encode()
        options["checkpoint"] = "4"
    waits: list[float] = []
    here, pause = threading.get_ident(), time.sleep

    def sleep(seconds: float) -> None:
        if threading.get_ident() != here:
            pause(seconds)  # a thread of another test, which this one is no part of
            return
        waits.append(seconds)
        if published == "soon" and len(waits) == 2:
            bucket.put(Section(KIND, group, 1, 1, HISTORY.states[1], b""), made_ms=9)

    monkeypatch.setattr(time, "sleep", sleep)
    if published == "soon":
        (view,) = partition_views(bucket, parse(options))
        assert (view.topic, waits) == ("new", [1.0, 2.0])
        return
    with pytest.raises(SourceError, match=r"nothing of partition new-0 in .*: (wait: nodes|name a later)"):
        partition_views(bucket, parse(options))
    assert waits == ([1.0, 2.0, 4.0] if published == "never" else [])
    if published == "by number":
        looks: list[int] = []

        def gone(*_: object) -> None:
            looks.append(1)
            raise ObjectGone("its lease has ended")

        monkeypatch.setattr(views, "_found", gone)
        with pytest.raises(SourceError, match="its lease has ended"):
            partition_views(bucket, parse(options))
        assert (looks, waits) == ([1], []), "nothing newer comes of a point"


def _refuse(key: str) -> bytes:
    raise StorageError(f"object {key}: busy")


def _index(tails: Tails) -> int:
    found = tails.state(GROUP, None)
    assert found is not None
    assert found[1].state == HISTORY.states[found[1].index]
    return found[1].index
