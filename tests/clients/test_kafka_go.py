"""segmentio/kafka-go 0.4.47, which joins with JoinGroup 1 alone: members come, share, commit and go."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.driver import Driver, poll_all
from tests.clients.matrix import Drivers
from tests.clients.programs import KAFKA_GO, Missing

READ_SECONDS = 40.0
PARTITIONS = 4


@pytest.fixture
def members(bootstrap: str, tmp_path: Path) -> Iterator[list[Driver]]:
    """Two of them."""
    try:
        command = KAFKA_GO.command()
    except Missing as error:
        pytest.skip(str(error))
    started = [
        Driver("kafka-go", command, bootstrap, tmp_path / f"kafka-go-{number}.log") for number in (1, 2)
    ]
    yield started
    for one in started:
        if not one.dead:
            one.kill()


def fill(driver: Driver, topic: str, what: str, count: int) -> list[str]:
    values = [f"{what}-{number}" for number in range(count)]
    driver.ask("produce", topic=topic, records=[(n % PARTITIONS, value) for n, value in enumerate(values)])
    return sorted(values)


def read(members: list[Driver], count: int) -> list[list[str]]:
    """Poll until so many different values have come together, and a moment longer."""
    values: list[list[str]] = [[] for _ in members]
    deadline = time.monotonic() + READ_SECONDS
    settled = 0
    while time.monotonic() < deadline and settled < 3:
        for had, one in zip(values, poll_all(members), strict=True):
            had += one.values
        settled += len(set().union(*values)) >= count
    return values


def test_a_group_reader_joins_reads_commits_and_shares(members: list[Driver], drivers: Drivers) -> None:
    topic, group = f"kafka-go-{uuid.uuid4().hex[:8]}", f"kafka-go-{uuid.uuid4().hex[:8]}"
    one, two = members
    other = drivers.take("librdkafka")
    other.ask("create_topic", topic=topic, partitions=PARTITIONS)
    first = fill(one, topic, "alone", 40)
    one.ask("subscribe", topics=[topic], group=group, settings={})
    assert sorted(read([one], 40)[0]) == first
    one.ask("commit")
    assert sum(offset for _, _, offset in other.ask("group_offsets", group=group)) == 40
    assert other.ask("describe_group", group=group) == {"state": "Stable", "members": 1}

    two.ask("subscribe", topics=[topic], group=group, settings={})
    deadline = time.monotonic() + READ_SECONDS
    while other.ask("describe_group", group=group) != {"state": "Stable", "members": 2}:
        assert time.monotonic() < deadline, "the second member does not get in"
        assert poll_all([one, two], 0.2)[0].values == []
    both = fill(one, topic, "both", 40)
    parts = read([one, two], 40)
    assert sorted(parts[0] + parts[1]) == both
    assert [len(part) for part in parts] == [20, 20]
    one.ask("commit")
    two.ask("commit")

    one.kill()
    left = fill(two, topic, "left", 40)
    # What it had read and not committed when the group changed, it reads again.
    assert sorted(set(read([two], 40)[0])) == left
    two.ask("commit")
    assert sum(offset for _, _, offset in other.ask("group_offsets", group=group)) == 120
    two.ask("close")
    drivers.give_back(other)
