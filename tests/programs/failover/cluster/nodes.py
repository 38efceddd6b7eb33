"""Three real nodes whose mesh runs through links that can be cut, and what is asked of and done to them."""

from __future__ import annotations

import asyncio
import itertools
import re
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import ElectionType, KafkaException
from confluent_kafka.admin import AdminClient as KafkaAdmin
from confluent_kafka.cimpl import NewTopic

from strandline.cluster.admin_client import AdminClient, Unreachable, first_answer
from strandline.cluster.kafka_client import client_config
from strandline.cluster.local import LocalCluster
from strandline.cluster.local_files import Description, LocalNode
from strandline.cluster.ports import LOOPBACK, free_ports
from tests.programs.failover.cluster.small_disk import SmallDisk, take_reserve_back
from tests.programs.failover.cluster.stores import Storage
from tests.programs.failover.links import Link

NODES = (1, 2, 3)
SMALL_DISK_NODE = 3
TOPIC = "load"
PARTITIONS = 6
HEALTHY_SECONDS = 45.0
STOP_SECONDS = 20.0
_POLL_SECONDS = 0.05
_REQUEST_SECONDS = 20.0
_DISK_BYTES = 2 << 30


class NotWell(RuntimeError):
    """The cluster did not do in time what it must: a finding."""


