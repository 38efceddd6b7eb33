"""Thousands of partitions: created at once, idle, a node killed, a node started again.

`scripts/bench partitions --partitions 10000 --nodes 5`: a topic with three replicas, created in one request.
The client asks for Metadata until all partitions are led, on the processors of the nodes. The node that is
killed leads the controller. An election that neither a creation nor the kill asked for is a problem.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient as KafkaAdmin

from strandline.cluster.admin_client import AdminClient, Unreachable
from strandline.cluster.failure import CommandFailed
from strandline.cluster.kafka_client import client_config
from strandline.cluster.local import LocalCluster
from strandline.cluster.ports import free_ports
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_commands import (
    FEATURE_LEVEL,
    Bootstrap,
    Command,
    CreateTopic,
    RegisterNode,
    encode,
)
from strandline.statemachine.kafka_errors import Refused
from tests.programs.bench.report import shown, table
from tests.programs.failover.verdict import percentile
from tests.programs.folder_option import existing_folder
from tests.programs.mix.leading import LED_SECONDS, create_topic, seconds_until_led
from tests.programs.mix.watch import Told, told

TOPIC: Final = "many"
FRAMES: Final = "strandline_mesh_frames_sent_total"
MEMORY: Final = "process_resident_memory_bytes"
WANTED_SECONDS: Final = 10.0
"""Until all partitions are led: after they were created, after a kill, and after a start."""
METADATA_SECONDS: Final = 2.0
"""Of one answer about all partitions."""
ELECTED_SECONDS: Final = 2.0
"""From a kill until the other nodes lead all groups."""
MOST: Final = 10_000
"""Partitions of a topic."""
_REPLICAS: Final = 3
_ASKED: Final = 5
"""Metadata answers that are measured; the middle one counts."""
_ELECTION_POLL_SECONDS: Final = 0.05
_SETTLE_SECONDS: Final = 10.0
"""From the last election until a topic's groups are quiet."""


@dataclass
class Report:
    """Filled in as the run goes. Times in seconds."""

    partitions: int
    nodes: int = 3
    state_bytes: int = 0
    """Snapshot of the controller's state, as it is stored and sent to a node that joins."""
    state_seconds: float = 0.0
    """Of a processor, to make it from the state."""
    metadata_bytes: int = 0
    """One answer about all partitions."""
    metadata_seconds: float = 0.0
    """From the request to the answer's last byte, the middle of some."""
    frames: float = 0.0
    """That all nodes send each other in a second while nothing is asked of them: their heartbeats."""
    memory: int = 0
    """The largest node, idle, in bytes."""
    led: int = 0
    """Partitions that the killed node led."""
    elected: float = 0.0
    """From kill -9 until the other nodes lead all groups, as they say themselves."""
    created: float = 0.0
    """From the request until all are led."""
    again: int = 0
    """Elections beyond a group's first while they were created."""
    controller: int = 0
    """Of these the controller's."""
    processor: float = 0.0
    """Of all nodes, while they were created."""
    idle: float = 0.0
    """Cores that all nodes took while nothing was asked of them."""
    killed: float = 0.0
    """From kill -9 of the controller's leader until all are led."""
    started: float = 0.0
    """From the start of that node until it is healthy, and all are led."""
    started_elections: int = 0
    longest: float = 0.0
    """That a part of a node held its loop in one go."""
    problems: list[str] = field(default_factory=list)


