"""What a topology's program is to the nodes: asked of all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from confluent_kafka.admin import (
    AdminClient as KafkaAdmin,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from strandline.cluster.admin_client import AdminClient, first_answer
from strandline.cluster.failure import CommandFailed
from strandline.cluster.kafka_client import client_config
from strandline.cluster.local_files import Description
from strandline.snapshot.views.sql.programs import program_of
from strandline.statemachine.views.identity import digest
from strandline.statemachine.views.plan import Source
from tests.programs.views_topologies.clients import PARTITIONS

WAIT_SECONDS: Final = 90.0
LOOK_SECONDS: Final = 0.05
_PAGE: Final = 1000


class Nodes:
    """The nodes of a cluster, about one program. Calls raise CommandFailed, Unreachable, KafkaException."""

    def __init__(self, described: Description, program: str) -> None:
        self._program = program
        self._addresses = [node.admin for node in described.nodes.values()]
        self._kafka = [KafkaAdmin(client_config(node.kafka)) for node in described.nodes.values()]

    def create(self, topics: Sequence[str], config: dict[str, str]) -> None:
        """Create topics."""
        made = self._kafka[0].create_topics([NewTopic(name, PARTITIONS, 3, config=config) for name in topics])
        for one in made.values():
            one.result(WAIT_SECONDS)

    def apply(self, text: str) -> int:
        """Apply a program; the attempt."""
        plan = program_of(text)
        body = {
            "program": self._program,
            "text": text,
            "inputs": sorted({one.topic for one in plan.operators().values() if isinstance(one, Source)}),
            "views": [
                {"view": one.name, "topic": one.topic, "partitions": PARTITIONS, "sink": digest(one.sink)}
                for one in plan.views
                if one.sink is not None
            ],
        }
        return int(self._ask("POST", "/api/views", body)["attempt"])

    def drop(self) -> None:
        """Drop the program."""
        self._ask("POST", "/api/views/drop", {"program": self._program})

    def told(self) -> set[str]:
        """The topics that clients are told of, by any node."""
        return {name for admin in self._kafka for name in admin.list_topics(timeout=30).topics}

    def topics(self) -> list[str]:
        """All topics, also the hidden ones."""
        names: list[str] = []
        while True:
            after = f"&after={names[-1]}" if names else ""
            page = [one["name"] for one in self._ask("GET", f"/api/topics?limit={_PAGE}{after}")["topics"]]
            names += page
            if len(page) < _PAGE:
                return names

    def holds(self, topics: Sequence[str]) -> set[str]:
        """Readers that hold records of these topics."""
        found: set[str] = set()
        for address in self._addresses:
            for topic in topics:
                path = f"/api/compaction/partitions?topic={topic}"
                for one in AdminClient(address).request("GET", path).body["partitions"]:
                    found |= {hold["reader"] for hold in one["holds"]}
        return found

    def programs(self) -> list[dict[str, Any]]:
        """The program, as each node has it."""
        answers = [AdminClient(address).request("GET", "/api/views").body for address in self._addresses]
        found = [one for answer in answers for one in answer["programs"]]
        return [one for one in found if one["name"] == self._program]

    def running(self) -> list[dict[str, Any]]:
        """The processes of the program."""
        answers = [AdminClient(address).request("GET", "/api/views").body for address in self._addresses]
        found = [one for answer in answers for one in answer["running"]]
        return [one for one in found if one["program"] == self._program]

    def is_live(self, attempt: int) -> bool:
        """Whether all nodes know that an attempt is live; raises CommandFailed where it ended otherwise."""
        programs = self.programs()
        for program in programs:
            if program["ended"] or program["stopped"]:
                raise CommandFailed(f"{program['ended']} {program['stopped']}", "see the nodes' logs")
        live = [one for one in programs if one["live"] and one["live"]["attempt"] == attempt]
        return len(live) == len(self._addresses)

    def keep_all(self, topics: Sequence[str]) -> None:
        """Have topics keep each record: transactions are told apart by their offsets."""
        lag = ConfigEntry("min.compaction.lag.ms", "3600000", incremental_operation=AlterConfigOpType.SET)
        wanted = [ConfigResource(ResourceType.TOPIC, one, incremental_configs=[lag]) for one in topics]
        for done in self._kafka[0].incremental_alter_configs(wanted).values():
            done.result(WAIT_SECONDS)

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        return first_answer(self._addresses, method, path, body, timeout=40.0)


def until(what: str, done: Callable[[], bool]) -> None:
    """Wait until something is so; raises TimeoutError."""
    end = time.monotonic() + WAIT_SECONDS
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {WAIT_SECONDS:g} s")
        time.sleep(LOOK_SECONDS)
