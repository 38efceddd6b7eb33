"""The members of one classic group at its coordinator, with counters for the questions of every join.

Ten thousand members may join at once, and each join asks whether all have joined and which protocols all
have. Both are counters here, so the cost of many joins grows with the members and not with their square.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from strandline.node.coordinator.groups.classic_state import JoinRequest
from strandline.statemachine.groups.classic_group import ClassicGroup
from strandline.statemachine.groups.group_commands import Member
from strandline.statemachine.kafka_errors import KafkaError

PROTOCOL_BYTES: Final = 8
"""Bytes of a protocol in a log entry besides its name and metadata, both of which may be empty."""


@dataclass(slots=True, eq=False)
class LiveMember:
    """A member as its coordinator knows it. Timeouts are seconds; tickets are requests that wait."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session: float
    rebalance: float
    protocols: Sequence[tuple[str, bytes]]
    assignment: bytes = b""
    joined: bool = False
    """In this rebalance, whether or not its request still waits."""
    join: int | None = None
    sync: int | None = None
    synced: bool = True
    """Whether it has asked for its assignment in this generation."""
    in_generation: bool = False
    """Whether the log has it, or will, as one of the last generation that was decided."""
    skips: bool = False
    """Whether its client supports leading without assigning (KIP-814)."""

    @property
    def size(self) -> int:
        """Bytes that it sent and was assigned; about its size in a log entry."""
        names = (self.member_id, self.instance_id or "", self.client_id, self.client_host)
        return (
            sum(len(name.encode()) for name in names)
            + len(self.assignment)
            + sum(PROTOCOL_BYTES + len(name.encode()) + len(metadata) for name, metadata in self.protocols)
        )

    def metadata(self, protocol: str) -> bytes:
        """The metadata that the member gave with a protocol; b"" if it does not have the protocol."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def logged(self) -> Member:
        """The member as the log has it."""
        return Member(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            round(self.session * 1000),
            round(self.rebalance * 1000),
            [(name, metadata) for name, metadata in self.protocols],
        )


def joining_member(request: JoinRequest, member_id: str) -> LiveMember:
    """The member that a JoinGroup makes."""
    return LiveMember(
        member_id,
        request.instance_id,
        request.client_id,
        request.client_host,
        request.session,
        request.rebalance,
        tuple(request.protocols),
        skips=request.takes_skip,
    )


def restored_member(classic: ClassicGroup, member_id: str) -> LiveMember:
    """A member of a generation that the log has."""
    member = classic.members[member_id]
    assignments = classic.assignments
    return LiveMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.session_timeout / 1000,
        member.rebalance_timeout / 1000,
        tuple(member.protocols),
        assignment=b"" if assignments is None else assignments[member_id],
        synced=assignments is not None,
    )


def _names(protocols: Sequence[tuple[str, bytes]]) -> list[str]:
    return [name for name, _ in protocols]


class Members:
    """The members of a group by their ids, in the order in which they came, and the ids given out."""

    def __init__(self) -> None:
        self.pending: dict[str, None] = {}
        """Member ids that were given out and have not joined yet (KIP-394)."""
        self.joined = 0
        """Number of members that have joined in this rebalance."""
        self.bytes = 0
        """Bytes that all members sent and were assigned."""
        self.assigned = 0
        """Bytes of the assignments alone."""
        self._unsynced = 0
        self._members: dict[str, LiveMember] = {}
        self._static: dict[str, str] = {}
        self._supported: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[LiveMember]:
        return iter(self._members.values())

    def get(self, member_id: str) -> LiveMember | None:
        return self._members.get(member_id)

    def of_instance(self, instance_id: str | None) -> LiveMember | None:
        """The static member of this instance id (KIP-345)."""
        held = None if instance_id is None else self._static.get(instance_id)
        return None if held is None else self._members[held]

    @property
    def sent_bytes(self) -> int:
        """Bytes that all members sent: their size in the log entry of a generation."""
        return self.bytes - self.assigned

    @property
    def all_joined(self) -> bool:
        """Whether all have joined: every member, and every client that was given a member id."""
        return self.joined == len(self._members) and not self.pending

    @property
    def all_synced(self) -> bool:
        """Whether every member has asked for its assignment in this generation."""
        return not self._unsynced

    def refusal(self, member_id: str, instance_id: str | None) -> KafkaError | None:
        """The error of a request with these ids, else None (ClassicGroup.validateMember)."""
        if instance_id is not None:
            held = self._static.get(instance_id)
            if held is None:
                return KafkaError.UNKNOWN_MEMBER_ID
            if held != member_id:
                return KafkaError.FENCED_INSTANCE_ID
        return None if member_id in self._members else KafkaError.UNKNOWN_MEMBER_ID

    # Protocols.

    def supports(self, names: Sequence[str]) -> bool:
        """Whether all members have one of these protocols."""
        return any(self._supported[name] == len(self._members) for name in names)

    def selected(self) -> str:
        """The protocol of the next generation: all have it, and most prefer it; there are members.

        With equal votes, the protocol with the earlier first vote wins; Kafka leaves it to chance.
        """
        votes: Counter[str] = Counter()
        for member in self:
            votes[next(name for name, _ in member.protocols if self._supported[name] == len(self))] += 1
        return votes.most_common(1)[0][0]

    # Changes.

    def add(self, member: LiveMember) -> None:
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        self._supported.update(dict.fromkeys(_names(member.protocols), 1))
        self.joined += member.joined
        self._unsynced += not member.synced
        self.bytes += member.size
        self.assigned += len(member.assignment)

    def remove(self, member: LiveMember) -> None:
        del self._members[member.member_id]
        if member.instance_id is not None:
            del self._static[member.instance_id]
        self._discount(member.protocols)
        self.joined -= member.joined
        self._unsynced -= not member.synced
        self.bytes -= member.size
        self.assigned -= len(member.assignment)

    def update(self, member: LiveMember, request: JoinRequest) -> None:
        """Replace a member's protocols, timeouts and client by those of its newest JoinGroup."""
        self.bytes -= member.size
        self._discount(member.protocols)
        member.protocols = tuple(request.protocols)
        member.session, member.rebalance = request.session, request.rebalance
        member.client_id, member.client_host = request.client_id, request.client_host
        member.skips = request.takes_skip
        self._supported.update(dict.fromkeys(_names(member.protocols), 1))
        self.bytes += member.size

    def assign(self, member: LiveMember, assignment: bytes) -> None:
        more = len(assignment) - len(member.assignment)
        self.bytes += more
        self.assigned += more
        member.assignment = assignment

    def set_joined(self, member: LiveMember, joined: bool) -> None:
        self.joined += joined - member.joined
        member.joined = joined

    def set_synced(self, member: LiveMember, synced: bool) -> None:
        self._unsynced += member.synced - synced
        member.synced = synced

    def give_out(self, member_id: str) -> None:
        """Remember a member id that a client was given and will join with."""
        self.pending[member_id] = None
        self.bytes += len(member_id.encode())

    def take_back(self, member_id: str) -> bool:
        """Forget a member id that was given out: it is used, or its time is over. Whether it was known."""
        if member_id not in self.pending:
            return False
        del self.pending[member_id]
        self.bytes -= len(member_id.encode())
        return True

    def _discount(self, protocols: Sequence[tuple[str, bytes]]) -> None:
        for name in dict.fromkeys(_names(protocols)):
            self._supported[name] -= 1
            if not self._supported[name]:
                del self._supported[name]