class Run:
    """One cluster in a folder."""

    def __init__(self, folder: Path, report: Report, idle_seconds: float) -> None:
        self._cluster = LocalCluster(folder)
        self._report = report
        self._idle_seconds = idle_seconds

    def go(self) -> None:
        """All of it; what went wrong is in the report, and nothing runs any more."""
        try:
            # The first checkpoint by itself comes after a minute, and would be in one figure or another.
            settings = ["topics.auto_create=false", "checkpoints.interval=0"]
            self._cluster.up(self._report.nodes, choose_ports=free_ports, settings=settings)
            try:
                self._create()
                self._rest()
                self._lose()
            finally:
                self._cluster.down()
        except (CommandFailed, KafkaException, Unreachable, TimeoutError) as error:
            self._report.problems.append(f"{error!r}")

    def _create(self) -> None:
        report, before, admin = self._report, self._told(), self._kafka()
        began = time.monotonic()
        create_topic(admin, TOPIC, report.partitions, min(_REPLICAS, report.nodes))
        report.created = seconds_until_led(admin, TOPIC, report.partitions, began)
        after = self._told().since(before)
        unwanted = after.unwanted()
        report.again, report.controller = sum(unwanted.values()), unwanted.get("controller", 0)
        report.processor = after.processor_seconds
        report.longest = max(after.held.values(), default=0.0)
        if report.controller:
            report.problems.append(f"{report.controller} elections of the controller")

    def _rest(self) -> None:
        time.sleep(_SETTLE_SECONDS)
        report, nodes = self._report, self._cluster.description.nodes.values()
        asked = [full_metadata(node.ports.kafka) for node in nodes for _ in range(_ASKED)]
        report.metadata_bytes = max(size for size, _ in asked)
        report.metadata_seconds = percentile([seconds for _, seconds in asked], 0.5)
        report.state_bytes, report.state_seconds = controller_state(report.partitions, report.nodes)
        before, sent, began = self._told(), self._sum(FRAMES), time.monotonic()
        time.sleep(self._idle_seconds)
        seconds = time.monotonic() - began
        report.frames = (self._sum(FRAMES) - sent) / seconds
        report.idle = self._told().since(before).processor_seconds / (time.monotonic() - began)
        report.memory = round(max(measured(node.admin, MEMORY) for node in nodes))

    def _lose(self) -> None:
        report, admins = self._report, self._admins()
        lost = self._controller()
        survivors = [address for node, address in admins.items() if node != lost]
        nodes = self._cluster.description.nodes
        admin = KafkaAdmin(client_config(",".join(nodes[node].kafka for node in admins if node != lost)))
        rows = AdminClient(survivors[0]).request("GET", "/api/nodes", timeout=LED_SECONDS).body["nodes"]
        report.led = next(row["leads"] for row in rows if row["node"] == lost)
        groups = led_by(admins.values())
        began = time.monotonic()
        self._cluster.kill(lost)
        report.elected = seconds_until_elected(survivors, groups, began)
        report.killed = seconds_until_led(admin, TOPIC, report.partitions, began, without=lost)
        time.sleep(_SETTLE_SECONDS)
        before, began = told(survivors), time.monotonic()
        self._cluster.start(lost, timeout=LED_SECONDS)
        report.started = seconds_until_led(admin, TOPIC, report.partitions, began)
        time.sleep(_SETTLE_SECONDS)
        report.started_elections = sum(told(survivors).since(before).elections.values())
        if report.started_elections:
            report.problems.append(f"{report.started_elections} elections because a node came back")

    def _sum(self, metric: str) -> float:
        return sum(measured(address, metric) for address in self._admins().values())

    def _controller(self) -> int:
        for node, address in self._admins().items():
            page = str(AdminClient(address).request("GET", "/metrics", timeout=LED_SECONDS).body)
            if "\nstrandline_controller_leader 1" in page:
                return node
        raise TimeoutError("the controller has no leader")

    def _admins(self) -> dict[int, str]:
        return {number: node.admin for number, node in self._cluster.description.nodes.items()}

    def _told(self) -> Told:
        return told(self._admins().values())

    def _kafka(self) -> KafkaAdmin:
        return KafkaAdmin(client_config(self._cluster.description.bootstrap))


def measured(address: str, metric: str) -> float:
    """One value of a node's metrics page."""
    page = str(AdminClient(address).request("GET", "/metrics", timeout=LED_SECONDS).body)
    return float(page.partition(f"\n{metric} ")[2].partition("\n")[0])


def led_by(addresses: Iterable[str]) -> int:
    """The groups that these nodes lead, the controller's and the coordinators' included."""
    answers = [
        AdminClient(each).request("GET", "/api/leaderships", timeout=LED_SECONDS) for each in addresses
    ]
    return sum(answer.body["leads"] for answer in answers)


def seconds_until_elected(survivors: Sequence[str], groups: int, began: float) -> float:
    """Wait until these nodes lead so many groups; a node that is gone leads none."""
    while (led := led_by(survivors)) < groups:
        if time.monotonic() - began > LED_SECONDS:
            raise TimeoutError(f"{groups - led} of {groups} groups are not led after {LED_SECONDS:g} s")
        time.sleep(_ELECTION_POLL_SECONDS)
    return time.monotonic() - began


def full_metadata(port: int) -> tuple[int, float]:
    """Bytes and seconds of one answer of Metadata, version 12, about all topics."""
    body = b"\x00\x00\x00\x00"  # all topics, none is made, no operations, no tagged fields
    request = struct.pack(">hhih", 3, 12, 1, 5) + b"bench" + b"\x00" + body
    with socket.create_connection(("127.0.0.1", port), timeout=LED_SECONDS) as connection:
        began = time.monotonic()
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as answer:
            (size,) = struct.unpack(">i", answer.read(4))
            got = len(answer.read(size))
    if got != size:
        raise TimeoutError(f"the answer of Metadata broke off after {got} of {size} bytes")
    return size, time.monotonic() - began


