"""A random walk over the coordination of removal: does any copy of a table ever show what was deleted?

Four nodes, each with the production code of reports and of the leaders' part, and the partition's state
machine, on one simulated loop. The local logs are sets of offsets that follow the rules of
docs/compaction.md. Replicas lag, are cut off, lose their files, leave and come back with old ones; leaders
change. After each step every copy's table is compared with what was written.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from strandline.node.compaction.removal_minimum import Ends
from strandline.node.controller.leaders import Leader
from strandline.node.raft.configuration import Configuration
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.machine import Corruption
from strandline.statemachine.partition.level_one import LevelOneExtent
from strandline.statemachine.partition.partition_commands import (
    AdvanceReconciled,
    AdvanceRemoval,
    Command,
    LevelOneReplaced,
    ReplaceLevelOne,
)
from strandline.statemachine.partition.rejection import Rejected
from tests.compaction.removal_nodes import GROUP, Post, RemovalNode, Replica
from tests.compaction.removal_rules import RULES, break_rules
from tests.level_zero.samples import started
from tests.simulation.world import World
from tests.statemachine.partitions import NOW, placeholder
from tests.statemachine.partitions import Replica as Log

RETENTION = 6_000


class Broken(AssertionError):
    """A rule of the specification does not hold; the first word says which."""


class Version(NamedTuple):
    """The state as one entry left it."""

    end: int
    reconciled: int
    level_one: tuple[bytes, ...]
    mtro: int
    ripe: int


@dataclass
class LocalLog:
    """A replica's own log: offsets in place of records."""

    records: set[int] = field(default_factory=set)
    clean: int = 0
    end: int = 0
    floor: int = 0
    applied: int = 0
    """Number of the version that its replica has."""
    up: bool = True
    excused: bool = False
    """Its files were lost, or are of an earlier membership, since the leader heard of it."""
    resets: int = 0

    @property
    def ends(self) -> Ends:
        return Ends(max(self.clean, self.floor), max(self.end, self.floor))


