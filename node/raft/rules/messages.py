"""The messages between the replicas of a group.

A message travels as a short msgpack array, and each class here names the array's elements in their order.
Every message carries its group and its term, and an answer counts only in the term it names (docs/raft.md,
"replies carry no term"). `decode` is the only way in: it checks the shape, the types and the ranges.

Indices and terms are the log's. Times (`sent_at`, `asked_at`) are seconds on the sender's own clock; an
answer repeats the time of what it answers.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import partial
from math import isfinite
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_type_hints

from strandline.node.raft.bad_message import BadMessage
from strandline.node.raft.entries import MAX_NUMBER


class MessageKind(IntEnum):
    """Second element of a message."""

    APPEND = 1
    APPEND_REPLY = 2
    VOTE = 3
    VOTE_REPLY = 4
    PRE_VOTE = 5
    PRE_VOTE_REPLY = 6
    TIMEOUT_NOW = 7
    SNAPSHOT = 8
    SNAPSHOT_REPLY = 9
    QUIESCE = 10
    NEED_SNAPSHOT = 11
    OPENED = 12


class AppendEntries(NamedTuple):
    """A leader's entries after (`previous`, `previous_term`), or none: a heartbeat (Raft §5.3)."""

    group: int
    kind: Literal[MessageKind.APPEND]
    term: int
    previous: int
    previous_term: int
    commit: int
    entries: bytes
    """A run of entries (`pack_entries`), or nothing."""
    sent_at: float


class AppendReply(NamedTuple):
    """A follower's log matches up to `log_index`, durably; if not `accepted`, it lacks that entry."""

    group: int
    kind: Literal[MessageKind.APPEND_REPLY]
    term: int
    accepted: bool
    log_index: int
    hint: int
    """With a rejection: an index at or above which the logs part."""
    hint_term: int
    sent_at: float


class RequestVote(NamedTuple):
    """A candidate of `term` asks for a vote; its log ends with entry (`last`, `last_term`) (Raft §5.2)."""

    group: int
    kind: Literal[MessageKind.VOTE]
    term: int
    last: int
    last_term: int
    transfer: bool
    """Whether the leader itself asked for this election (thesis §3.10)."""


class VoteReply(NamedTuple):
    """A voter's answer."""

    group: int
    kind: Literal[MessageKind.VOTE_REPLY]
    term: int
    granted: bool


class RequestPreVote(NamedTuple):
    """A follower in `term` asks whether it would be elected in the next one (thesis §9.6)."""

    group: int
    kind: Literal[MessageKind.PRE_VOTE]
    term: int
    last: int
    last_term: int
    asked_at: float
    """Time at which the round was started: it names the round, and every answer carries it."""


class PreVoteReply(NamedTuple):
    """A voter in `term` would, or would not, vote for the asker in the term `asked`."""

    group: int
    kind: Literal[MessageKind.PRE_VOTE_REPLY]
    term: int
    granted: bool
    asked: int
    asked_at: float


class TimeoutNow(NamedTuple):
    """The leader asks a follower to stand for election at once (thesis §3.10)."""

    group: int
    kind: Literal[MessageKind.TIMEOUT_NOW]
    term: int


class SnapshotChunk(NamedTuple):
    """Bytes of the leader's snapshot that ends with entry (`snapshot_index`, `snapshot_term`) (Raft §7)."""

    group: int
    kind: Literal[MessageKind.SNAPSHOT]
    term: int
    snapshot_index: int
    snapshot_term: int
    offset: int
    total: int
    digest: bytes
    data: bytes
    sent_at: float

    @property
    def snapshot(self) -> tuple[int, int, int, bytes]:
        """Identity of a snapshot in transfer: index, term, size in bytes, and digest."""
        return self.snapshot_index, self.snapshot_term, self.total, self.digest


class SnapshotReply(NamedTuple):
    """A follower has the snapshot's bytes up to `offset`; `status` is a `snapshots.transfer.Status`."""

    group: int
    kind: Literal[MessageKind.SNAPSHOT_REPLY]
    term: int
    snapshot_index: int
    offset: int
    status: int
    sent_at: float


class Quiesce(NamedTuple):
    """The leader says that all is committed up to `last`, its last entry, and will be silent."""

    group: int
    kind: Literal[MessageKind.QUIESCE]
    term: int
    last: int


