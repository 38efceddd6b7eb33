"""Whatever clients do, in whatever order the log answers: what holds of a classic group at all times."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.strategies import booleans, integers, sampled_from

from strandline.node.coordinator.groups.classic_state import JOIN, SESSION, SYNC, ClassicGroupState
from strandline.node.raft.outcome import Overloaded
from strandline.statemachine.groups.classic_group import ClassicGroup
from strandline.statemachine.kafka_errors import KafkaError
from tests.coordinator.classic_house import DELAY, Client, House, share

NAMES = "abcde"
SESSIONS = {"a": 6.0, "b": 8.0, "c": 11.0, "d": 20.0, "e": 7.0}


class Clients(RuleBasedStateMachine):
    """Five clients of one group; d and e are static. The log commits, and drops, when a rule says."""

    @initialize(takes_member_id=booleans())
    def begin(self, takes_member_id: bool) -> None:
        self.house = House()
        self.house.by_hand = True
        self.takes_member_id = takes_member_id
        self.clients = {name: self.new(name) for name in NAMES}
        self.generation = 0
        self.told: dict[int, str] = {}
        """Who led a generation, as far as anybody was told."""
        self.broken: list[Client] = []

    def new(self, name: str) -> Client:
        return self.house.client(
            name,
            instance=name if name in "de" else None,
            session=SESSIONS[name],
            rebalance=9.0 if name in "bd" else 25.0,
            takes_member_id=self.takes_member_id,
        )

    # What clients do.

    @rule(name=sampled_from(NAMES), fresh=integers(0, 3))
    def join(self, name: str, fresh: int) -> None:
        client = self.clients[name]
        if client.waits():
            return
        if fresh == 0:
            client.metadata += b"."
        client.begin_join()

    @rule(name=sampled_from(NAMES))
    def join_once_more(self, name: str) -> None:
        client = self.clients[name]
        if client.join is not None and not client.join.done() and client.member_id:
            first = client.join
            client.begin_join()
            assert first.done()

    @rule(name=sampled_from(NAMES))
    def sync(self, name: str) -> None:
        client = self.clients[name]
        if not client.waits() and client.generation > 0:
            everybody = [one for one in self.clients.values() if one.member_id]
            client.begin_sync(share(everybody) if client.leads else None)

    @rule()
    def all_join(self) -> None:
        for name in NAMES:
            self.join(name, 1)
        self.house.advance(2 * DELAY)
        self.commit_all()
        self.hear()

    @rule(but=sampled_from(NAMES))
    def others_sync(self, but: str) -> None:
        for name in NAMES:
            if name != but:
                self.sync(name)

    @rule(name=sampled_from(NAMES))
    def heartbeat(self, name: str) -> None:
        client = self.clients[name]
        if client.heartbeat() in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.FENCED_INSTANCE_ID):
            client.member_id = ""

    @rule(name=sampled_from(NAMES))
    def leave(self, name: str) -> None:
        client = self.clients[name]
        if client.leave() is None:
            client.member_id = ""

    @rule(name=sampled_from(NAMES))
    def start_anew(self, name: str) -> None:
        """The client's process dies, with whatever it waits for, and another takes its place."""
        old = self.clients[name]
        for task in (old.join, old.syncing):
            if task is not None:
                task.cancel()
        self.house.turn()
        self.clients[name] = self.new(name)

    # What the world does.

    @rule(seconds=sampled_from([0.1, DELAY, 1.0, 3.0, 7.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.house.advance(seconds)

    @rule()
    def commit(self) -> None:
        self.house.commit()

    @rule()
    def commit_all(self) -> None:
        for _ in range(4):
            self.house.commit()

    @rule()
    def drop(self) -> None:
        self.house.log.drop(Overloaded("too much"))
        self.house.turn()

    @rule(applied=booleans())
    def new_leader(self, applied: bool) -> None:
        if applied:
            self.house.log.apply()
        self.house.log.lose()
        self.house.turn()
        assert self.house.coordinator.classic.waiting == 0
        self.house.log.drop(Overloaded("cut off"))
        self.house.lead()

    # What clients are told.

    @invariant()
    def hear(self) -> None:
        for client in self.clients.values():
            if client.join is not None and client.join.done() and not client.join.cancelled():
                self.heard_join(client)
            if client.syncing is not None and client.syncing.done():
                client.syncing = None

    def heard_join(self, client: Client) -> None:
        answer = client.result()
        client.join = None
        if answer.error is None:
            client.generation = answer.generation
            client.leads = answer.leader == answer.member_id and not answer.skip_assignment
            logged = self.logged()
            assert logged is not None
            assert logged.generation >= answer.generation, "it was told of what the log does not have"
            if logged.generation == answer.generation:
                assert answer.member_id in logged.members
                assert answer.protocol == logged.protocol_name
            if client.leads:
                other = self.told.setdefault(answer.generation, client.name)
                assert other == client.name, "two clients lead one generation"
        elif answer.error is not KafkaError.MEMBER_ID_REQUIRED:
            client.generation = -1
            if answer.error in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.FENCED_INSTANCE_ID):
                client.member_id = ""

    # What must hold.

    def logged(self) -> ClassicGroup | None:
        group = self.house.replica.machine.groups.get("g")
        membership = None if group is None else group.membership
        assert membership is None or isinstance(membership, ClassicGroup)
        return membership

    @invariant()
    def generations_never_fall(self) -> None:
        logged = self.logged()
        if logged is not None:
            assert logged.generation >= self.generation
            self.generation = logged.generation

    @invariant()
    def what_is_counted_is_so(self) -> None:
        classic = self.house.coordinator.classic
        group = classic.get("g")
        if group is None:
            assert (classic.bytes, classic.waiting) == (0, 0)
            return
        members = group.members
        present = [*members]
        assert members.joined == sum(member.joined for member in present)
        assert members.all_synced == all(member.synced for member in present)
        pending = sum(map(len, members.pending))
        assert members.bytes == sum(member.size for member in present) + pending
        assert members._supported == Counter(name for member in present for name, _ in member.protocols)
        assert members._static == {one.instance_id: one.member_id for one in present if one.instance_id}
        tickets = [
            ticket for member in present for ticket in (member.join, member.sync) if ticket is not None
        ]
        assert classic.waiting == len(tickets) == len(group._waiting)

    @invariant()
    def a_stable_group_is_as_the_log_has_it(self) -> None:
        group = self.house.coordinator.classic.get("g")
        if (
            group is None
            or group._deciding
            or group.state not in (ClassicGroupState.STABLE, ClassicGroupState.COMPLETING_REBALANCE)
        ):
            return
        logged = self.logged()
        assert logged is not None
        assert (group.generation, group.protocol, group.leader) == (
            logged.generation,
            logged.protocol_name,
            logged.leader,
        )
        assert {member.member_id for member in group.members} == set(logged.members)
        if group.state is ClassicGroupState.STABLE:
            assert {member.member_id: member.assignment for member in group.members} == logged.assignments
        else:
            assert logged.assignments is None

    @invariant()
    def everything_that_is_waited_for_has_an_end(self) -> None:
        group = self.house.coordinator.classic.get("g")
        if group is None:
            return
        timers = self.house.coordinator.timers
        for member in group.members:
            waits = member.join is not None or member.sync is not None
            has_timer = timers.remaining((SESSION, "g", member.member_id)) is not None
            starting = group._starting and group.state is ClassicGroupState.COMPLETING_REBALANCE
            assert has_timer != waits or (starting and not has_timer and member.instance_id is None), member
        for member_id in group.members.pending:
            assert timers.remaining((SESSION, "g", member_id)) is not None
        if group.state is ClassicGroupState.PREPARING_REBALANCE and not group._deciding:
            assert timers.remaining((JOIN, "g", "")) is not None
        if group.state is ClassicGroupState.COMPLETING_REBALANCE and not group._starting:
            has_timer = timers.remaining((SYNC, "g", "")) is not None
            assert has_timer != group.members.all_synced or group._deciding

    @precondition(lambda self: hasattr(self, "house"))
    @rule()
    def settle(self) -> None:
        """The log commits at once, and everybody does what they should: all are in one stable generation."""
        house = self.house
        house.by_hand = False
        house.turn()
        for _ in range(200):
            for client in self.clients.values():
                self.behave(client)
            self.what_is_counted_is_so()
            group = house.coordinator.classic.get("g")
            if (
                group is not None
                and group.state is ClassicGroupState.STABLE
                and all(client.heartbeat() is None and not client.waits() for client in self.clients.values())
            ):
                break
            house.advance(0.5)
        else:
            raise AssertionError("it never came to rest")
        logged = self.logged()
        assert logged is not None
        assert len({client.generation for client in self.clients.values()}) == 1
        house.by_hand = True

    def behave(self, client: Client) -> None:
        self.hear()
        if client.waits():
            return
        code = client.heartbeat()
        if code is not None:
            if code is not KafkaError.REBALANCE_IN_PROGRESS:
                client.generation = -1
            group = self.house.coordinator.classic.get("g")
            given_out = group is not None and client.member_id in group.members.pending
            if code in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.FENCED_INSTANCE_ID) and not given_out:
                client.member_id = ""
            client.begin_join()
        elif client.generation > 0 and self.house.live().state is ClassicGroupState.COMPLETING_REBALANCE:
            everybody = [one for one in self.clients.values() if one.member_id]
            client.begin_sync(share(everybody) if client.leads else None)

    def teardown(self) -> None:
        if not hasattr(self, "house"):
            return
        # Everybody is gone without a word.
        for client in self.clients.values():
            for task in (client.join, client.syncing):
                if task is not None:
                    task.cancel()
        self.house.by_hand = False
        self.house.advance(100.0)
        assert self.house.nothing_is_left()
        logged = self.logged()
        assert logged is None or logged.is_empty
        self.house.close()


TestClients = Clients.TestCase
TestClients.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
