"""One run: a node is away while the others compact, comes back, and leads.

Everything goes through the Kafka protocol, but for stopping and starting the node.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from tests.programs.divergence.cases import CASES, Case, Served
from tests.programs.divergence.reading import committed_look, look, read
from tests.programs.divergence.systems import NO_CLEANING, TOPIC_SETTINGS, System

AWAY: Final = 1
"""The node that is stopped; the first of each partition's replicas, so the preferred leader."""
REPLICAS: Final = [AWAY, 2, 3]
SETTLE_SECONDS: Final = 5.0
"""Time in which what was written before the absence is taken into each replica's log."""
HELD_SECONDS: Final = 25.0
"""A record that was cleaned past is held back, and not only late, when it is there so long afterwards:
retention is one second, a round of cleaning comes each second, and what may go is told every five."""
WAIT_SECONDS: Final = 60.0
_FILL_SECONDS: Final = 0.15
_LOOK_EVERY: Final = 4


@dataclass
class Found:
    """What became of one case; times are seconds since the first record that was written to be cleaned."""

    title: str
    written: int = 0
    """Filler records written while the node was away."""
    cleaned: int = 0
    """Of these, those that were gone before it came back."""
    gone_away: dict[str, float] = field(default_factory=dict)
    """Watched records that went while the node was away."""
    held: list[str] = field(default_factory=list)
    """Watched records that were still there."""
    gone_after: dict[str, float] = field(default_factory=dict)
    """Of these, those that went once the node was back; times since its return."""
    wrong: list[str] = field(default_factory=list)
    """What the node served wrongly, as soon as it led."""
    wrong_later: list[str] = field(default_factory=list)
    """What it served wrongly after what was held had gone."""

    @property
    def compacted(self) -> bool:
        """Whether anything was removed at all."""
        return self.cleaned > 0

    @property
    def diverged(self) -> bool:
        return bool(self.wrong or self.wrong_later)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def walk(
    system: System, wait_seconds: float = WAIT_SECONDS, held_seconds: float = HELD_SECONDS
) -> list[Found]:
    """All cases in one absence. Raises TimeoutError and KafkaException when the cluster does not serve."""
    admin = AdminClient({"bootstrap.servers": system.bootstrap, "log_level": 0})
    _create(admin)
    cases = [kind(system.bootstrap) for kind in CASES]
    found = [Found(case.title) for case in cases]
    lead(admin, cases)
    for case in cases:
        case.before()
        case.fill()
    _until(lambda: _in_sync(admin, cases), "all replicas are in sync")
    _fill(cases, SETTLE_SECONDS)
    say(f"{system.name}: node {AWAY} stops")
    system.stop(AWAY)
    for case in cases:
        case.away()
    _while_away(cases, found, wait_seconds, held_seconds)
    say(f"{system.name}: node {AWAY} starts")
    system.start(AWAY)
    _until(lambda: _in_sync(admin, cases), f"node {AWAY} is in sync")
    # What the node has brought back is looked at before its own cleaning gets to it.
    _configure(admin, NO_CLEANING)
    for case in cases:
        case.back()
    lead(admin, cases)
    for case, one in zip(cases, found, strict=True):
        one.wrong = _judge(case)
    _configure(admin, TOPIC_SETTINGS)
    _afterwards(cases, found, wait_seconds)
    return found


def lead(admin: AdminClient, cases: Sequence[Case]) -> None:
    """Have the preferred leader elected, and wait until it leads all of them."""
    places = [TopicPartition(case.name, 0) for case in cases]

    def leads() -> bool:
        if all(_metadata(admin, case).leader == AWAY for case in cases):
            return True
        try:
            # It may not be there yet; the answer for each partition is of no interest, its leader is.
            admin.elect_leaders(ElectionType.PREFERRED, places).result(60)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
                raise
        return False

    _until(leads, f"node {AWAY} leads")


