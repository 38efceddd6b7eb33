"""Stock PySyncObj 0.3.17 on a transport that only remembers: node "1" of three, ticked by hand."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport

NOOP, MEMBERSHIP, VERSION = b"\x01", b"\x02", b"\x03"


def part(name: str) -> Any:
    """One of PySyncObj's modules, whose insides have no annotations."""
    return import_module(f"pysyncobj.{name}")


class Wire(Transport):
    """Takes what is sent, and says what a test says."""

    def __init__(self) -> None:
        super().__init__(None, None, [])
        self.sent: list[tuple[Any, dict[str, Any]]] = []

    def send(self, node: Any, message: Any) -> bool:
        self.sent.append((node.id, message))
        return True

    def take(self) -> list[tuple[Any, dict[str, Any]]]:
        taken, self.sent = self.sent, []
        return taken


class Stock(SyncObj):
    """Node "1" of three: a counter."""

    def __init__(self, **settings: Any) -> None:
        self.wire = Wire()
        self.applied: list[bytes] = []
        conf = SyncObjConf(autoTick=False, **settings)
        super().__init__(Node("1"), [Node("2"), Node("3")], conf, transport=self.wire)

    def internal(self, name: str) -> Any:
        return getattr(self, f"_SyncObj__{name}")

    def _SyncObj__doApplyCommand(self, command: bytes) -> Any:
        if command[:1] == VERSION:
            return super()._SyncObj__doApplyCommand(command)
        self.applied.append(command)
        return None

    def hear(self, node: str, **message: Any) -> list[tuple[Any, dict[str, Any]]]:
        self.wire.take()
        self._SyncObj__onMessageReceived(Node(node), message)
        return self.wire.take()

    def append(
        self, node: str, term: int, previous: tuple[int, int], terms: list[int], commit: int = 1
    ) -> Any:
        entries = [(NOOP, previous[0] + at, entry_term) for at, entry_term in enumerate(terms, 1)]
        return self.hear(
            node,
            type="append_entries",
            term=term,
            commit_index=commit,
            prevLogIdx=previous[0],
            prevLogTerm=previous[1],
            entries=entries,
        )

    def lead(self) -> None:
        for node in self.otherNodes:
            self._SyncObj__onNodeConnected(node)
        self._SyncObj__raftElectionDeadline = 0
        self.doTick()
        for voter in ("2", "3"):
            self.hear(voter, type="response_vote", term=self.raftCurrentTerm)
        assert self._isLeader()

    @property
    def terms(self) -> list[int]:
        return [term for _, _, term in self.internal("raftLog")[:]]