class NeedSnapshot(NamedTuple):
    """A follower's stored state is bad: it needs a snapshot of index `least` or above."""

    group: int
    kind: Literal[MessageKind.NEED_SNAPSHOT]
    term: int
    least: int
    sent_at: float


class ReplicaOpened(NamedTuple):
    """A follower's process has the group from now on; earlier messages to it are lost."""

    group: int
    kind: Literal[MessageKind.OPENED]
    term: int


Message: TypeAlias = (
    AppendEntries
    | AppendReply
    | RequestVote
    | VoteReply
    | RequestPreVote
    | PreVoteReply
    | TimeoutNow
    | SnapshotChunk
    | SnapshotReply
    | Quiesce
    | NeedSnapshot
    | ReplicaOpened
)

CLASSES: Final[dict[int, type[Message]]] = {
    MessageKind.APPEND: AppendEntries,
    MessageKind.APPEND_REPLY: AppendReply,
    MessageKind.VOTE: RequestVote,
    MessageKind.VOTE_REPLY: VoteReply,
    MessageKind.PRE_VOTE: RequestPreVote,
    MessageKind.PRE_VOTE_REPLY: PreVoteReply,
    MessageKind.TIMEOUT_NOW: TimeoutNow,
    MessageKind.SNAPSHOT: SnapshotChunk,
    MessageKind.SNAPSHOT_REPLY: SnapshotReply,
    MessageKind.QUIESCE: Quiesce,
    MessageKind.NEED_SNAPSHOT: NeedSnapshot,
    MessageKind.OPENED: ReplicaOpened,
}
FIELDS: Final[dict[int, tuple[type, ...]]] = {
    kind: tuple(get_type_hints(cls).values())[3:] for kind, cls in CLASSES.items()
}
"""By kind, the types of the elements after group, kind and term."""


class _Shape(NamedTuple):
    """A kind of message, so that a well-formed one is known at once."""

    types: list[type]
    """Of all its elements."""
    numbers: Callable[[Any], tuple[int, ...]]
    """Gives those of its elements that have bounds."""
    time_at: int | None
    """Position of its time, if it has one."""
    make: Callable[[Any], Message]


def _shape_of(kind: int, cls: type[Message]) -> _Shape:
    fields = FIELDS[kind]
    bounded = [2, *(at for at, field in enumerate(fields, 3) if field is int)]
    # With one position alone a getter gives the element itself.
    numbers = itemgetter(*bounded) if len(bounded) > 1 else itemgetter(2, 2)
    time_at = fields.index(float) + 3 if float in fields else None
    return _Shape([int, int, int, *fields], numbers, time_at, partial(tuple.__new__, cls))


_SHAPES: Final[dict[int, _Shape]] = {kind: _shape_of(kind, cls) for kind, cls in CLASSES.items()}


def decode(message: Any) -> Message:
    """The message in a msgpack array; raises BadMessage when no node of this version sends such a one."""
    if type(message) is list and len(message) > 1 and type(message[1]) is int:
        shape = _SHAPES.get(message[1])
        if shape is not None and [*map(type, message)] == shape.types:
            numbers = shape.numbers(message)
            time_at = shape.time_at
            if (
                min(numbers) >= 0
                and max(numbers) <= MAX_NUMBER
                and (time_at is None or isfinite(message[time_at]))
            ):
                return shape.make(message)
    raise _bad(message)


def _bad(message: Any) -> BadMessage:
    """The error that says the first thing that is wrong with it."""
    if type(message) is not list or len(message) < 3:
        return BadMessage("message is not an array of group, kind and term")
    group, kind, term = message[:3]
    if type(kind) is not int:
        return BadMessage("message's kind is not a whole number")
    fields = FIELDS.get(kind)
    if fields is None or len(message) != len(fields) + 3:
        return BadMessage(f"message of unknown kind {kind}, or with a wrong number of fields")
    if type(group) is not int or type(term) is not int or not 0 <= term <= MAX_NUMBER:
        return BadMessage("message's group or term is not a whole number, or out of range")
    return BadMessage(
        f"message of kind {MessageKind(kind).name} has a field of a wrong type, or out of range"
    )
