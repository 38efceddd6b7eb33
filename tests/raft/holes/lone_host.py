"""A production host with its real write-ahead log and snapshots on a simulated disk, and no peers."""

from __future__ import annotations

import random
from typing import Any

from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host import RaftHost
from strandline.node.raft.host_settings import HostSettings
from strandline.node.raft.outcome import Applied
from strandline.node.raft.wal.write_ahead_log import WalConfig
from strandline.statemachine.machine import StateMachine
from tests.raft.fake_host import CLUSTER
from tests.raft.harness import GROUP
from tests.raft.register_map import RegisterMap, set_register
from tests.runtime.manual_loop import manual_loop
from tests.simulation.disk import SimDisk


class LoneHost:
    """Node 1, the only voter of its group."""

    def __init__(
        self,
        disk: SimDisk,
        host_class: type[RaftHost] = RaftHost,
        *,
        machine: StateMachine | None = None,
        segment_bytes: int = 1 << 16,
        **raft: Any,
    ) -> None:
        self.disk = disk
        self.loop = manual_loop()
        self.machine: Any = machine or RegisterMap()
        self.failed: list[Exception] = []
        self.fatal: list[Exception] = []
        settings = HostSettings(
            1, CLUSTER, b"secret", 1, "/data", wal=WalConfig(segment_bytes=segment_bytes), **raft
        )
        self.host = host_class(
            settings,
            loop=self.loop,
            disk=disk,
            wal_executor=None,
            snapshot_executor=None,
            rng=random.Random(1),
            nonces=random.Random(2),
            on_fatal=self.fatal.append,
            on_group_failed=lambda _, error: self.failed.append(error),
        )
        self.host.open()
        self.group: RaftGroup = self.host.create_group(GROUP, self.machine, (1,))
        self.loop.run()

    def lead(self) -> LoneHost:
        """Win the election, which needs nobody else, and commit the entry that begins the term."""
        self.loop.advance(1.0)
        self.group.timeouts.expired()
        self.loop.run()
        return self

    def write(self, *numbers: int) -> None:
        """Commit commands; their outcomes are checked."""
        futures = [
            self.group.replicate(set_register(number, str(number), number), self.group.term)
            for number in numbers
        ]
        self.loop.run()
        assert all(isinstance(future.result(), Applied) for future in futures)

    def snapshot(self) -> None:
        assert self.group.taking.take()
        self.loop.run()

    def killed(self, kind: str = "power") -> SimDisk:
        self.disk.crash(kind)
        return self.disk


def snapshot_files(disk: SimDisk, *, durable: bool = False) -> dict[str, bytes]:
    files = disk.snapshot(durable=durable)
    return {path: data for path, data in files.items() if path.endswith(".snapshot")}
