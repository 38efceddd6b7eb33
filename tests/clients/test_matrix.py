"""Every client at the same checks: groups, commits, transactions, consume-transform-produce, administration.

The clients are drivers (drivers/serve.py), so a check is written once. They run against three nodes of ours;
with CLIENTS_BOOTSTRAP in the environment against whatever cluster listens there, which is how it was made
sure that the checks ask for what Kafka itself does.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.clients.driver import Driver, Place, Polled, Refused, poll_all
from tests.clients.matrix import CLIENTS, Drivers, Has
from tests.clients.programs import Missing
from tests.clients.records import read_by_librdkafka

SETTLE_SECONDS = 45.0
READ_SECONDS = 40.0
FENCED = {"PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "_FENCED", "ProducerFenced", "ProducerFencedError"}
MEMBER_FENCED = {
    "FENCED_INSTANCE_ID",
    "UNKNOWN_MEMBER_ID",
    "_FATAL",
    "CommitFailedError",  # aiokafka and Java say that the group has moved on, whatever the reason
    "CommitFailedException",
    "*kgo.ErrGroupSession",
}
"""How clients say to an application that its member is none any more."""
COORDINATOR_MOVED = {"NOT_COORDINATOR_FOR_GROUP", "NOT_COORDINATOR", "GROUP_COORDINATOR_NOT_AVAILABLE"}
"""Names that kafkajs and others have for it."""

Take = Callable[[str], Driver]

every_client = pytest.mark.parametrize("name", CLIENTS)


def clients_with(*abilities: Has) -> pytest.MarkDecorator:
    """Run a check with each client that has all of these."""
    names = [client.name for client in CLIENTS.values() if client.has.issuperset(abilities)]
    return pytest.mark.parametrize("name", names)


@pytest.fixture
def take(drivers: Drivers) -> Iterator[Take]:
    """Gives drivers, and takes them back at the end of the test."""
    taken: list[Driver] = []

    def one(name: str) -> Driver:
        try:
            taken.append(drivers.take(name))
        except Missing as error:
            pytest.skip(str(error))
        return taken[-1]

    yield one
    for driver in taken:
        drivers.give_back(driver)


def fresh(what: str) -> str:
    """A name that nobody has used."""
    return f"{what}-{uuid.uuid4().hex[:8]}"


def fill(driver: Driver, topic: str, values: Sequence[str], partitions: int) -> None:
    """Write values round and round the partitions."""
    placed = [(number % partitions, value) for number, value in enumerate(values)]
    assert len(driver.ask("produce", topic=topic, records=placed)) == len(values)


def numbered(what: str, count: int) -> list[str]:
    return [f"{what}-{number}" for number in range(count)]


def settle(members: Sequence[Driver], whole: set[Place]) -> tuple[list[frozenset[Place]], list[list[str]]]:
    """Poll until each partition is held by exactly one member, and each member holds some.

    What each holds then, and the values each has read meanwhile.
    """
    read: list[list[str]] = [[] for _ in members]
    deadline = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < deadline:
        polled = poll_all(members)
        for values, one in zip(read, polled, strict=True):
            values += one.values
        held = [one.assigned for one in polled]
        if all(held) and sum(map(len, held)) == len(whole) and set().union(*held) == whole:
            return held, read
    raise AssertionError(
        f"{[member.name for member in members]} do not share {len(whole)} partitions after"
        f" {SETTLE_SECONDS:g} s: they hold {[sorted(one) for one in held]}"
    )


def polls(members: Sequence[Driver], count: int) -> list[list[Polled]]:
    """Poll until so many different values have come, and a moment longer: more is told as well."""
    done: list[list[Polled]] = []
    deadline = time.monotonic() + READ_SECONDS
    while len({*values_of(done)}) < count and time.monotonic() < deadline:
        done.append(poll_all(members))
    return [*done, poll_all(members, 0.2)]


def values_of(done: list[list[Polled]]) -> list[str]:
    """All values that polls gave, in their order."""
    return [value for polled in done for one in polled for value in one.values]


def read(members: Sequence[Driver], count: int) -> list[str]:
    """The values of `polls`."""
    return values_of(polls(members, count))


def check_read(members: Sequence[Driver], held: list[frozenset[Place]], wanted: list[str]) -> None:
    """Each value comes, and once while each member holds what it held: on a slow machine one may lose its
    session, and another reads again what was not committed."""
    done = polls(members, len(wanted))
    assert {*values_of(done)} == {*wanted}
    if all([one.assigned for one in polled] == held for polled in done):
        assert sorted(values_of(done)) == sorted(wanted)


def read_some(member: Driver, count: int) -> list[str]:
    """Poll for so many values and no more."""
    values: list[str] = []
    held: frozenset[Place] = frozenset()
    deadline = time.monotonic() + READ_SECONDS
    while len(values) < count and time.monotonic() < deadline:
        polled = member.poll(count=count - len(values))
        values, held = values + polled.values, polled.assigned
    assert len(values) == count, (
        f"{member.name} has read {len(values)} of {count} values, and holds {sorted(held)}"
    )
    return values


def places(topic: str, partitions: int) -> set[Place]:
    return {(topic, number) for number in range(partitions)}


def committed(driver: Driver, group: str, count: int) -> None:
    """The sum of a group's offsets, the number of records it is done with, comes to this and no further.

    It may take a moment: a transaction is committed when that is decided, and its markers are written after
    that. And not every client's admin looks again for a coordinator that has moved.
    """
    deadline = time.monotonic() + READ_SECONDS
    while True:
        try:
            done = sum(max(0, offset) for _, _, offset in driver.ask("group_offsets", group=group))
        except Refused as error:
            if error.code not in COORDINATOR_MOVED:
                raise
            done = -1
        if done >= count or time.monotonic() > deadline:
            assert done == count
            return
        time.sleep(0.02)


def stored(bootstrap: str, topic: str, count: int, partitions: int) -> list[str]:
    """What a reader of committed records finds, in no order."""
    got = read_by_librdkafka(bootstrap, topic, count, partitions)
    return sorted(bytes(message.value() or b"").decode() for message in got.values())


def refused(driver: Driver, do: str, codes: set[str], **fields: object) -> None:
    with pytest.raises(Refused) as caught:
        driver.ask(do, **fields)
    assert caught.value.code in codes, caught.value


@every_client
def test_what_is_produced_lies_where_it_is_said(name: str, take: Take, bootstrap: str) -> None:
    topic, driver = fresh("produce"), take(name)
    driver.ask("create_topic", topic=topic, partitions=2)
    offsets = driver.ask("produce", topic=topic, records=[(0, "a"), (1, "b"), (0, "c")])
    assert offsets == [0, 0, 1]
    assert stored(bootstrap, topic, 3, 2) == ["a", "b", "c"]
    driver.ask("delete_topic", topic=topic)
    refused(driver, "delete_topic", {"UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_OR_PART"}, topic=topic)


@every_client
def test_a_group_shares_a_topic_as_members_come_and_go(name: str, take: Take) -> None:
    """What is committed before the group changes is read once, whoever has its partition then."""
    topic, group, one, two = fresh("share"), fresh("share"), take(name), take(name)
    one.ask("create_topic", topic=topic, partitions=6)
    fill(one, topic, numbered("alone", 30), 6)
    one.ask("subscribe", topics=[topic], group=group, settings={})
    assert sorted(read([one], 30)) == sorted(numbered("alone", 30))
    one.ask("commit")
    two.ask("subscribe", topics=[topic], group=group, settings={})
    held, again = settle([one, two], places(topic, 6))
    assert ([len(each) for each in held], again) == ([3, 3], [[], []])
    fill(one, topic, numbered("both", 30), 6)
    assert sorted(read([one, two], 30)) == sorted(numbered("both", 30))
    one.ask("commit")
    two.ask("commit")
    two.ask("close")
    assert settle([one], places(topic, 6))[1] == [[]]
    fill(one, topic, numbered("left", 12), 6)
    assert sorted(read([one], 12)) == sorted(numbered("left", 12))


@every_client
def test_a_member_goes_on_where_the_last_one_committed(name: str, take: Take) -> None:
    topic, group, first, second = fresh("commit"), fresh("commit"), take(name), take(name)
    first.ask("create_topic", topic=topic, partitions=3)
    values = numbered("commit", 60)
    fill(first, topic, values, 3)
    first.ask("subscribe", topics=[topic], group=group, settings={})
    done = read_some(first, 20)
    first.ask("commit")
    read_some(first, 10)  # and not committed
    committed(second, group, 20)
    first.ask("close")
    second.ask("subscribe", topics=[topic], group=group, settings={})
    assert sorted(done + read([second], 40)) == sorted(values)
    if name == "kafka-python":
        return  # it joins once more by itself, and may lose the answer: see `subscribe` of its driver
    second.ask("commit")
    committed(first, group, 60)


@clients_with(Has.STATIC)
def test_a_static_member_comes_back_to_what_it_had(name: str, take: Take) -> None:
    """One that is killed and started again within its session moves no partition (KIP-345)."""
    topic, group, one, two = fresh("static"), fresh("static"), take(name), take(name)
    one.ask("create_topic", topic=topic, partitions=4)
    for member, instance in ((one, "a"), (two, "b")):
        member.ask("subscribe", topics=[topic], group=group, settings={"instance": instance})
    (had, kept), _ = settle([one, two], places(topic, 4))
    one.kill()
    back = take(name)
    back.ask("subscribe", topics=[topic], group=group, settings={"instance": "a"})
    held, _ = settle([back, two], places(topic, 4))
    assert held == [had, kept]
    assert two.poll().revoked == []


@clients_with(Has.INSTANCE_FENCE)
def test_a_static_member_ends_when_another_takes_its_place(name: str, take: Take) -> None:
    """Two with the same instance: the later one has the partitions, the earlier one is told (KIP-345)."""
    topic, group, one, rival = fresh("static"), fresh("static"), take(name), take(name)
    one.ask("create_topic", topic=topic, partitions=4)
    one.ask("subscribe", topics=[topic], group=group, settings={"instance": "a"})
    settle([one], places(topic, 4))
    fill(rival, topic, numbered("static", 4), 4)
    read_some(one, 2)
    rival.ask("subscribe", topics=[topic], group=group, settings={"instance": "a"})
    settle([rival], places(topic, 4))
    with pytest.raises(Refused) as caught:
        _go_on(one)
    assert caught.value.code in MEMBER_FENCED, caught.value
    one.kill()


def _go_on(member: Driver) -> None:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        member.ask("commit")
        member.poll()


@clients_with(Has.COOPERATIVE)
def test_a_cooperative_member_keeps_what_it_may_keep(name: str, take: Take) -> None:
    """Only what moves is taken away (KIP-429)."""
    topic, group, one, two = fresh("cooperative"), fresh("cooperative"), take(name), take(name)
    one.ask("create_topic", topic=topic, partitions=6)
    settings = {"assignor": "cooperative"}
    one.ask("subscribe", topics=[topic], group=group, settings=settings)
    settle([one], places(topic, 6))
    revoked = _joined(one, two, topic, group, settings)
    assert len(revoked) == 3


@clients_with(Has.CONSUMER_PROTOCOL)
def test_a_group_that_the_broker_assigns(name: str, take: Take) -> None:
    """KIP-848: members come, go and commit; only what moves is taken away."""
    topic, group, one, two = fresh("assigned"), fresh("assigned"), take(name), take(name)
    one.ask("create_topic", topic=topic, partitions=6)
    fill(one, topic, numbered("alone", 30), 6)
    settings = {"protocol": "consumer"}
    one.ask("subscribe", topics=[topic], group=group, settings=settings)
    assert sorted(read([one], 30)) == sorted(numbered("alone", 30))
    one.ask("commit")
    revoked = _joined(one, two, topic, group, settings)
    assert len(revoked) == 3
    fill(one, topic, numbered("both", 30), 6)
    assert sorted(read([one, two], 30)) == sorted(numbered("both", 30))
    one.ask("commit")
    two.ask("commit")
    two.ask("close")
    assert settle([one], places(topic, 6))[1] == [[]]
    committed(one, group, 60)


def _joined(one: Driver, two: Driver, topic: str, group: str, settings: dict[str, str]) -> list[Place]:
    """Let `two` join `one`, which has six partitions; what `one` was deprived of until both have three."""
    two.ask("subscribe", topics=[topic], group=group, settings=settings)
    revoked: list[Place] = []
    deadline = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < deadline:
        first, second = poll_all([one, two])
        assert first.values + second.values == []
        assert not first.assigned & second.assigned
        revoked += first.revoked
        if len(first.assigned) == len(second.assigned) == 3:
            return revoked
    raise AssertionError(f"{one.name} and its like hold {first.assigned}, {second.assigned}")


@every_client
def test_a_transaction_is_there_when_it_is_committed(name: str, take: Take, bootstrap: str) -> None:
    topic, writer, reader, uncommitted = fresh("tx"), take(name), take(name), take(name)
    writer.ask("create_topic", topic=topic, partitions=2)
    writer.ask("transactional", id=fresh("tx"))

    def transaction(what: str) -> list[str]:
        values = numbered(what, 6)
        writer.ask("begin")
        writer.ask("send", topic=topic, records=[(at % 2, value) for at, value in enumerate(values)])
        return values

    aborted = transaction("aborted")
    writer.ask("end", commit=False)
    kept = []
    for number in range(3):
        kept += transaction(f"kept-{number}")
        writer.ask("end", commit=True)
    pending = transaction("open")
    reader.ask("subscribe", topics=[topic], group=fresh("tx"), settings={"isolation": "read_committed"})
    wanted = {"isolation": "read_uncommitted"}
    uncommitted.ask("subscribe", topics=[topic], group=fresh("tx"), settings=wanted)
    assert sorted(read([uncommitted], 30)) == sorted(aborted + kept + pending)
    assert sorted(read([reader], 18)) == sorted(kept)
    writer.ask("end", commit=True)
    assert sorted(read([reader], 6)) == sorted(pending)
    assert stored(bootstrap, topic, 24, 2) == sorted(kept + pending)


@every_client
def test_a_producer_whose_id_another_one_has_is_fenced(name: str, take: Take, bootstrap: str) -> None:
    topic, id, old, new = fresh("fenced"), fresh("fenced"), take(name), take(name)
    old.ask("create_topic", topic=topic, partitions=1)
    old.ask("transactional", id=id)
    old.ask("begin")
    old.ask("send", topic=topic, records=[(0, "zombie")])
    new.ask("transactional", id=id)
    new.ask("begin")
    new.ask("send", topic=topic, records=[(0, "new")])
    refused(old, "end", FENCED, commit=True)
    new.ask("end", commit=True)
    assert stored(bootstrap, topic, 1, 1) == ["new"]
    old.kill()


@every_client
def test_offsets_are_committed_with_what_was_made_of_them(name: str, take: Take, bootstrap: str) -> None:
    """An aborted round leaves neither records nor offsets, a committed one both."""
    source, target, group, id = fresh("in"), fresh("out"), fresh("chain"), fresh("chain")
    one, two = take(name), take(name)
    values = numbered("chain", 30)
    for topic in (source, target):
        one.ask("create_topic", topic=topic, partitions=3)
    fill(one, source, values, 3)
    one.ask("chain", topics=[source], group=group, settings={}, id=id)
    _round(one, target, read_some(one, 10), "aborted", commit=False)
    committed(two, group, 0)
    one.ask("close")
    two.ask("chain", topics=[source], group=group, settings={}, id=id)
    for number in range(1, 4):
        _round(two, target, read_some(two, 10), "made", commit=True)
        committed(two, group, 10 * number)
    assert stored(bootstrap, target, 30, 3) == sorted(f"made {value}" for value in values)


@clients_with(Has.GENERATION_FENCE, Has.STATIC)
def test_a_task_that_lost_its_partitions_cannot_commit(name: str, take: Take, bootstrap: str) -> None:
    """KIP-447: its transactional id is its own, so nothing but the group's fence keeps it out."""
    source, target, group = fresh("in"), fresh("out"), fresh("zombie")
    old, new = take(name), take(name)
    values = numbered("zombie", 20)
    for topic in (source, target):
        old.ask("create_topic", topic=topic, partitions=2)
    fill(old, source, values, 2)
    settings = {"instance": "worker"}
    old.ask("chain", topics=[source], group=group, settings=settings, id=fresh("old"))
    late = read_some(old, 20)
    old.ask("begin")
    old.ask("send", topic=target, records=[(0, f"late {value}") for value in late])
    new.ask("chain", topics=[source], group=group, settings=settings, id=fresh("new"))
    _round(new, target, read_some(new, 20), "made", commit=True)
    with pytest.raises(Refused):
        _commit(old)
    with contextlib.suppress(Refused):  # some have aborted it by themselves
        old.ask("end", commit=False)
    old.kill()
    committed(new, group, 20)
    assert stored(bootstrap, target, 20, 2) == sorted(f"made {value}" for value in values)


