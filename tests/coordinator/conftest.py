"""Groups' coordinators that end with the test that has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.coordinator.classic_house import House


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
