"""What must hold of local logs at every moment: reports are durable, none is overtaken, clean is clean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from strandline.node.compaction.compaction_measures import Reset
from strandline.node.compaction.local_log import MANIFEST, View, log_folder
from strandline.node.compaction.manifest import LogIdentity, Manifest, ManifestDamaged, parsed
from strandline.node.compaction.removal_minimum import Ends
from strandline.node.compaction.replica_log import ReplicaLog
from strandline.snapshot.level_one_format import batches_of, parse
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import Kind
from tests.simulation.disk import SimDisk
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.compaction.history import Bounds, Copies
from tests.simulation.whole.objects import Place
from tests.simulation.whole.sim_broker import SimBroker

CLUSTER = "simulated"
FORGIVEN_SECONDS = 3.0
"""After its first word since it lost its files a replica may be overtaken by an entry from before."""


NO_ENDS = Ends(0, 0)


@dataclass(slots=True)
class _Said:
    """What a replica has reported since its log was made."""

    ends: Ends = NO_ENDS
    lost: bool = False
    """It has lost its files since its last word."""
    forgiven: float = 0.0
    empty: bool = False
    """It has had nothing since it lost its files."""
    rotten: bool = False
    """A bit of a file has changed, and the log was not made anew yet."""


@dataclass(slots=True)
class LogWatch:
    """All local logs of a run."""

    cluster: WholeCluster
    copies: Copies
    counts: Counter[str] = field(default_factory=Counter)
    _said: dict[tuple[int, int], _Said] = field(default_factory=dict)
    """By node and group."""
    _disks: dict[int, SimDisk] = field(default_factory=dict)
    """Of each node; another one where its folder was wiped."""
    _raised: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    """By group: when MTRO was first raised to an offset."""

    def start(self) -> None:
        ledger = self.cluster.ledger
        before = self.cluster.on_broker

        def watched(broker: SimBroker) -> None:
            before(broker)
            self._watch(broker)

        self.cluster.on_broker = watched
        ledger.on_entry = self._entry
        ledger.on_published = self._published

    # What happens to nodes.

    def said(self, node: int, group: int) -> _Said:
        return self._said.setdefault((node, group), _Said())

    def lost(self, node: int) -> None:
        """A node has lost its files, or some."""
        for place, group in self._places():
            del place
            said = self.said(node, group)
            said.ends, said.lost, said.empty = Ends(0, 0), True, True

    def rots(self, node: int) -> None:
        """Bits of a node's files have changed: it will make a log anew once it meets them."""
        self.lost(node)
        for _, group in self._places():
            self.said(node, group).rotten = True

    def _places(self) -> list[tuple[Place, int]]:
        return [(place, group) for group, place in self.cluster.ledger.objects.places().items()]

    def _watch(self, broker: SimBroker) -> None:
        if self._disks.setdefault(broker.node_id, broker.sim.disk) is not broker.sim.disk:
            self._disks[broker.node_id] = broker.sim.disk
            self.lost(broker.node_id)
        upkeep, reports = broker.compaction, broker.reports
        take_up, send = upkeep._taken_up, reports._send

        def taken_up(*args: Any) -> Any:
            made = take_up(*args)
            made.log.watch(lambda: self._changed(broker, made.log))
            return made

        def sent(peer: int, rows: list[tuple[int, Any]]) -> None:
            for group, told in rows:
                if told.ends is not None:
                    self._reported(broker, group, told.ends)
            send(peer, rows)

        upkeep._taken_up = taken_up  # type: ignore[assignment,method-assign]
        reports._send = sent  # type: ignore[method-assign]

    # L2: what was reported is on the disk.

    def durable(self, node: int, place: Place) -> Manifest | None:
        """What a power cut would leave of a node's log; None for nothing."""
        path = f"{log_folder('/data', place.topic_id, place.partition)}/{MANIFEST}"
        inode = self.cluster.world.nodes[node].disk._durable_names.get(path)
        try:
            identity = LogIdentity(CLUSTER, place.topic_id, place.partition)
            return None if inode is None else parsed(bytes(inode.durable), identity)
        except ManifestDamaged:
            return None

    def _reported(self, broker: SimBroker, group: int, ends: Ends) -> None:
        place = broker.places[group]
        manifest, log = self.durable(broker.node_id, place), broker.compaction.log_of(group)
        start = 0 if log is None else log.replica.machine.start_offset
        on_disk = _ends(manifest, start)
        if ends.mcco > on_disk.mcco or ends.mxfo > on_disk.mxfo:
            self._broken(
                "reports are durable", f"node {broker.node_id} reports {ends} of {place}, has {on_disk}"
            )
        said = self.said(broker.node_id, group)
        said.ends = Ends(*map(max, said.ends, _ends(manifest, 0)))
        if said.lost:
            said.lost, said.forgiven = False, self.cluster.world.now + FORGIVEN_SECONDS

    # L4, at each change.

    def _changed(self, broker: SimBroker, log: ReplicaLog) -> None:
        it, group = log.log, log.replica.group.id
        assert it is not None
        self.counts["log changes"] += 1
        place, node = Place(log.replica.topic_id, log.replica.number), broker.node_id
        said = self.said(node, group)
        manifest, machine = it.manifest, log.replica.machine
        resets = broker.compaction.measures.resets
        if log.resets and not manifest.segments:
            said.ends, said.rotten = Ends(0, 0), False
            if resets[Reset.BEHIND] + resets[Reset.DAMAGED] and not self._excused(said):
                self._broken("needless reset", f"node {node} had to make {place} anew: {log.reset_for}")
        has = _ends(manifest, machine.start_offset)
        if said.ends.mcco > has.mcco or said.ends.mxfo > has.mxfo:
            self._broken("reports are durable", f"node {node} said {said.ends} of {place}, and has {has}")
        newest = self.cluster.ledger.objects.newest(group)
        if newest is None or not manifest.segments:
            return
        said.empty = False
        self.copies.catch_up(place, newest)
        ripe = newest.removals
        bounds = Bounds(
            max(manifest.start_offset, machine.start_offset), manifest.log_end, manifest.clean_end,
            manifest.log_end, ripe.ripe_tombstones, ripe.ripe_markers, ripe.level_one_settled,
            newest.last_stable_offset,
        )  # fmt: skip
        if not said.rotten:
            self.copies.check(f"the log of node {node} of {place}", place, [*batches_in(it.view)], bounds)

    def _excused(self, said: _Said) -> bool:
        return said.lost or said.empty or self.cluster.world.now < said.forgiven

    # L3, and what entries do.

    def _entry(
        self, node: int, group: int, machine: PartitionStateMachine, place: Place, commands: Sequence[Any]
    ) -> None:
        self.copies.catch_up(place, machine)
        for kind, *fields in commands:
            if kind == Kind.ADVANCE_REMOVAL:
                self._check_removal(node, group, machine, place, *fields)

    def _check_removal(
        self, node: int, group: int, machine: PartitionStateMachine, place: Place, mtro: int, mxro: int,
        retention: int,
    ) -> None:  # fmt: skip
        now, removals = self.cluster.world.now, machine.removals
        hosted = self.cluster.brokers[node].host.groups.get(group)
        if hosted is None:
            return
        raised = self._raised.setdefault(group, [])
        if mtro > removals.mtro:
            raised.append((now, mtro))
            self.counts["removals"] += 1
            for member in hosted.configuration.members:
                if self._excused(self.said(member, group)):
                    continue
                has = _ends(self.durable(member, place), machine.start_offset)
                if has.mcco < mtro or has.mxfo < mxro:
                    self._broken(
                        "removal overtakes none",
                        f"{place}: MTRO {mtro}, MXRO {mxro}, and node {member} has {has}",
                    )
        del retention  # a leader says it
        retention = int(dict(self.cluster.plan.topic_configs)["delete.retention.ms"])
        if removals.ripe_tombstones and self.cluster.ledger.retention.clock_error_ms < 1000:
            self._check_clock(place, removals.ripe_tombstones, raised, retention)

    def _check_clock(self, place: Place, ripe: int, raised: list[tuple[float, int]], retention: int) -> None:
        """Tombstones below `ripe` may go now: MTRO passed them `delete.retention.ms` ago."""
        passed = min((at for at, mtro in raised if mtro >= ripe), default=None)
        error = self.cluster.ledger.retention.clock_error_ms / 1000
        if passed is None or self.cluster.world.now < passed + retention / 1000 - error:
            self._broken("retention of tombstones", f"{place}: ripe to {ripe}, which MTRO passed at {passed}")
        else:
            self.counts["ripe"] += 1

    def _published(self, where: str, fields: list[Any], machine: PartitionStateMachine, place: Place) -> None:
        old, rows, publisher_clean_end, clean, settled = fields
        made = [LevelOneExtent(*row) for row in rows]
        uniques = [unique for _, unique in old]
        there = list(machine.level_one)
        at = [number for number, one in enumerate(there) if one.unique in uniques]
        if (
            len(at) != len(uniques)
            or any(one.term != machine.term for one in made)
            or publisher_clean_end < machine.removals.level_one_clean
        ):
            return  # it is refused
        objects = self.cluster.ledger.objects
        objects._check_stored(where, made, place)
        if at:
            there[at[0] : at[-1] + 1] = made
        self.counts["publications"] += 1
        self.check_level_one(where, place, machine, there, clean, settled)

    def check_level_one(
        self, who: str, place: Place, machine: PartitionStateMachine, there: Sequence[LevelOneExtent],
        clean: int = 0, settled: int = 0,
    ) -> None:  # fmt: skip
        """As a copy that is clean and settled up to there."""
        if not there:
            return
        removals = machine.removals
        bounds = Bounds(
            max(there[0].base_offset, machine.start_offset), there[-1].end_offset,
            max(clean, removals.level_one_clean), max(settled, removals.level_one_settled),
            removals.ripe_tombstones, removals.ripe_markers, there[-1].end_offset, machine.last_stable_offset,
        )  # fmt: skip
        self.copies.check(f"level one of {place}, {who}", place, self.stored(place, there), bounds)

    def stored(self, place: Place, there: Sequence[LevelOneExtent]) -> Iterator[bytes]:
        for one in there:
            name = level_one_name(*place, one.term, one.unique)
            data = self.cluster.store.objects[name]
            footer = parse(name, data)
            for block in footer.blocks:
                for span in batches_of(name, block, data[block.position : block.end], footer.holes):
                    yield bytes(data[span.position :][: span.length])

    def _broken(self, check: str, text: str) -> None:
        self.cluster.ledger.broken(check, text)


def _ends(manifest: Manifest | None, start: int) -> Ends:
    if manifest is None:
        return Ends(start, start)
    mcco = max(manifest.clean_end, manifest.floor, start)
    return Ends(mcco, max(manifest.log_end, manifest.floor_markers, mcco))


def batches_in(view: View) -> Iterator[bytes]:
    """The batches of a local log, without an operation of the disk's that a fault could hit."""
    for one in view.segments:
        data = bytes(one._file._inode.live)  # type: ignore[attr-defined]
        for block in one.footer.blocks:
            for span in batches_of(one._path, block, data[block.position : block.end], one.footer.holes):
                yield data[span.position :][: span.length]
