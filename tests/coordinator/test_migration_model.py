"""Random lives of members of both protocols in one group: no partition has two that may commit for it.

Clients here do what correct clients do: an eager one gives all up before it joins, a cooperative one what it
is not to have once it hears of it. One that vanishes goes on as a zombie, with all that it had.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any
from unittest.mock import patch

import pytest

from strandline.node.coordinator.groups import consumer_member
from strandline.node.coordinator.groups.consumer_groups import HeartbeatAnswer
from strandline.node.coordinator.groups.consumer_member import LEAVING, Partition
from strandline.statemachine.groups import conversions
from strandline.statemachine.groups.classic_group import ClassicGroup
from strandline.statemachine.groups.consumer_group import ConsumerGroup
from strandline.statemachine.kafka_errors import KafkaError
from tests.coordinator.consumers import Consumer
from tests.coordinator.mixed import ClassicConsumer, MixedHouse

SEEDS = 60
STEPS = 200
MOST = 5
Client = ClassicConsumer | Consumer


class Walk:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.house = MixedHouse(min_session_seconds=1.0, consumer_session_seconds=8.0)
        self.clients: list[Client] = []
        self.zombies: list[Client] = []
        self.made = 0
        self.step = 0
        self.asleep: dict[Client, int] = {}
        """Until which step a client says nothing."""
        self.kinds: list[str] = []
        """Of the group, as it changed."""

    def run(self) -> None:
        for _ in range(STEPS):
            kind = self.rng.choices(
                ("speak", "come", "go", "vanish", "time", "leader", "lost", "late"), (30, 4, 2, 1, 4, 1, 2, 1)
            )[0]
            self.step += 1
            getattr(self, kind)()
            self.check()
        self.settle()

    # What happens.

    def come(self) -> None:
        if len(self.clients) >= MOST:
            return
        self.made += 1
        name = f"m{self.made}"
        if self.rng.random() < 0.5:
            self.clients.append(self.house.classic(name, cooperative=self.rng.random() < 0.6, session=8.0))
        else:
            self.clients.append(Consumer(name, ("events",)))

    def speak(self) -> None:
        for client in self.rng.sample(self.clients, len(self.clients)):
            if self.rng.random() < 0.05:
                self.asleep[client] = self.step + self.rng.randint(2, 12)
            if self.asleep.get(client, 0) < self.step:
                self.say(client)

    def say(self, client: Client) -> None:
        if isinstance(client, ClassicConsumer):
            client.poll()
            return
        if self.rng.random() < 0.7:
            client.obey()
        task = self.house.say(client.word())
        if not task.done():
            return
        told = task.result()
        client.hear(told.reply if isinstance(told, HeartbeatAnswer) else told)

    def go(self) -> None:
        if self.clients:
            client = self.clients.pop(self.rng.randrange(len(self.clients)))
            if isinstance(client, ClassicConsumer):
                client.leave()
            else:
                self.house.say(client.word(LEAVING))

    def vanish(self) -> None:
        if self.clients:
            self.zombies.append(self.clients.pop(self.rng.randrange(len(self.clients))))

    def lost(self) -> None:
        """A classic client's connection breaks: it joins again, not knowing what became of the last time."""
        waiting = [one for one in self.clients if isinstance(one, ClassicConsumer)]
        for client in waiting[:1]:
            for task in (client._joining, client._syncing):
                if task is not None:
                    task.cancel()
            client._joining = client._syncing = None
            client.rejoins = True
            self.house.turn()

    def late(self) -> None:
        """A JoinGroup arrives that was long on its way; its sender has gone on without it."""
        asks = [one.last_ask for one in self.clients if isinstance(one, ClassicConsumer) and one.last_ask]
        if asks:
            self.house.ask(self.house.coordinator.join("g", self.rng.choice(asks)))

    def time(self) -> None:
        self.house.advance(self.rng.choice((0.1, 0.5, 3.0)))

    def leader(self) -> None:
        self.house.new_leader()

    # What must hold.

    def check(self) -> None:
        if "g" not in self.house.replica.machine.groups:
            return
        kind = self.house.protocol
        if self.kinds[-1:] != [kind]:
            self.kinds.append(kind)
        owners: dict[Partition, list[str]] = defaultdict(list)
        for client in (*self.clients, *self.zombies):
            if client.owned and self.house.refusal(client, transactional=True) is None:
                for partition in client.owned:
                    owners[partition].append(
                        client.name if isinstance(client, ClassicConsumer) else client.member_id
                    )
        twice = {partition[1]: who for partition, who in owners.items() if len(who) > 1}
        assert not twice, (kind, twice)

    def settle(self) -> None:
        """What stays has all partitions, each once."""
        for _ in range(120):
            for client in self.clients:
                self.say(client)
            self.house.advance(0.25)
            self.check()
        if self.clients:
            owned = [partition for client in self.clients for partition in client.owned]
            assert sorted(owned) == sorted(self.house.cluster.parts("events"))
            kinds = {type(client) for client in self.clients}
            assert self.house.protocol == ("classic" if kinds == {ClassicConsumer} else "consumer")
        self.house.close()


def _forgets_what_they_had(classic: ClassicGroup) -> dict[str, Any]:
    """As Kafka: what the last generation did not assign is free at once."""
    return dict.fromkeys(classic.members, ())


def _forgets_what_they_were_given(classic: ClassicGroup) -> dict[str, Any]:
    return dict.fromkeys(classic.members, ())


def _takes_any_generation(self: ConsumerGroup, member_id: str, epoch: int) -> KafkaError | None:
    return None if member_id in self.members else KafkaError.UNKNOWN_MEMBER_ID


def test_no_partition_has_two_that_may_commit_for_it() -> None:
    walks = [Walk(seed) for seed in range(SEEDS)]
    for walk in walks:
        walk.run()
    assert sum(len(walk.kinds) - 1 for walk in walks) > SEEDS, "it went to and fro"


@pytest.mark.parametrize(
    ("where", "name", "hole"),
    [
        (conversions, "_claims", _forgets_what_they_had),
        (conversions, "_given", _forgets_what_they_were_given),
        (ConsumerGroup, "_refuse_epoch", _takes_any_generation),
        (consumer_member, "_owns", lambda *_: False),
    ],
)
def test_the_walk_finds(where: Any, name: str, hole: Any) -> None:
    with patch.object(where, name, hole), pytest.raises(AssertionError):
        _walk_all()


def _walk_all() -> None:
    for seed in range(SEEDS):
        Walk(seed).run()