def controller_state(partitions: int, nodes: int) -> tuple[int, float]:
    """Bytes of the snapshot of a controller with these, and seconds to make it; no cluster is asked."""
    machine = Controller(lambda *_: None)
    commands: list[Command] = [Bootstrap("bench", "first", FEATURE_LEVEL)]
    for node in range(1, nodes + 1):
        address = ("10.0.0.1", 9092, "10.0.0.1", 7101, 9644)
        commands.append(RegisterNode(node, node, 0, *address, 1, FEATURE_LEVEL, 1, node))
    replicas = min(_REPLICAS, nodes)
    for number, first in enumerate(range(0, partitions, MOST), 1):
        count = min(MOST, partitions - first)
        identity, made_at = number.to_bytes(16, "big"), len(commands)
        commands.append(CreateTopic(identity, f"{TOPIC}-{number}", count, replicas, None, (), made_at))
    for index, command in enumerate(commands, 1):
        result = machine.apply(index, 1, encode(command))
        assert not isinstance(result, Refused), result
    began = time.process_time()
    return len(machine.snapshot()), time.process_time() - began


def lines(report: Report) -> list[list[str]]:
    return [
        [
            f"{report.partitions:,} partitions, {report.nodes} nodes",
            "created in one request, all led after",
            shown(report.created, "s"),
        ],
        ["", "processor, all nodes", shown(report.processor, "s")],
        ["", "elections beyond the first; the controller's", f"{report.again}; {report.controller}"],
        ["", "longest hold of a loop by one part", shown(report.longest, "s")],
        ["idle", "processor of one core, all nodes", shown(report.idle, "core")],
        ["", "frames between nodes in a second", f"{report.frames:,.0f}"],
        ["", "memory of the largest node", f"{report.memory / 1e6:,.0f} MB"],
        ["the controller's state", "snapshot", f"{report.state_bytes:,} bytes"],
        ["", "processor to make it", shown(report.state_seconds, "s")],
        ["an answer about all partitions", "Metadata", f"{report.metadata_bytes:,} bytes"],
        ["", "after", shown(report.metadata_seconds, "s")],
        [
            "the controller's leader",
            f"killed, leads {report.led:,}: all elected after",
            shown(report.elected, "s"),
        ],
        ["", "a client sees all led by others after", shown(report.killed, "s")],
        ["", "started: healthy and all led after", shown(report.started, "s")],
        ["", "elections by that", f"{report.started_elections}"],
    ]


def _late(report: Report) -> Iterable[str]:
    for what in ("created", "killed", "started"):
        seconds = getattr(report, what)
        if seconds > WANTED_SECONDS:
            yield f"{what}: {seconds:.1f} s, wanted are {WANTED_SECONDS:g}"
    if report.metadata_seconds > METADATA_SECONDS:
        yield f"Metadata: {report.metadata_seconds:.1f} s, wanted are {METADATA_SECONDS:g}"
    if report.elected > ELECTED_SECONDS:
        yield f"elected: {report.elected:.1f} s, wanted are {ELECTED_SECONDS:g}"


def main(arguments: Sequence[str]) -> int:
    """Exits 1 when something went wrong; times above those wanted are only remarked."""
    parser = argparse.ArgumentParser(prog="scripts/bench partitions", description=__doc__.partition("\n")[0])
    parser.add_argument("--partitions", type=int, default=10_000, help="default: %(default)s, the most")
    parser.add_argument("--nodes", type=int, default=3, help="default: %(default)s, at most 7")
    parser.add_argument("--idle", type=float, default=60.0, metavar="SECONDS", help="default: %(default)g")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument(
        "--folder", type=existing_folder, default="/var/tmp", help="on a real disk (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    if not 1 <= options.partitions <= 10_000 or options.idle <= 0 or not 2 <= options.nodes <= 7:
        parser.error("--partitions is 1 to 10,000, --nodes 2 to 7, --idle above 0")
    report, load = Report(options.partitions, options.nodes), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="strandline-bench-", dir=options.folder) as scratch:
        Run(Path(scratch) / "cluster", report, options.idle).go()
    if options.json:
        print(json.dumps({"ok": not report.problems, "load_average": load, **asdict(report)}))
    else:
        print(table(["", "", "Strandline"], lines(report)))
        print(
            "\n".join(
                [f"- {late}" for late in _late(report)] + [f"- FAILED: {one}" for one in report.problems]
            )
        )
        print(f"bench partitions {'failed' if report.problems else 'ok'}, load average before {load:.1f}")
    return 1 if report.problems else 0
