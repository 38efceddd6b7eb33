"""What must hold of local logs at every moment: reports are durable, none is overtaken, clean is clean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from posixpath import dirname
from typing import Any

from strandline.node.compaction.cleaning_round import CleaningRound
from strandline.node.compaction.compaction_measures import Reset
from strandline.node.compaction.local_log import View
from strandline.node.compaction.log_folders import MANIFEST, log_folder
from strandline.node.compaction.manifest import LogIdentity, Manifest, ManifestDamaged, parsed
from strandline.node.compaction.removal_minimum import Ends
from strandline.node.compaction.replica_log import ReplicaLog
from strandline.node.compaction.segment_files import file_name
from strandline.snapshot.level_one_format import batches_of, parse
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import ReplaceLevelOne
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.compaction.history import Bounds, Copies
from tests.simulation.whole.compaction.removal_watch import RemovalWatch, has_policy
from tests.simulation.whole.compaction.settings import Settings
from tests.simulation.whole.compaction.words import NO_ENDS, Said, Words
from tests.simulation.whole.objects import Place
from tests.simulation.whole.sim_broker import SimBroker

CLUSTER = "simulated"


@dataclass(slots=True)
class LogWatch:
    """All local logs of a run."""

    cluster: WholeCluster
    copies: Copies
    settings: Settings = field(init=False)
    removals: RemovalWatch = field(init=False)
    counts: Counter[str] = field(default_factory=Counter)
    words: Words = field(default_factory=Words)
    _folders: dict[str, int] = field(default_factory=dict)
    """Of local logs, the same on all nodes: their groups."""
    _resets: dict[tuple[int, int], int] = field(default_factory=dict)
    """By node and boot: logs that were made anew for another reason than that there was none."""
    _named: set[tuple[Any, ...]] = field(default_factory=set)
    """What leaders were about to publish of topics that are compacted by their state, by `_key`."""

    def __post_init__(self) -> None:
        world = self.cluster.world
        self.settings = Settings(self.cluster.ledger.objects, lambda: world.now)
        self.removals = RemovalWatch(self)

    def start(self) -> None:
        ledger = self.cluster.ledger
        before = self.cluster.on_broker

        def watched(broker: SimBroker) -> None:
            before(broker)
            self._watch(broker)

        self.cluster.on_broker = watched
        self.cluster.on_wiped.append(lambda node, _: self.lost(node))
        ledger.on_controller.append(lambda _: self.settings.applying())
        self.copies.on_keyless = self._keyless
        ledger.on_entry = self._entry
        ledger.on_published = self._published

    # What happens to nodes.

    def said(self, node: int, group: int) -> Said:
        return self.words.of(node, group)

    def lost(self, node: int, names: Iterable[str] | None = None) -> None:
        """A node has lost files by these names, or all of its logs.

        It must be told at once: entries come into force while the node is down.
        """
        for folder, group in self._folders.items():
            if names is None or any(name.startswith(f"{folder}/") for name in names):
                self.said(node, group).lose()

    def rots(self, node: int, name: str) -> None:
        """A bit of a node's file has changed: it will make the log anew once it meets that."""
        self.said(node, self._folders[dirname(name)]).rotten.add(name)

    def _watch(self, broker: SimBroker) -> None:
        upkeep = broker.compaction
        take_up, sweep = upkeep._taken_up, upkeep._sweep.run

        def taken_up(*args: Any) -> Any:
            made = take_up(*args)
            made.log.watch(lambda: self._changed(broker, made.log))
            replace, reset, remove = made.log.replace, made.log._reset, made.log.remove
            self._folders[made.log.folder] = group = made.log.replica.group.id
            said = self.said(broker.node_id, group)

            async def resets(why: Reset) -> None:
                said.resetting = True
                said.losses += 1
                await reset(why)

            async def removed() -> None:
                said.lose()
                await remove()

            async def replaced(segments: Any, clean_end: int) -> bool:
                self._check_in_step(broker, made.log)
                return bool(await replace(segments, clean_end))

            made.log.replace = replaced  # type: ignore[method-assign]
            made.log._reset = resets  # type: ignore[method-assign]
            made.log.remove = removed  # type: ignore[method-assign]
            return made

        async def swept(kept: Set[tuple[bytes, int]]) -> None:
            folders = {log_folder("/data", *place) for place in kept}
            disk = broker.sim.disk
            self.lost(broker.node_id, [name for name in disk._names if dirname(name) not in folders])
            await sweep(kept)

        ended = upkeep._round_ended

        def counted(it: CleaningRound) -> None:
            # Its map was full before it had seen all there is.
            self.counts["partial rounds"] += bool(it._bound and it._to_map and it.young_ms is None)
            ended(it)

        upkeep._round_ended = counted  # type: ignore[assignment,method-assign]
        self.removals.watch(broker)
        self._watch_names(broker)
        upkeep._taken_up = taken_up  # type: ignore[assignment,method-assign]
        upkeep._sweep.run = swept  # type: ignore[method-assign]
        self.words.watch(broker, lambda group, ends: self._reported(broker, group, ends))

    def _watch_names(self, broker: SimBroker) -> None:
        """Hear of what a broker is about to publish."""
        namer = broker.compaction._context.level_one.namer
        name = namer.name

        async def named(replica: Any, term: int, command: Any, objects: Any) -> Any:
            if isinstance(command, ReplaceLevelOne) and has_policy(broker, replica.topic_id, "compact"):
                _, old, new, *ends = command.fields()
                self._named.add(_key(replica.topic_id, replica.number, old, new, ends))
            return await name(replica, term, command, objects)

        namer.name = named  # type: ignore[method-assign]

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

    def ends_on_disk(self, node: int, place: Place, start: int) -> Ends:
        """What a node could report if its power were cut now; `start` is the start offset."""
        return ends_of(self.durable(node, place), start)

    def _reported(self, broker: SimBroker, group: int, ends: Ends) -> None:
        place = broker.places[group]
        manifest, log = self.durable(broker.node_id, place), broker.compaction.log_of(group)
        start = 0 if log is None else log.replica.machine.start_offset
        on_disk = ends_of(manifest, start)
        if ends.mcco > on_disk.mcco or ends.mxfo > on_disk.mxfo:
            self._broken(
                "reports are durable", f"node {broker.node_id} reports {ends} of {place}, has {on_disk}"
            )
        said = self.said(broker.node_id, group)
        said.ends = Ends(*map(max, said.ends, ends_of(manifest, 0)))

    # L1 and L4, at each change.

    def _check_in_step(self, broker: SimBroker, log: ReplicaLog) -> None:
        """A log that is filled or cleaned has not missed what may be gone elsewhere."""
        assert log.log is not None
        manifest, machine = log.log.manifest, log.replica.machine
        removals, end = machine.removals, max(manifest.log_end, machine.start_offset)
        missed = removals.ripe_tombstones > max(end, manifest.floor)
        if missed or removals.ripe_markers > max(end, manifest.floor_markers):
            text = f"{manifest} goes on although {removals.fields()}"
            self._broken("in step", f"node {broker.node_id}, group {log.replica.group.id}: {text}")

    def _changed(self, broker: SimBroker, log: ReplicaLog) -> None:
        it, group = log.log, log.replica.group.id
        assert it is not None
        self.counts["log changes"] += 1
        place, node = Place(log.replica.topic_id, log.replica.number), broker.node_id
        said = self.said(node, group)
        manifest, machine = it.manifest, log.replica.machine
        newest = self.cluster.ledger.objects.machine_of(place)
        has = ends_of(manifest, machine.start_offset)
        resetting, said.resetting = said.resetting, False
        if resetting and not manifest.segments:
            rightly = said.missing or said.rotten or said.overtaken
            said.rotten, said.ends, said.swept = set(), NO_ENDS, 0
            if self._made_anew(broker) and not rightly:
                self._broken("needless reset", f"node {node} had to make {place} anew: {log.reset_for}")
        said.missing = False
        present = broker.compaction._round
        if present is not None and present.replica_log is log:
            said.swept = max(said.swept, present._bound or 0)
        if newest is not None:
            below = has.mcco < newest.removals.mtro or has.mxfo < newest.removals.mxro
            # One that begins anew by a state that lags lacks what has come into force meanwhile.
            said.overtaken = below and (said.overtaken or (resetting and not manifest.segments))
        if said.ends.mcco > has.mcco or said.ends.mxfo > has.mxfo:
            self._broken("reports are durable", f"node {node} said {said.ends} of {place}, and has {has}")
        if newest is None or not manifest.segments:
            return
        self.copies.catch_up(place, newest)
        ripe = newest.removals
        # A node that has just started may know an older start than the one its log was filled by.
        bounds = Bounds(
            max(manifest.start_offset, newest.start_offset), manifest.log_end, manifest.clean_end,
            manifest.log_end, ripe.ripe_tombstones, ripe.ripe_markers, ripe.level_one_settled,
            newest.last_stable_offset, said.swept,
        )  # fmt: skip
        if not self.is_rotten(node, log):
            self.copies.check(f"the log of node {node} of {place}", place, [*batches_in(it.view)], bounds)

    def is_rotten(self, node: int, log: ReplicaLog) -> bool:
        """Whether an open log has a file with a bit that has changed, which none may have read yet."""
        assert log.log is not None
        named = {f"{log.folder}/{file_name(one.number)}" for one in log.log.manifest.segments}
        return bool(self.said(node, log.replica.group.id).rotten & named)

    def _made_anew(self, broker: SimBroker) -> bool:
        """Whether a log was, since this was asked last, for another reason than that there was none."""
        resets = broker.compaction.measures.resets
        now = resets[Reset.BEHIND] + resets[Reset.DAMAGED]
        before = self._resets.get((broker.node_id, broker.boot), 0)
        self._resets[broker.node_id, broker.boot] = now
        return now > before

    # What entries do.

    def _entry(
        self, node: int, group: int, machine: PartitionStateMachine, place: Place, commands: Sequence[Any]
    ) -> None:
        if group not in self.cluster.ledger.objects.places():
            return
        self.copies.catch_up(place, machine)
        self.removals.check(node, group, machine, place, commands)

    def _keyless(self, place: Place) -> None:
        self.counts["keyless"] += 1
        if not self.settings.flipped(place.topic_id):
            self._broken("keyless", f"{place} is compacted, and takes a record without a key")

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
        named = _key(place.topic_id, place.partition, old, rows, fields[2:]) in self._named
        # An entry may lie in a log for as long as there is no majority: its leader's policy was another then.
        if not named and not self.settings.had(place.topic_id, "compact"):
            self._broken("published", f"{where}: {place} is not compacted, and its level one is replaced")
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


def ends_of(manifest: Manifest | None, start: int) -> Ends:
    if manifest is None:
        return Ends(start, start)
    mcco = max(manifest.clean_end, manifest.floor, start)
    return Ends(mcco, max(manifest.log_end, manifest.floor_markers, mcco))


def _key(topic_id: bytes, number: int, old: Any, new: Any, ends: Sequence[int]) -> tuple[Any, ...]:
    """One publication: what it replaces by what, and how clean level one is then."""
    made = (LevelOneExtent(*row).unique for row in new)
    return topic_id, number, *(unique for _, unique in old), None, *made, None, *ends


def batches_in(view: View) -> Iterator[bytes]:
    """The batches of a local log, without an operation of the disk's that a fault could hit."""
    for one in view.segments:
        data = bytes(one._file._inode.live)  # type: ignore[attr-defined]
        for block in one.footer.blocks:
            for span in batches_of(one._path, block, data[block.position : block.end], one.footer.holes):
                yield data[span.position :][: span.length]
