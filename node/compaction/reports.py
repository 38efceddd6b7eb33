"""Reports of the replicas here on how far their logs are cleaned, to the leaders; and what leaders heard.

A replica that lost its files is less clean than before, and no number that it still has would tell an old
report from a new one. The order of one connection does: the newest report on the present connection counts,
also a lower one, and all that a peer has said is forgotten with the connection. What is left is the moment
between a loss and the next report; a replica that removal overtook then resets its log. docs/compaction.md.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from strandline.node.compaction.removal_minimum import Ends
from strandline.node.rpc import CallFailed
from strandline.node.runtime.rounds import next_round
from strandline.node.runtime.slices import in_slices, look_seconds
from strandline.statemachine.partition.partition import PartitionStateMachine

TELL: Final = "compaction.report"
LOOK_SECONDS: Final = 1.0
"""Least time between two looks at the logs here; what changed since the last one is told."""
TELL_ALL_SECONDS: Final = 30.0
"""A report that was lost is told again within this time: a peer that has too much to do drops what it is
told."""
ROWS: Final = 500
"""Reports in one frame: some 10 KB, and a millisecond for the node that is told."""
MAX_OFFSET: Final = 2**63 - 1
NONE: Final = -1
"""In place of both offsets: the replica has no log that counts, or has gone. What it said before is void."""


class Report(NamedTuple):
    """The newest report of one replica on the present connection."""

    number: int
    """Of the frame that brought it: a frame that comes twice, or late, must not undo a newer one."""
    term: int
    """Of the leader that it was told to."""
    ends: Ends | None


class Stateful(Protocol):
    """A partition's replica, of which the state is wanted."""

    @property
    def machine(self) -> PartitionStateMachine: ...


class ReplicaLog(Protocol):
    """The local log of a replica here."""

    @property
    def replica(self) -> Stateful: ...
    def ends(self, machine: PartitionStateMachine, /) -> Ends | None:
        """The ends by the durable manifest; None while the replica has no log that counts."""


class ReplicaLogs(Protocol):
    """The local logs of the compacted replicas here."""

    @property
    def logs(self) -> Mapping[int, ReplicaLog]: ...
    def log_of(self, group: int, /) -> ReplicaLog | None: ...


class Leader(Protocol):
    """A node and the term in which it leads."""

    @property
    def node(self) -> int: ...
    @property
    def term(self) -> int: ...


class Leaders(Protocol):
    """Leaders of the groups, as known here."""

    def leader_of(self, group: int, /) -> Leader | None: ...


class Calls(Protocol):
    """The calls between nodes."""

    def serve(self, method: str, handler: Any, /) -> None: ...
    def tell(self, node: int, method: str, payload: Any, /) -> bool: ...


class Host(Protocol):
    """The mesh, and the groups with a replica here."""

    @property
    def node_id(self) -> int: ...
    @property
    def groups(self) -> Mapping[int, object]: ...
    def watch_peers(self, on_connect: Any, on_disconnect: Any, /) -> None: ...


class _Sent(NamedTuple):
    """The last report of a replica to its leader, and the connection that it went over."""

    peer: int
    connection: int
    term: int
    ends: Ends | None
    again: bool = False
    """Whether it was told once more with everything else: of a log that is gone that is enough."""

    def row(self, group: int) -> tuple[int, int, int, int]:
        return (group, self.term, *(self.ends or (NONE, NONE)))


