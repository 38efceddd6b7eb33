"""Clients that work on registers through whichever node they believe leads, and remember what they saw.

A command has one id for its whole life and is given again only after a definite rejection: were a rejected
command applied all the same, its second life would show as applied twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

from strandline.node.raft.group import RaftGroup
from strandline.node.raft.outcome import Applied, NotLeader, Outcome, Overloaded, Unknown
from tests.histories.linearizability import Operation
from tests.raft.register_map import compare_and_set, set_register
from tests.simulation.log.cluster import Cluster

RETRIES = 4
RETRY_SECONDS = 0.12


@dataclass(slots=True)
class Command:
    """One command, from its first call to its end."""

    id: int
    group: int
    key: str
    operation: Operation
    node: int = 0
    boot: int = 0
    future: asyncio.Future[Outcome] | None = None
    outcome: Outcome | None = None
    retries: int = RETRIES

    def has_ended(self) -> bool:
        return self.outcome is not None

    def pack(self) -> bytes:
        arguments = self.operation.arguments
        if self.operation.kind == "set":
            return set_register(self.id, self.key, *arguments)
        return compare_and_set(self.id, self.key, *arguments)


class Clients:
    """All clients of a run, and everything they know."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.commands: list[Command] = []
        self.histories: dict[tuple[int, str], list[Operation]] = {}
        self.outcomes: Counter[str] = Counter()
        self.paused = False
        self._rng = cluster.world.rng("clients")
        self._belief: dict[tuple[int, int], int] = {}
        self._last_seen: dict[tuple[int, str], Any] = {}
        self._stopped = False
        cluster.ledger.on_leader = self._greet

    # Working.

    def start(self) -> None:
        self._stopped = False
        for client in range(1, self.cluster.plan.clients + 1):
            self._later(client)

    def stop(self) -> None:
        self._stopped = True

    def _later(self, client: int) -> None:
        delay = self._rng.expovariate(1.0 / self.cluster.plan.think_seconds)
        self.cluster.world.call_later(delay, self._act, client)

    def _act(self, client: int) -> None:
        if self._stopped:
            return
        if self.paused:
            self._later(client)
            return
        rng, plan = self._rng, self.cluster.plan
        group = rng.choice(plan.groups)
        for _ in range(rng.randint(1, plan.burst)):
            key = self._key()
            if rng.random() < 0.35:
                self.read(client, group, key)
            else:
                self.write(client, group, key)
        self._later(client)

    def _key(self) -> str:
        plan = self.cluster.plan
        window = int(self.cluster.world.now / plan.register_seconds)
        return f"r{window * plan.registers + self._rng.randrange(plan.registers)}"

    def believe(self, group: int, node: int) -> None:
        """Tell client 0, the drills' own, who leads a group."""
        self._belief[0, group] = node

    def write(self, client: int, group: int, key: str) -> Command:
        """Set a register, or compare-and-set what was last seen in it."""
        number = len(self.commands) + 1
        kind: str = "set"
        arguments: tuple[Any, ...] = (number,)
        if self._rng.random() < 0.4:
            kind, arguments = "cas", (self._last_seen.get((group, key)), number)
        operation = Operation(client, kind, arguments, self.cluster.world.now)
        command = Command(number, group, key, operation)
        self.commands.append(command)
        self._history(group, key).append(operation)
        self._give(command)
        return command

    def _history(self, group: int, key: str) -> list[Operation]:
        return self.histories.setdefault((group, key), [])

    # Commands.

    def _give(self, command: Command) -> None:
        node = self._node_for(command.operation.client, command.group)
        sim = self.cluster.world.nodes[node]
        if not sim.alive or self.cluster.group(node, command.group) is None:
            self._belief.pop((command.operation.client, command.group), None)
            self._again(command)
            return
        command.node, command.boot = node, sim.boot
        command.operation.called = self.cluster.world.now
        sim.call(self._replicate, command)

    def _replicate(self, command: Command) -> None:
        group = self.cluster.group(command.node, command.group)
        if group is None:
            self._again(command)
            return
        client = command.operation.client
        term = group.term if not client or self._rng.random() < 0.98 else group.term - 1
        future = command.future = group.replicate(command.pack(), term)
        if future.done():
            self._ended(command, future)
        else:
            future.add_done_callback(lambda ended: self._ended(command, ended))
            if client and self._rng.random() < 0.03:
                # A client that loses patience at once; its command goes on without it.
                group.host.loop.call_later(0.004, future.cancel)

    def _ended(self, command: Command, future: asyncio.Future[Outcome]) -> None:
        operation = command.operation
        if future.cancelled():
            self.outcomes["given up"] += 1
            return
        outcome = command.outcome = future.result()
        belief = (operation.client, command.group)
        if isinstance(outcome, Applied):
            operation.returned, operation.result = self.cluster.world.now, outcome.value
            operation.place = outcome.index
            self._belief[belief] = command.node
            if operation.kind == "set" or outcome.value:
                self._last_seen[command.group, command.key] = operation.arguments[-1]
            self.outcomes["applied"] += 1
            self._check_applied(command, outcome)
        elif isinstance(outcome, Unknown):
            self.outcomes["unknown"] += 1
        else:
            if isinstance(outcome, NotLeader) and outcome.hint is not None:
                self._belief[belief] = outcome.hint
            else:
                self._belief.pop(belief, None)
            self._again(command)

    def _again(self, command: Command) -> None:
        """The command was definitely not taken: try again later, or give it up as rejected."""
        if command.retries and not self._stopped:
            command.retries -= 1
            command.future = command.outcome = None
            delay = RETRY_SECONDS * (0.5 + self._rng.random())
            self.cluster.world.call_later(delay, self._give, command)
            return
        self.outcomes["rejected"] += 1
        if command.outcome is None:
            command.outcome = Overloaded("no node was there")
        self._history(command.group, command.key).remove(command.operation)

    def _check_applied(self, command: Command, outcome: Applied) -> None:
        known = self.cluster.ledger.groups[command.group].applied.get(outcome.index)
        if known is None or known[:3] != (outcome.term, command.pack(), outcome.value):
            self.cluster.ledger.broken(
                "outcome", f"command {command.id} was reported {outcome}, the log has {known} there"
            )

    def _node_for(self, client: int, group: int) -> int:
        believed = self._belief.get((client, group))
        if believed is None or (client and self._rng.random() < 0.05):
            return self._rng.choice(self.cluster.plan.nodes)
        return believed

    # Reads.

    def read(self, client: int, group: int, key: str, *, at: int | None = None) -> None:
        """Read a register, from the node `at` if given."""
        node = self._node_for(client, group) if at is None else at
        sim = self.cluster.world.nodes[node]
        if sim.alive and self.cluster.group(node, group) is not None:
            sim.call(
                self._start_read, Operation(client, "read", (), self.cluster.world.now), node, group, key
            )

    def _greet(self, node: int, group: int) -> None:
        """Somebody asks a new leader at once, when it may not know yet all that was committed before it."""
        if not self._stopped and self._rng.random() < 0.5:
            self.read(0, group, self._key(), at=node)

    def _start_read(self, operation: Operation, node: int, group_id: int, key: str) -> None:
        group = self.cluster.group(node, group_id)
        if group is not None:
            self.cluster.world.nodes[node].spawn(self._read(operation, group, key))

    async def _read(self, operation: Operation, group: RaftGroup, key: str) -> None:
        outcome = await group.barrier()
        if isinstance(outcome, Applied):
            machine: Any = group.machine
            operation.result = machine.registers.get(key)
            operation.returned = self.cluster.world.now
            operation.place = group.applied + 0.5
            self._last_seen[group.id, key] = operation.result
            self._history(group.id, key).append(operation)
            self.outcomes["read"] += 1
        elif isinstance(outcome, Unknown):
            self.cluster.ledger.broken("outcome", "a read's outcome is never unknown")

    # Looking back.

    def unended(self) -> list[Command]:
        """Commands whose node lives on and has not said what became of them."""
        nodes = self.cluster.world.nodes
        return [
            command
            for command in self.commands
            if command.future is not None
            and not command.future.done()
            and nodes[command.node].alive
            and nodes[command.node].boot == command.boot
        ]

    @staticmethod
    def was_rejected(command: Command) -> bool:
        """Whether the command's client gave it up, knowing that it was never taken."""
        return isinstance(command.outcome, NotLeader | Overloaded)

    def place_unknown(self) -> None:
        """Tell the search where the log has the commands whose outcome their clients never learned."""
        for group in self.cluster.plan.groups:
            entries = self.cluster.ledger.groups[group].applied
            where = {command: index for index, (_, command, _, _) in entries.items()}
            for command in self.commands:
                if command.group == group and not isinstance(command.outcome, Applied):
                    command.operation.place = where.get(command.pack(), command.operation.place)