class Walk:
    """One partition; nodes 1 to 3 are its members at first."""

    def __init__(self, seed: int, broken: Iterable[str] = ()) -> None:
        self.broken = frozenset(broken)
        assert self.broken <= RULES.keys()
        self.rng = random.Random(seed)
        self.world = World(seed)
        self.log = Log()
        self.history: list[tuple[int, bool]] = []
        """Key, and whether it was deleted, by offset."""
        self.objects: dict[bytes, frozenset[int]] = {}
        self.versions = [Version(0, 0, (), 0, 0)]
        self.logs = {node: LocalLog() for node in (1, 2, 3, 4)}
        self.members: tuple[int, ...] = (1, 2, 3)
        self.leader, self.term = 1, 1
        self.keys = 6
        self.proposed = self.rejected = 0
        self.staged: float | None = None
        """Seconds that an entry waits before it comes to the log; None: some do."""
        self.error: Exception | None = None

    def __enter__(self) -> Walk:
        self.world.__enter__()
        self.sim = started(self.world)
        self.post = Post()
        self.nodes = {node: RemovalNode(self.post, node, self.sim.loop) for node in self.logs}
        for each in self.nodes.values():
            each.configs["delete.retention.ms"] = str(RETENTION)
            replica = each.replicas[GROUP] = Replica(GROUP, self.members)
            replica.on_execute = self._executor(each.node_id)
            break_rules(each, self.broken)
            self.sim.call(each.reports.start)
            self.sim.call(each.leader.start)
        for node in self.nodes:
            for other in range(node + 1, 5):
                self.post.connect(node, other)
        self._elected()
        self.pass_time(0.1)
        return self

    def __exit__(self, *args: object) -> None:
        self.world.__exit__(*args)

    # The log of the partition.

    @property
    def now(self) -> Version:
        return self.versions[-1]

    def entry(self, command: Command | None, made_in: int | None = None) -> Any:
        """Apply a command, whoever made it; None: a batch of one record."""
        time = NOW + int(1000 * self.world.now)
        if command is None:
            result: Any = self.log.append(placeholder(), time=time)
        else:
            result = self.log.apply(command, time=time, made_in=made_in)
        machine = self.log.machine
        self.versions.append(
            Version(
                machine.next_offset,
                machine.last_reconciled_offset + 1,
                tuple(one.unique for one in machine.level_one),
                machine.removals.mtro,
                machine.removals.ripe_tombstones,
            )
        )
        self._leader_has_all()
        return result[0] if isinstance(result, list) else result

    def _leader_has_all(self) -> None:
        self.logs[self.leader].applied = len(self.versions) - 1

    def _executor(self, node: int) -> Callable[[AdvanceRemoval], Any]:
        async def execute(command: AdvanceRemoval) -> Any:
            term = self.nodes[node].replicas[GROUP].leader_epoch
            self.proposed += 1
            # Staged for a while: leaders, members and reports may be others when it comes to the log.
            await asyncio.sleep(self.rng.choice((0.0, 0.0, 3.0)) if self.staged is None else self.staged)
            if "term" in self.broken:
                term = self.term
            if node != self.leader:
                return Refusal(Reason.NOT_LEADER)
            try:
                result = self.entry(command, term)
                self._nobody_is_overtaken()
            except (Broken, Corruption) as error:
                # Raised here it would be the leader's to deal with.
                self.error = self.error or error
                return Refusal(Reason.UNDECIDED)
            self.rejected += isinstance(result, Rejected)
            return result

        return execute

    def _elected(self) -> None:
        for node, each in self.nodes.items():
            replica = each.replicas[GROUP]
            replica.leads = node == self.leader
            if replica.leads:
                replica.leader_epoch = self.term
                replica.machine = self.log.machine
        self._leader_has_all()
        self._configure()

    def _configure(self) -> None:
        for node in self.nodes.values():
            node.replicas[GROUP].group.configuration = Configuration(len(self.versions), self.members)

    # What the copies show.

    def table(self, offsets: Iterable[int], end: int) -> dict[int, int]:
        newest: dict[int, int] = {}
        for offset in sorted(offsets):
            if offset < end:
                newest[self.history[offset][0]] = offset
        return {key: offset for key, offset in newest.items() if not self.history[offset][1]}

    def level_one(self, version: Version) -> set[int]:
        return set[int]().union(*(self.objects[unique] for unique in version.level_one))

    def check(self) -> None:
        now = self.now
        truth = self.table(range(now.end), now.end)
        stored = self.level_one(now)
        shown = self.table({*stored, *range(now.reconciled, now.end)}, now.end)
        if shown != truth:
            raise Broken(f"table: level one shows {shown} in place of {truth}")
        clean = self.log.machine.removals.level_one_clean
        self._one_of_each_key("level one", (offset for offset in stored if offset < clean))
        for node in self.members:
            log = self.logs[node]
            version = self.versions[log.applied]
            self._one_of_each_key(f"node {node}", (offset for offset in log.records if offset < log.clean))
            if not log.up or not self.in_step(log, version) or log.end > version.end:
                continue
            above = {*self.level_one(version), *range(version.reconciled, version.end)}
            shown = self.table({*log.records, *(o for o in above if o >= log.end)}, version.end)
            truth = self.table(range(version.end), version.end)
            if shown != truth:
                raise Broken(f"table: node {node} shows {shown} in place of {truth}")

    def _one_of_each_key(self, where: str, offsets: Iterable[int]) -> None:
        keys = [self.history[offset][0] for offset in offsets]
        if len(keys) != len({*keys}):
            raise Broken(f"clean: a key is there twice on {where}")

    def _nobody_is_overtaken(self) -> None:
        for node in self.members:
            log = self.logs[node]
            if not log.excused and self.now.mtro > log.ends.mcco:
                raise Broken(f"overtaken: mtro {self.now.mtro}, node {node} is clean to {log.ends.mcco}")

    def in_step(self, log: LocalLog, version: Version) -> bool:
        return "in_step" in self.broken or version.ripe <= max(log.end, log.floor)

    # Steps.

    def pass_time(self, seconds: float) -> None:
        for each in self.nodes.values():
            each.now_ms = NOW + int(1000 * (self.world.now + seconds))
        for node, log in self.logs.items():
            disk = self.nodes[node].disk
            if node in self.members and log.up:
                disk[GROUP] = log.ends
            elif log.up:
                disk.pop(GROUP, None)
        self.world.run(self.world.now + seconds)
        if self.error is not None:
            raise self.error

    def _deliver(self, sender: int, receiver: int, frame: list[Any]) -> None:
        self.post.deliver(sender, receiver, frame)
        log = self.logs[sender]
        told = [row[2:] for row in frame[1] if row[1] == self.term]
        if receiver == self.leader and told == [[*log.ends]] and self.now.mtro <= log.ends.mcco:
            # From now on it counts as it is.
            log.excused = False

    def talk(self, seconds: float) -> None:
        """Let time pass in which all that are up hear of the leader and of one another."""
        for _ in range(round(2 * seconds)):
            for node, log in self.logs.items():
                if log.up:
                    self.nodes[node].leaders[GROUP] = Leader(self.leader, self.term)
            waiting, self.post.waiting = self.post.waiting, {}
            for way, frames in waiting.items():
                for frame in frames:
                    self._deliver(*way, frame)
            self.pass_time(0.5)
            self.check()

    def produce(self) -> None:
        self.write(self.rng.randrange(self.keys), deleted=self.rng.random() < 0.5)

    def write(self, key: int, *, deleted: bool = False) -> int:
        self.history.append((key, deleted))
        self.entry(None)
        return len(self.history) - 1

    def lift(self) -> None:
        machine = self.log.machine
        first, end = machine.extents.first_offset, machine.next_offset
        if end > first:
            self.entry(AdvanceReconciled(first, [self._object(first, end, range(first, end))]))

    def _object(self, base: int, end: int, records: Iterable[int]) -> LevelOneExtent:
        unique = (len(self.objects) + 1).to_bytes(16, "big")
        self.objects[unique] = frozenset(records)
        return LevelOneExtent(base, end, NOW, 1000, 100, self.log.machine.term, unique)

    def catch_up(self, node: int | None = None) -> None:
        log = self.logs[self._one_that_is_up() if node is None else node]
        last = len(self.versions) - 1
        log.applied = last if node is not None else max(log.applied, self.rng.randint(log.applied, last))

    def _one_that_is_up(self) -> int:
        return self.rng.choice([node for node in self.members if self.logs[node].up])

    def toggle(self) -> None:
        down = [node for node in self.members if not self.logs[node].up]
        if down and self.rng.random() < 0.8:
            self.switch(self.rng.choice(down), up=True)
            return
        node = self.rng.choice(self.members)
        if node != self.leader and self.logs[node].up:
            self.switch(node, up=False)

    def switch(self, node: int, *, up: bool) -> None:
        """Start or stop a node: with its connections, and what leaders it knew."""
        self.logs[node].up = up
        for other, log in self.logs.items():
            if other != node and up and log.up:
                self.post.connect(node, other)
            elif other != node and not up:
                self.post.disconnect(node, other)
        self.nodes[node].leaders.clear()

    def cut(self) -> None:
        """Lose a connection, and have another."""
        one, other = self.rng.sample(sorted(self.logs), 2)
        if self.logs[one].up and self.logs[other].up:
            self.post.disconnect(one, other)
            self.post.connect(one, other)

    def lead(self, node: int | None = None) -> None:
        self.leader = self._one_that_is_up() if node is None else node
        self.term += 1
        self.log.begin_term(self.term)
        self._elected()

    def learn(self) -> None:
        """A node hears of the present leader."""
        node = self.rng.choice(sorted(self.logs))
        if self.logs[node].up:
            self.nodes[node].leaders[GROUP] = Leader(self.leader, self.term)

    def deliver(self) -> None:
        """Frames come in the order of their connection, now and then one of them twice."""
        for way, frames in [*self.post.waiting.items()]:
            for _ in range(self.rng.randint(0, len(frames))):
                self._deliver(*way, frames[0])
                if self.rng.random() < 0.9:
                    frames.pop(0)

    def ingest(self, node: int | None = None, most: int = 6) -> None:
        log = self.logs[self._one_that_is_up() if node is None else node]
        if len(self.versions) - 1 - log.applied > 12:
            # The objects of its version are gone.
            log.applied = len(self.versions) - 1
        version = self.versions[log.applied]
        if not log.records or "floor" in self.broken:
            log.floor = max(log.floor, version.mtro)
        if not self.in_step(log, version):
            self.reset(log, version)
            return
        end = min(version.reconciled, log.end + self.rng.randint(1, most))
        if end > log.end:
            log.records |= {offset for offset in self.level_one(version) if log.end <= offset < end}
            log.end = end

    def reset(self, log: LocalLog, version: Version) -> None:
        if not log.excused:
            raise Broken("reset: a log that lost nothing has to be made again")
        log.records, log.clean, log.end, log.floor = set(), 0, 0, version.mtro
        log.resets += 1

    def clean(self, node: int | None = None) -> None:
        log = self.logs[self._one_that_is_up() if node is None else node]
        version = self.versions[log.applied]
        if not self.in_step(log, version) or log.end <= log.clean + 1:
            return
        bound = self.rng.randint(log.clean, log.end - 1) if node is None else log.end - 1
        newest = {self.history[offset][0]: offset for offset in sorted(log.records) if offset < bound}
        log.records = {
            offset
            for offset in log.records
            if offset >= bound
            or (
                newest[self.history[offset][0]] == offset
                and (not self.history[offset][1] or offset >= version.ripe)
            )
        }
        log.clean = bound

    def publish(self, *, apart: bool | None = None) -> None:
        """Replace level one's front from the leader's log, up to the end of one of its objects; each of the
        objects by its own if `apart`."""
        log, machine = self.logs[self.leader], self.log.machine
        if not self.in_step(log, self.now):
            return
        old = [one for one in machine.level_one if one.end_offset <= log.clean]
        if not old:
            return
        if apart is None:
            old = old[: self.rng.randint(1, len(old))]
        places = [(one.base_offset, one.end_offset) for one in old]
        if not (self.rng.random() < 0.3 if apart is None else apart):
            places = [(places[0][0], places[-1][1])]
        new = [
            self._object(base, end, (offset for offset in log.records if base <= offset < end))
            for base, end in places
        ]
        end = places[-1][1]
        clean = 1 << 40 if "less_clean" in self.broken else log.clean
        names = [(one.term, one.unique) for one in old]
        result = self.entry(ReplaceLevelOne(names, new, clean, end, end))
        assert isinstance(result, LevelOneReplaced) or log.clean < machine.removals.level_one_clean

    def member(self) -> None:
        out = [node for node in self.logs if node not in self.members]
        if self.rng.random() < 0.5 and len(self.members) > 2:
            self.leave(self.rng.choice([node for node in self.members if node != self.leader]))
        elif out:
            self.join(self.rng.choice(out))

    def leave(self, node: int) -> None:
        self.members = tuple(one for one in self.members if one != node)
        self._configure()
        log = self.logs[node]
        log.excused = True
        if log.up:
            self.logs[node] = LocalLog(excused=True, applied=log.applied)

    def join(self, node: int) -> None:
        """It comes with its old files if it was down when it left."""
        self.members = (*self.members, node)
        self._configure()
        self.logs[node].excused = True
        self.switch(node, up=True)

    def lose_files(self, node: int | None = None) -> None:
        log = self.logs[self._one_that_is_up() if node is None else node]
        log.excused = True
        self.reset(log, self.versions[log.applied])

    def run(self, steps: int) -> None:
        pick = self.rng.choice
        self.keys = pick((2, 4, 10))
        slow = pick((2, 6, 30))
        steps_of = [
            *[self.produce] * pick((2, 4, 8)), *[self.lift] * 6, *[self.catch_up] * 12,
            *[self.toggle] * pick((0, 1, 2)), self.cut, *[self.lead] * pick((0, 1)), *[self.learn] * 20,
            *[self.deliver] * 20, *[lambda: self.ingest(most=slow)] * 16, *[self.clean] * 12,
            *[self.publish] * pick((4, 8)), *[self.member] * pick((0, 1)),
            *[self.lose_files] * pick((0, 0, 1)),
        ]  # fmt: skip
        for _ in range(steps):
            pick(steps_of)()
            self.pass_time(self.rng.choice((0.1, 1.0, 4.0)))
            self.check()


def walk(seed: int, steps: int, *broken: str) -> tuple[Walk, str | None]:
    """One walk, and the first word of what it found."""
    with Walk(seed, broken) as each:
        try:
            each.run(steps)
        except Broken as error:
            return each, str(error)
        except Corruption as error:
            return each, f"corruption: {error}"
        return each, None


if __name__ == "__main__":
    import sys

    _, seeds, steps, *rules = sys.argv
    found: dict[str, list[int]] = {}
    ripe = proposed = rejected = resets = 0
    for seed in range(int(seeds)):
        done, why = walk(seed, int(steps), *rules)
        ripe += done.now.ripe > 0
        proposed, rejected = proposed + done.proposed, rejected + done.rejected
        resets += sum(log.resets for log in done.logs.values())
        if why is not None:
            found.setdefault(why.split(":")[0], []).append(seed)
    print(f"{rules or 'as specified'}: ripe rose in {ripe} of {seeds}, {proposed} entries,")
    print(f"{rejected} of them without effect, {resets} resets; found {found}")
