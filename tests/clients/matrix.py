"""The clients of the matrix: how each is run, and what it has; what one lacks is written here alone."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.clients import programs
from tests.clients.driver import Driver, Lost, Refused


class Has(enum.Enum):
    """What not every client has. The docstring of a check says what it takes."""

    STATIC = "static members (KIP-345)"
    INSTANCE_FENCE = "static members that end when another one takes their place (KIP-345)"
    COOPERATIVE = "cooperative rebalancing (KIP-429)"
    CONSUMER_PROTOCOL = "group.protocol=consumer (KIP-848)"
    GENERATION_FENCE = "the group's generation in transactional offset commits (KIP-447)"
    DELETE_GROUP = "deleting groups"
    RESET_OFFSETS = "setting a group's offsets from outside"


class Client(NamedTuple):
    """One client of the matrix."""

    name: str
    command: Callable[[], list[str]]
    """How its driver is run, but for the address. Raises programs.Missing."""
    has: frozenset[Has]


def _python(module: str) -> Callable[[], list[str]]:
    return lambda: [sys.executable, "-P", "-m", f"tests.clients.drivers.{module}"]


CLIENTS: Final = {
    client.name: client
    for client in (
        Client("librdkafka", _python("librdkafka"), frozenset(Has)),
        Client("aiokafka", _python("aio"), frozenset({Has.STATIC})),
        Client("kafka-python", _python("kafka_python"), frozenset(Has) - {Has.CONSUMER_PROTOCOL}),
        Client("java", programs.JAVA.command, frozenset(Has)),
        Client("franz-go", programs.FRANZ_GO.command, frozenset(Has)),
        Client("kafkajs", programs.KAFKAJS.command, frozenset({Has.DELETE_GROUP, Has.RESET_OFFSETS})),
    )
}


class Drivers:
    """Processes of drivers: kept when a check is done with them, since a Java takes a second to start."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self._bootstrap = bootstrap
        self._folder = folder
        self._idle: dict[str, list[Driver]] = {}
        self._started = 0

    def take(self, name: str) -> Driver:
        """A driver that has neither consumer nor producer. Raises programs.Missing."""
        if idle := self._idle.get(name):
            return idle.pop()
        self._started += 1
        log = self._folder / f"{name}-{self._started}.log"
        return Driver(name, CLIENTS[name].command(), self._bootstrap, log)

    def give_back(self, driver: Driver) -> None:
        """What it had open is closed; one that cannot do so is killed."""
        if driver.dead:
            return
        try:
            driver.ask("close")
        except (Lost, Refused, AssertionError):
            driver.kill()
        else:
            self._idle.setdefault(driver.name, []).append(driver)

    def end(self) -> None:
        for driver in self._all():
            driver.kill()

    def _all(self) -> Iterator[Driver]:
        for idle in self._idle.values():
            yield from idle