class Nodes:
    """The cluster. What blocks runs in a thread, so that the links of this loop go on meanwhile."""

    def __init__(self, folder: Path, storage: Storage, *, small_disk: bool) -> None:
        self.folder = folder
        self.storage = storage
        self.links = [Link(dialler, target) for target, dialler in itertools.combinations(NODES, 2)]
        self.local = LocalCluster(folder)
        found = Description.new(folder, free_ports(NODES), storage.url, storage.settings)
        found.create()
        self.ids = found.nodes
        self.cluster_id = found.cluster
        self.bootstrap = found.bootstrap
        self.disk = (
            SmallDisk(self.ids[SMALL_DISK_NODE].data, _DISK_BYTES)
            if small_disk and SmallDisk.possible()
            else None
        )

    async def up(self, epoch_seconds: float) -> None:
        """Start what does not run, with this period of the cluster epoch; returns when all is healthy."""
        for link in self.links:
            if not link.port:
                link.target_port = self.ids[link.ends[1]].ports.mesh
                await link.open()
        for node in self.ids.values():
            self._configure(node, epoch_seconds)
        await asyncio.to_thread(self.local.up, settings=self.storage.settings, timeout=HEALTHY_SECONDS)

    async def down(self) -> None:
        """SIGTERM to all; CommandFailed when one had to be killed."""
        await asyncio.to_thread(self.local.down, STOP_SECONDS)

    async def close(self, keep: Path | None) -> None:
        """Leave nothing running or mounted; what lay on the small disk goes to `keep` before."""
        try:
            if Description.load(self.folder) is not None:
                await self.down()
        finally:
            for link in self.links:
                await link.close()
            if self.disk is not None:
                self.disk.free()
                if keep is not None:
                    shutil.copytree(self.disk.path, keep, dirs_exist_ok=True)
                self.disk.unmount()

    def _configure(self, node: LocalNode, epoch_seconds: float) -> None:
        """A node dials those with lower ids, here by way of the links."""
        ports = {
            other: next(
                (link.port for link in self.links if link.ends == (node.node, other)), each.ports.mesh
            )
            for other, each in self.ids.items()
        }
        peers = ", ".join(f'"{other}@{LOOPBACK}:{port}"' for other, port in ports.items())
        lines = [
            line
            for line in node.config.read_text().splitlines()
            if not re.match(r"(nodes|epoch_seconds) = ", line)
        ]
        place = lines.index("[cluster]") + 1
        lines[place:place] = [f"nodes = [{peers}]", f"epoch_seconds = {epoch_seconds}"]
        node.config.write_text("\n".join(lines) + "\n")

    # Asking.

    async def ask(self, path: str, method: str = "GET", body: Any = None, *, seconds: float = 10.0) -> Any:
        """The first good answer of any node's HTTP API."""
        addresses = [node.admin for node in self.ids.values()]
        return await asyncio.to_thread(first_answer, addresses, method, path, body, timeout=seconds)

    async def leaders(self) -> dict[int, int]:
        """Who leads each partition; NotWell when that is not known in time."""
        deadline = time.monotonic() + _REQUEST_SECONDS
        while time.monotonic() < deadline:
            partitions = (await self.ask(f"/api/topics/{TOPIC}"))["partitions"]
            found = {each["partition"]: each["leader"] for each in partitions}
            if len(found) == PARTITIONS and None not in found.values():
                return found
            await asyncio.sleep(_POLL_SECONDS)
        raise NotWell(f"not every partition has a leader after {_REQUEST_SECONDS:g} s")

    async def partitions(self) -> list[Mapping[str, Any]]:
        """Every replica of the topic on every node that answers, as its HTTP API tells."""
        found: list[Mapping[str, Any]] = []
        for node in self.ids.values():
            try:
                answer = await asyncio.to_thread(
                    AdminClient(node.admin).request, "GET", f"/api/partitions?topic={TOPIC}"
                )
            except Unreachable:
                continue
            found += [{**row, "node": node.node} for row in answer.body["partitions"]]
        return found

    async def healthy(self) -> None:
        """Wait until every node says that all is well; NotWell when it does not in time."""
        deadline = time.monotonic() + HEALTHY_SECONDS
        while True:
            problems = [
                f"node {node.node}: {problem}"
                for node in self.ids.values()
                if (problem := await asyncio.to_thread(AdminClient(node.admin).health)) is not None
            ]
            if not problems:
                return
            if time.monotonic() > deadline:
                raise NotWell(f"after {HEALTHY_SECONDS:g} s not healthy: {'; '.join(problems)}")
            await asyncio.sleep(_POLL_SECONDS)

    async def create_topic(self) -> None:
        await asyncio.to_thread(self._create_topic)
        await self.leaders()

    def _create_topic(self) -> None:
        admin = KafkaAdmin(client_config(self.bootstrap))
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, len(NODES))])[TOPIC].result(_REQUEST_SECONDS)

    async def spread_leaders(self) -> None:
        """Every partition to its preferred leader, so that each node leads some; best effort."""
        await asyncio.to_thread(self._spread_leaders)

    def _spread_leaders(self) -> None:
        admin = KafkaAdmin(client_config(self.bootstrap))
        try:
            # Without its keyword arguments: their format string asks for one more than it names.
            admin.elect_leaders(ElectionType.PREFERRED, None).result(_REQUEST_SECONDS)
        except (KafkaException, TimeoutError):
            return

    # Doing.

    async def kill(self, node: int) -> None:
        """SIGKILL."""
        await asyncio.to_thread(self.local.kill, node)

    async def stop(self, node: int) -> None:
        """SIGTERM, and wait."""
        await asyncio.to_thread(self.local.stop, node, STOP_SECONDS)

    async def start(self, node: int) -> None:
        """Once more on the same folder; returns when it is healthy."""
        await asyncio.to_thread(self.local.start, node, timeout=HEALTHY_SECONDS)

    def pause(self, node: int) -> None:
        """SIGSTOP."""
        self._signal(node, signal.SIGSTOP)

    def resume(self, node: int) -> None:
        """SIGCONT."""
        self._signal(node, signal.SIGCONT)

    def links_between(self, some: Sequence[int], others: Sequence[int]) -> list[Link]:
        return [
            link
            for link in self.links
            if (link.ends[0] in some and link.ends[1] in others)
            or (link.ends[1] in some and link.ends[0] in others)
        ]

    async def fill_disk(self) -> None:
        """Let the small disk be full, and the write-ahead log on it be without the space it set aside."""
        assert self.disk is not None
        self.pause(SMALL_DISK_NODE)
        try:
            for segment in self.disk.path.glob("wal/wal-*.log"):
                await asyncio.to_thread(take_reserve_back, segment)
            await asyncio.to_thread(self.disk.fill)
        finally:
            self.resume(SMALL_DISK_NODE)

    def _signal(self, node: int, number: signal.Signals) -> None:
        process = self.local.description.nodes[node].process
        if process is None or not process.signal(number):
            raise NotWell(f"node {node} does not run: {self.ids[node].last_words()}")
