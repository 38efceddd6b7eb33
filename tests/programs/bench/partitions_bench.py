"""Thousands of partitions on three nodes: created at once, idle, a node killed, a node started again.

`scripts/bench partitions --partitions 10000`: a topic with three replicas, created in one request. The client
asks for Metadata until all partitions are led, on the processors of the nodes. The node that is killed leads
the controller. An election that neither a creation nor the kill asked for is a problem.
"""

from __future__ import annotations

import argparse
import json
import os
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
from tests.programs.bench.report import shown, table
from tests.programs.folder_option import existing_folder
from tests.programs.mix.leading import LED_SECONDS, create_topic, seconds_until_led
from tests.programs.mix.watch import Told, told

TOPIC: Final = "many"
WANTED_SECONDS: Final = 10.0
"""Until all partitions are led: after they were created, after a kill, and after a start."""
_NODES: Final = 3
_SETTLE_SECONDS: Final = 10.0
"""From the last election until a topic's groups are quiet."""


@dataclass
class Report:
    """Filled in as the run goes. Times in seconds."""

    partitions: int
    created: float = 0.0
    """From the request until all are led."""
    again: int = 0
    """Elections beyond a group's first while they were created."""
    controller: int = 0
    """Of these the controller's."""
    processor: float = 0.0
    """Of three nodes, while they were created."""
    idle: float = 0.0
    """Cores that three nodes took while nothing was asked of them."""
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
            self._cluster.up(_NODES, choose_ports=free_ports, settings=["topics.auto_create=false"])
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
        create_topic(admin, TOPIC, report.partitions, _NODES)
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
        before, began = self._told(), time.monotonic()
        time.sleep(self._idle_seconds)
        after = self._told().since(before)
        self._report.idle = after.processor_seconds / (time.monotonic() - began)

    def _lose(self) -> None:
        report, admins = self._report, self._admins()
        lost = self._controller()
        survivors = [address for node, address in admins.items() if node != lost]
        nodes = self._cluster.description.nodes
        admin = KafkaAdmin(client_config(",".join(nodes[node].kafka for node in admins if node != lost)))
        began = time.monotonic()
        self._cluster.kill(lost)
        report.killed = seconds_until_led(admin, TOPIC, report.partitions, began, without=lost)
        time.sleep(_SETTLE_SECONDS)
        before, began = told(survivors), time.monotonic()
        self._cluster.start(lost, timeout=LED_SECONDS)
        report.started = seconds_until_led(admin, TOPIC, report.partitions, began)
        time.sleep(_SETTLE_SECONDS)
        report.started_elections = sum(told(survivors).since(before).elections.values())
        if report.started_elections:
            report.problems.append(f"{report.started_elections} elections because a node came back")

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


def lines(report: Report) -> list[list[str]]:
    return [
        [
            f"{report.partitions:,} partitions",
            "created in one request, all led after",
            shown(report.created, "s"),
        ],
        ["", "processor, three nodes", shown(report.processor, "s")],
        ["", "elections beyond the first; the controller's", f"{report.again}; {report.controller}"],
        ["", "longest hold of a loop by one part", shown(report.longest, "s")],
        ["idle", "processor of one core, three nodes", shown(report.idle, "core")],
        ["the controller's leader", "killed: all led by the others after", shown(report.killed, "s")],
        ["", "started: healthy and all led after", shown(report.started, "s")],
        ["", "elections by that", f"{report.started_elections}"],
    ]


def _late(report: Report) -> Iterable[str]:
    for what in ("created", "killed", "started"):
        seconds = getattr(report, what)
        if seconds > WANTED_SECONDS:
            yield f"{what}: {seconds:.1f} s, wanted are {WANTED_SECONDS:g}"


def main(arguments: Sequence[str]) -> int:
    """Exits 1 when something went wrong; times above those wanted are only remarked."""
    parser = argparse.ArgumentParser(prog="scripts/bench partitions", description=__doc__.partition("\n")[0])
    parser.add_argument("--partitions", type=int, default=10_000, help="default: %(default)s, the most")
    parser.add_argument("--idle", type=float, default=60.0, metavar="SECONDS", help="default: %(default)g")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument(
        "--folder", type=existing_folder, default="/var/tmp", help="on a real disk (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    if not 1 <= options.partitions <= 10_000 or options.idle <= 0:
        parser.error("--partitions is 1 to 10,000, --idle above 0")
    report, load = Report(options.partitions), os.getloadavg()[0]
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
