"""Groups' coordinators that end with the test that has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.coordinator.classic_house import House
from tests.coordinator.consumer_house import ConsumerHouse


@pytest.fixture
def build() -> Iterator[Callable[..., House]]:
    """Makes houses, configured as a test wants."""
    houses: list[House] = []

    def make(**groups: object) -> House:
        houses.append(House(**groups))
        return houses[-1]

    yield make
    for house in houses:
        house.close()


@pytest.fixture
def house(build: Callable[..., House]) -> House:
    return build()


@pytest.fixture
def made() -> Iterator[Callable[..., ConsumerHouse]]:
    houses: list[ConsumerHouse] = []

    def make(**groups: Any) -> ConsumerHouse:
        houses.append(ConsumerHouse(**groups))
        return houses[-1]

    yield make
    for house in houses:
        house.close()
        assert house.groups.waiting == 0


@pytest.fixture
def home(made: Callable[..., ConsumerHouse]) -> ConsumerHouse:
    return made()