class Reports:
    """One per node. Everything belongs on `loop`."""

    def __init__(
        self,
        calls: Calls,
        host: Host,
        leaders: Leaders,
        logs: ReplicaLogs,
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.counters: Counter[str] = Counter()
        """`frames` and `rows` sent, `unsent` frames, rows `heard`, and rows of `unknown` groups."""
        self._calls = calls
        self._host = host
        self._leaders = leaders
        self._logs = logs
        self._loop = loop
        self._connections: Counter[int] = Counter()
        """Connections that each peer has had; a number names one of them."""
        self._connected: dict[int, None] = {}
        self._number = 0
        """Of the last frame that was sent."""
        self._sent: dict[int, _Sent] = {}
        """By group."""
        self._received: dict[int, dict[int, Report]] = {}
        """By peer, and by group; of present connections only."""
        self._task: asyncio.Task[None] | None = None
        calls.serve(TELL, self._on_told)
        host.watch_peers(self._on_connect, self._on_disconnect)

    def start(self) -> None:
        """Begin to tell."""
        self._task = self._loop.create_task(self._run())

    def close(self) -> None:
        """Tell nothing any more."""
        if self._task is not None:
            self._task.cancel()

    # What a leader knows.

    def known(self, group: int, term: int, members: Iterable[int]) -> dict[int, Ends]:
        """The newest ends that these members told this node as leader in `term`, and its own replica's."""
        found = {}
        for node in members:
            if node == self._host.node_id:
                ends = _ends(self._logs.log_of(group))
            else:
                report = self._received.get(node, {}).get(group)
                ends = None if report is None or report.term != term else report.ends
            if ends is not None:
                found[node] = ends
        return found

    # Telling.

    async def _run(self) -> None:
        all_at = self._loop.time() + TELL_ALL_SECONDS
        while True:
            await next_round(look_seconds(LOOK_SECONDS, len(self._logs.logs)))
            everything = self._loop.time() >= all_at
            if everything:
                all_at = self._loop.time() + TELL_ALL_SECONDS
                await self._forget_gone()
            try:
                await self.look(everything=everything)
            except Exception as error:
                # Removal would wait for this node until its next start.
                message = "reports on local logs failed in a way that was not foreseen"
                self._loop.call_exception_handler({"message": message, "exception": error})

    async def look(self, *, everything: bool = False) -> None:
        """Tell the leaders what changed since they were told, or everything.

        Only one look at a time: so a newer report follows the older one on each connection.
        """
        ready: dict[int, list[tuple[int, _Sent]]] = {}
        async for group in in_slices(dict.fromkeys([*self._sent, *self._logs.logs])):
            told = self._report(group, everything)
            if told is None or (not everything and self._sent.get(group) == told):
                continue
            rows = ready.setdefault(told.peer, [])
            rows.append((group, told))
            if len(rows) == ROWS:
                self._send(told.peer, ready.pop(told.peer))
        for peer, rows in ready.items():
            self._send(peer, rows)

    def _report(self, group: int, everything: bool) -> _Sent | None:
        """The report that is due for a replica as things are now; None for none."""
        log = self._logs.log_of(group)
        if log is None:
            last = self._sent.get(group)
            if last is None or last.again or not self._is_present(last):
                self._sent.pop(group, None)
                return None
            return last._replace(ends=None, again=everything and last.ends is None)
        leader = self._leaders.leader_of(group)
        if leader is None or leader.node not in self._connected:
            return None
        return _Sent(leader.node, self._connections[leader.node], leader.term, _ends(log))

    def _is_present(self, told: _Sent) -> bool:
        return told.peer in self._connected and told.connection == self._connections[told.peer]

    def _send(self, peer: int, rows: list[tuple[int, _Sent]]) -> None:
        current = [(group, told) for group, told in rows if self._is_present(told)]
        if not current:
            return
        self._number += 1
        if not self._calls.tell(peer, TELL, [self._number, [told.row(group) for group, told in current]]):
            self.counters["unsent"] += 1
            return
        self.counters["frames"] += 1
        self.counters["rows"] += len(current)
        self._sent.update(current)

    def _on_connect(self, peer: int) -> None:
        self._connections[peer] += 1
        self._connected[peer] = None
        self._received[peer] = {}

    def _on_disconnect(self, peer: int) -> None:
        self._connected.pop(peer, None)
        self._received.pop(peer, None)

    # Being told.

    async def _on_told(self, peer: int, payload: Any) -> None:
        match payload:
            case [int(number), [*rows]] if len(rows) <= ROWS and all(map(_is_row, rows)):
                heard = self._received.get(peer)
                if heard is not None:
                    self._take(heard, number, rows)
            case _:
                reason = f"that is not a number and at most {ROWS} rows of group, term, MCCO and MXFO"
                raise CallFailed(reason, unknown=False)

    def _take(self, heard: dict[int, Report], number: int, rows: list[list[int]]) -> None:
        groups = self._host.groups
        for group, term, mcco, mxfo in rows:
            if group not in groups:
                self.counters["unknown"] += 1
                continue
            self.counters["heard"] += 1
            known = heard.get(group)
            if known is None or known.number < number:
                heard[group] = Report(number, term, None if mcco == NONE else Ends(mcco, mxfo))

    async def _forget_gone(self) -> None:
        """Reports of groups that left this node."""
        groups = self._host.groups
        for heard in [*self._received.values()]:
            async for group in in_slices(heard):
                if group not in groups:
                    heard.pop(group, None)


def _ends(log: ReplicaLog | None) -> Ends | None:
    return None if log is None else log.ends(log.replica.machine)


def _is_row(row: Any) -> bool:
    if type(row) is not list or len(row) != 4 or not all(type(number) is int for number in row):
        return False
    group, term, mcco, mxfo = row
    in_range = 0 <= mcco <= mxfo <= MAX_OFFSET or mcco == mxfo == NONE
    return bool(in_range and 0 <= group <= MAX_OFFSET and 0 <= term <= MAX_OFFSET)
