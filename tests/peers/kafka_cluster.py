"""Apache Kafka itself on this machine: three KRaft nodes, each broker and controller, on the loopback.

Nothing is tuned for or against it: heap and collector are those of Kafka's own start script, and the settings
are what a cluster of three needs to keep three copies.
"""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from strandline.cluster.own_process import OwnProcess
from strandline.cluster.ports import LOOPBACK, Ports, free_ports
from tests.peers.kafka_jars import VERSION, NoKafka, jars, java

NODES: Final = (1, 2, 3)
_FORMAT_SECONDS: Final = 60
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 20.0


class KafkaCluster:
    """Brokers in `folder`, three as a rule. It is made and formatted here. Raises NoKafka."""

    name = f"Kafka {VERSION}"
    security: Mapping[str, str] = {}
    """What a client of librdkafka needs besides the address."""

    def __init__(self, folder: Path, settings: Sequence[str] = (), nodes: Sequence[int] = NODES) -> None:
        """`settings`: lines NAME=VALUE of a broker's properties, in place of those here.

        In a value `{kafka}` and `{mesh}` are the ports of the broker.
        """
        self.folder = folder
        self._settings = dict(line.partition("=")[::2] for line in settings)
        self._libs = jars()
        self._java = java()
        self._ports: dict[int, Ports] = free_ports(nodes)
        self._processes: dict[int, OwnProcess] = {}
        self._format()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{LOOPBACK}:{ports.kafka}" for ports in self._ports.values())

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values() if process.alive()]

    def up(self) -> None:
        """Start, and wait until every broker takes connections."""
        for node in self._ports:
            self.start(node)
        deadline = time.monotonic() + _START_SECONDS
        for node in self._ports:
            self._wait_listening(node, deadline)

    def start(self, node: int) -> None:
        """Start one on what it has; returns at once."""
        heap = [
            "-Xms1g",
            "-Xmx1g",
            "-XX:+UseG1GC",
            "-XX:MaxGCPauseMillis=20",
            "-XX:InitiatingHeapOccupancyPercent=35",
        ]
        command = [*self._command("kafka.Kafka", *heap), str(self._config(node))]
        self._processes[node] = OwnProcess.spawn(command, self._log(node), dict(os.environ))

    def stop(self, node: int) -> None:
        """SIGTERM, so that it hands over what it leads; returns when it is gone, by force if need be."""
        process = self._processes[node]
        process.signal(signal.SIGTERM)
        if not process.wait(_STOP_SECONDS):
            self.kill(node)

    def kill(self, node: int) -> None:
        """SIGKILL; returns when it is gone."""
        self._processes[node].signal(signal.SIGKILL)
        self._processes[node].wait(_STOP_SECONDS)

    def down(self) -> None:
        """Stop what runs, by force what does not stop."""
        for process in self._processes.values():
            process.signal(signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS
        for process in self._processes.values():
            if not process.wait(max(0.0, deadline - time.monotonic())):
                process.signal(signal.SIGKILL)
                process.wait(_STOP_SECONDS)

    def _format(self) -> None:
        """What Kafka wants done to its folders before it starts."""
        self.folder.mkdir(parents=True)
        # The shell scripts of Kafka make it the same way; one that began with "-" would read as an option.
        identity = "S" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        tool = [*self._command("kafka.tools.StorageTool"), "format"]
        for node in self._ports:
            self._config(node).write_text(self._properties(node))
            done = subprocess.run(
                [*tool, "-t", identity, "-c", str(self._config(node)), *self._format_options()],
                capture_output=True, text=True, timeout=_FORMAT_SECONDS, check=False,
            )  # fmt: skip
            if done.returncode != 0:
                raise NoKafka(f"Kafka's StorageTool refuses: {(done.stdout + done.stderr).strip()[-300:]}")

    def _format_options(self) -> Sequence[str]:
        """What the folders are to have from the beginning."""
        return ()

    def _wait_listening(self, node: int, deadline: float) -> None:
        while True:
            try:
                socket.create_connection((LOOPBACK, self._ports[node].kafka), timeout=1).close()
                return
            except OSError as error:
                if not self._processes[node].alive() or time.monotonic() > deadline:
                    log = self._log(node).read_text(errors="replace").strip()
                    raise NoKafka(f"Kafka's node {node} does not start: {log[-300:]}") from error
                time.sleep(0.05)

    def _command(self, main: str, *options: str) -> list[str]:
        log_level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return [self._java, *options, log_level, "-cp", f"{self._libs}/*", main]

    def _config(self, node: int) -> Path:
        return self.folder / f"node-{node}.properties"

    def _log(self, node: int) -> Path:
        return self.folder / f"node-{node}.log"

    def _properties(self, node: int) -> str:
        ports = self._ports
        voters = ",".join(f"{each}@{LOOPBACK}:{ports[each].mesh}" for each in ports)
        here = f"PLAINTEXT://{LOOPBACK}:{ports[node].kafka}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": node,
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{here},CONTROLLER://{LOOPBACK}:{ports[node].mesh}",
            "advertised.listeners": here,
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": self.folder / f"data-{node}",
            "default.replication.factor": len(ports),
            "min.insync.replicas": 2,
            "offsets.topic.replication.factor": len(ports),
            "offsets.topic.num.partitions": 5,
            "transaction.state.log.num.partitions": 5,
            "group.initial.rebalance.delay.ms": 0,
            **{
                name: value.replace("{kafka}", str(ports[node].kafka)).replace(
                    "{mesh}", str(ports[node].mesh)
                )
                for name, value in self._settings.items()
            },
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())