def _round(worker: Driver, target: str, values: Sequence[str], word: str, *, commit: bool) -> None:
    worker.ask("begin")
    made = [(number % 2, f"{word} {value}") for number, value in enumerate(values)]
    worker.ask("send", topic=target, records=made)
    if commit:
        _commit(worker)
    else:
        worker.ask("send_offsets")
        worker.ask("end", commit=False)


def _commit(worker: Driver) -> None:
    worker.ask("send_offsets")
    worker.ask("end", commit=True)


@every_client
def test_groups_are_administered(name: str, take: Take) -> None:
    topic, group, admin, member = fresh("admin"), fresh("admin"), take(name), take(name)
    admin.ask("create_topic", topic=topic, partitions=2)
    fill(admin, topic, numbered("admin", 20), 2)
    member.ask("subscribe", topics=[topic], group=group, settings={})
    read_some(member, 20)
    member.ask("commit")
    assert group in admin.ask("groups")
    assert admin.ask("describe_group", group=group) == {"state": "Stable", "members": 1}
    assert sorted(admin.ask("group_offsets", group=group)) == [[topic, 0, 10], [topic, 1, 10]]
    if Has.DELETE_GROUP in CLIENTS[name].has:
        refused(admin, "delete_group", {"NON_EMPTY_GROUP", "NonEmptyGroupError"}, group=group)
    member.ask("close")
    assert admin.ask("describe_group", group=group) == {"state": "Empty", "members": 0}
    if Has.RESET_OFFSETS in CLIENTS[name].has:
        admin.ask("reset_offsets", group=group, offsets=[(topic, 0, 7), (topic, 1, 9)])
        member.ask("subscribe", topics=[topic], group=group, settings={})
        assert len(read([member], 4)) == 4
        member.ask("close")
    if Has.DELETE_GROUP in CLIENTS[name].has:
        admin.ask("delete_group", group=group)
        assert group not in admin.ask("groups")


def test_one_group_of_all_clients_outlives_a_member(drivers: Drivers, take: Take) -> None:
    """They agree on who reads what, and go on without the one that is killed when its session is over."""
    members = []
    for name, client in CLIENTS.items():
        try:
            client.command()
        except Missing:
            continue
        members.append(take(name))
    topic, group, partitions = fresh("mixed"), fresh("mixed"), 2 * len(members)
    members[0].ask("create_topic", topic=topic, partitions=partitions)
    for member in members:
        member.ask("subscribe", topics=[topic], group=group, settings={})
    held, _ = settle(members, places(topic, partitions))
    assert {len(each) for each in held} == {2}
    fill(members[0], topic, numbered("all", 60), partitions)
    check_read(members, held, numbered("all", 60))
    for member in members:
        member.ask("commit")
    members.pop(1).kill()
    held, again = settle(members, places(topic, partitions))
    assert [value for values in again for value in values] == []
    fill(members[0], topic, numbered("rest", 60), partitions)
    check_read(members, held, numbered("rest", 60))