def _create(admin: AdminClient) -> None:
    wanted = [
        NewTopic(kind.name, 1, replica_assignment=[REPLICAS], config=dict(TOPIC_SETTINGS)) for kind in CASES
    ]

    def made() -> bool:
        try:
            for answer in admin.create_topics(wanted).values():
                answer.result(60)
        except KafkaException as error:
            # Brokers that have just started have not registered yet.
            return bool(error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS)
        return True

    _until(made, "the topics are made")


def _configure(admin: AdminClient, settings: Mapping[str, str]) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resources = [
        ConfigResource(ConfigResource.Type.TOPIC, kind.name, incremental_configs=entries) for kind in CASES
    ]
    for answer in admin.incremental_alter_configs(resources).values():
        answer.result(60)


def _while_away(
    cases: Sequence[Case], found: Sequence[Found], wait_seconds: float, held_seconds: float
) -> None:
    """Keep writing until each watched record is gone, or was cleaned past and is held."""
    began = time.monotonic()
    first = [len(case.fillers) for case in cases]
    past: dict[str, float] = {}
    """When it was first seen that a record above the watched ones had been removed."""
    number = 0
    while time.monotonic() < began + wait_seconds:
        for case in cases:
            case.fill()
        number += 1
        if number % _LOOK_EVERY == 0:
            now = time.monotonic()
            for case, one, start in zip(cases, found, first, strict=True):
                there = look(case.bootstrap, case.name).offsets
                written = case.fillers[start:]
                one.written, one.cleaned = len(written), len(set(written) - there)
                for what, offset in case.watched.items():
                    if offset not in there:
                        one.gone_away.setdefault(what, now - began)
                if one.cleaned:
                    past.setdefault(case.name, now)
            if all(
                len(one.gone_away) == len(case.watched) or now > past.get(case.name, now) + held_seconds
                for case, one in zip(cases, found, strict=True)
            ):
                break
        time.sleep(_FILL_SECONDS)
    for case, one in zip(cases, found, strict=True):
        one.held = [what for what in case.watched if what not in one.gone_away]


def _afterwards(cases: Sequence[Case], found: Sequence[Found], wait_seconds: float) -> None:
    """What was held may go now; keep writing until it is gone, and look at the tables once more."""
    began = time.monotonic()
    while any(len(one.gone_after) < len(one.held) for one in found if one.compacted):
        if time.monotonic() > began + wait_seconds:
            break
        for case, one in zip(cases, found, strict=True):
            case.fill()
            there = look(case.bootstrap, case.name).offsets
            for what in one.held:
                if case.watched[what] not in there:
                    one.gone_after.setdefault(what, time.monotonic() - began)
        time.sleep(_FILL_SECONDS)
    for case, one in zip(cases, found, strict=True):
        one.wrong_later = _judge(case)


def _judge(case: Case) -> list[str]:
    """What is served wrongly now. A last stable offset may lag for a moment, so what is wrong is looked at
    again for some seconds before it counts."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        served = Served(
            read(case.bootstrap, case.name, "read_committed"),
            read(case.bootstrap, case.name, "read_uncommitted"),
            committed_look(case.bootstrap, case.name),
        )
        wrong = case.judge(served)
        if not wrong or time.monotonic() > deadline:
            return wrong
        time.sleep(0.5)


def _fill(cases: Sequence[Case], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for case in cases:
            case.fill()
        time.sleep(_FILL_SECONDS)


def _metadata(admin: AdminClient, case: Case) -> Any:
    return admin.list_topics(case.name, timeout=10).topics[case.name].partitions[0]


def _in_sync(admin: AdminClient, cases: Sequence[Case]) -> bool:
    return all(sorted(_metadata(admin, case).isrs) == sorted(REPLICAS) for case in cases)


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        try:
            if holds():
                return
        except (KafkaException, KeyError, IndexError):
            pass  # it has no leader just now, or its metadata is not everywhere yet
        time.sleep(0.2)
    raise TimeoutError(f"not within {WAIT_SECONDS:.0f} s: {what}")
