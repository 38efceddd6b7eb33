"""What must hold of removal: no copy is overtaken (L3), and deletions wait as long as their topic says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from strandline.node.compaction.removal_minimum import Ends
from strandline.node.partition.partition import Partition
from strandline.statemachine.controller.hosted_groups import PartitionGroup
from strandline.statemachine.controller.topic_config import CLEANUP_POLICY, DELETE_RETENTION_MS
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import PartitionOpcode, SetStartOffset
from tests.simulation.whole.compaction.words import Members
from tests.simulation.whole.objects import Place
from tests.simulation.whole.sim_broker import SimBroker

if TYPE_CHECKING:
    from tests.simulation.whole.compaction.watch import LogWatch


class _Proposed(NamedTuple):
    """What a leader was about to propose."""

    at: float
    ends: Ends | None
    """All copies were clean up to there, as far as it knew; None: it did not know all of them."""
    retention: int
    """By the state of the controller on its node."""
    compacted: bool
    """By the same state. A policy that is changed twice at once may never be seen from outside."""
    members: Members


class RemovalWatch:
    """The entries of all partitions that raise MTRO, MXRO or a start offset."""

    def __init__(self, watch: LogWatch) -> None:
        self._watch = watch
        self._world = watch.cluster.world
        self._ledger = watch.cluster.ledger
        self._proposed: dict[int, list[_Proposed]] = {}
        self._advanced: dict[int, tuple[float, int]] = {}
        """When the last AdvanceRemoval was applied, and the retention that it has."""
        self._ripe: dict[int, int] = {}
        """Up to where tombstones were ripe when that was last looked at."""
        self._starts: set[tuple[int, int]] = set()
        """By group: start offsets that a leader was about to propose, by whose state its topic lets records
        expire."""

    def watch(self, broker: SimBroker) -> None:
        """Hear of what a broker is about to propose."""
        removal, advance = broker.removal, broker.removal._advance

        async def advanced(replica: Any, led: Any) -> None:
            copies = removal.copies(replica)
            topic = broker.controller.machine.topic_by_id(replica.topic_id)
            if topic is not None and replica.leader_epoch >= self._ledger.objects.newest_term(
                replica.group.id
            ):
                retention = DELETE_RETENTION_MS.of(topic.configs)
                known = self._proposed.setdefault(replica.group.id, [])
                compacted = "compact" in CLEANUP_POLICY.of(topic.configs)
                # By the log itself, not by those that the leader's part of removal goes by.
                members = self._watch.words.members(
                    broker, replica.group.id, replica.leader_epoch, replica.group.configuration.members
                )
                known.append(_Proposed(self._world.now, copies.minimum, retention, compacted, members))
            await advance(replica, led)

        removal._advance = advanced  # type: ignore[method-assign]
        create = broker.replicas.create

        def created(place: PartitionGroup) -> None:
            create(place)
            partition = broker.partitions.by_group(place.group)
            if partition is not None:  # else a coordinator
                self._watch_starts(broker, partition, place)

        broker.replicas.create = created  # type: ignore[method-assign]

    def _watch_starts(self, broker: SimBroker, partition: Partition, place: PartitionGroup) -> None:
        execute = partition.execute

        async def executed(command: Any) -> Any:
            if isinstance(command, SetStartOffset) and has_policy(broker, place.topic_id, "delete"):
                self._starts.add((place.group, command.start_offset))
            return await execute(command)

        partition.execute = executed  # type: ignore[method-assign]

    def check(
        self, node: int, group: int, machine: PartitionStateMachine, place: Place, commands: Sequence[Any]
    ) -> None:
        """Judge an entry that a replica is the first to apply."""
        self._check_ripe(group, place, machine)
        for kind, *fields in commands:
            if kind == PartitionOpcode.ADVANCE_REMOVAL:
                self._check_removal(node, group, machine, place, *fields)
            elif kind == PartitionOpcode.SET_START_OFFSET and fields[0] > machine.start_offset:
                self._watch.counts["start moves"] += 1
                # It may lie in a log for as long as there is no majority, as below.
                known = (group, fields[0]) in self._starts
                if not known and not self._watch.settings.had(place.topic_id, "delete"):
                    text = f"{place} begins at {fields[0]}, and nothing of it may expire"
                    self._ledger.broken("compact only", text)

    def _check_removal(
        self, node: int, group: int, machine: PartitionStateMachine, place: Place, mtro: int, mxro: int,
        retention: int,
    ) -> None:  # fmt: skip
        settings, broken = self._watch.settings, self._ledger.broken
        proposed = [one for one in self._proposed.get(group, []) if one.ends in (None, (mtro, mxro))]
        known = {one.retention for one in proposed}
        if retention not in known:
            broken("retention in force", f"{place}: an entry has {retention} ms, its leader knew {known}")
        # An entry may lie in a log for as long as there is no majority, and be committed by a later leader.
        if not any(one.compacted for one in proposed) and not settings.had(place.topic_id, "compact"):
            broken("published", f"{place} is not compacted any more, and MTRO goes to {mtro}")
        self._advanced[group] = (self._world.now, retention)
        if mtro <= machine.removals.mtro and mxro <= machine.removals.mxro:
            return
        self._watch.counts["removals"] += 1
        for member in self._watch.cluster.plan.nodes:
            said = self._watch.said(member, group)
            has = self._watch.ends_on_disk(member, place, machine.start_offset)
            if has.mcco >= mtro and has.mxfo >= mxro:
                continue
            if any(one.members.may_be_overtaken(member, said.losses) for one in proposed if one.ends):
                said.overtaken = True
            else:
                text = f"{place}: MTRO {mtro}, MXRO {mxro}, and node {member} has {has}"
                broken("removal overtakes none", text)

    def _check_ripe(self, group: int, place: Place, machine: PartitionStateMachine) -> None:
        """The last AdvanceRemoval let ripen what has waited since all were clean, for as long as it says."""
        ripe, error_ms = machine.removals.ripe_tombstones, self._ledger.retention.clock_error_ms
        if ripe <= self._ripe.get(group, 0) or error_ms >= 1000:
            return
        self._ripe[group] = ripe
        self._watch.counts["ripe"] += 1
        at, retention = self._advanced[group]
        proposed = self._proposed.get(group, [])
        passed = min((one.at for one in proposed if one.ends and one.ends.mcco >= ripe), default=None)
        if passed is None or at < passed + (retention - error_ms) / 1000:
            self._ledger.broken(
                "retention of tombstones",
                f"{place}: ripe to {ripe} at {at} after {retention} ms, which all passed at {passed}",
            )


def has_policy(broker: SimBroker, topic_id: bytes, policy: str) -> bool:
    """Whether a topic has this policy by the state of the controller on that node."""
    topic = broker.controller.machine.topic_by_id(topic_id)
    return topic is not None and policy in CLEANUP_POLICY.of(topic.configs)
