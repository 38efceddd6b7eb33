"""What groups say to each other, and how a run of log entries is written down.

A message is a short msgpack array that begins ``[group, kind, term]``; every one carries its group and
term, and an answer counts only in the term it names (docs/raft.md, "replies carry no term"). A run of
entries is packed once and the same bytes go to the write-ahead log and to every follower.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from math import isfinite
from operator import itemgetter
from typing import Any, Final

import msgpack

from strandline.node.raft.mesh.frames import GarbageFrame

_KIND_OF = itemgetter(0)

Entry = tuple[bytes, int, int]
"""(command, index, term), the shape PySyncObj keeps entries in. The command's first byte is its EntryKind."""

MAX_RUN = 1 << 20
MAX_NUMBER = 2**63 - 1
"""Largest index, term or size in a message: what a node counts from there on must still fit its records."""


class EntryKind(IntEnum):
    """First byte of every entry's command; the numbers are PySyncObj's."""

    REGULAR = 0
    BEGIN_TERM = 1
    MEMBERSHIP = 2


_KINDS = frozenset(int(kind) for kind in EntryKind)


class MessageKind(IntEnum):
    """Second field of a message. The fields after ``[group, kind, term]`` stand beside each."""

    APPEND = 1  # prev_index, prev_term, commit, entries, sent_at
    APPEND_REPLY = 2  # accepted, match | rejected prev_index, hint_index, hint_term, sent_at
    VOTE = 3  # last_index, last_term, transfer
    VOTE_REPLY = 4  # granted
    PRE_VOTE = 5  # last_index, last_term, asked_at
    PRE_VOTE_REPLY = 6  # granted, asked term, asked_at
    TIMEOUT_NOW = 7  #
    SNAPSHOT = 8  # index, snapshot term, offset, total, digest, data, sent_at
    SNAPSHOT_REPLY = 9  # index, next offset, status, sent_at
    QUIET = 10  # last_index
    NEED_SNAPSHOT = 11  # least index, sent_at
    HERE = 12  #


FIELDS: dict[int, tuple[type, ...]] = {
    MessageKind.APPEND: (int, int, int, bytes, float),
    MessageKind.APPEND_REPLY: (bool, int, int, int, float),
    MessageKind.VOTE: (int, int, bool),
    MessageKind.VOTE_REPLY: (bool,),
    MessageKind.PRE_VOTE: (int, int, float),
    MessageKind.PRE_VOTE_REPLY: (bool, int, float),
    MessageKind.TIMEOUT_NOW: (),
    MessageKind.SNAPSHOT: (int, int, int, int, bytes, bytes, float),
    MessageKind.SNAPSHOT_REPLY: (int, int, int, float),
    MessageKind.QUIET: (int,),
    MessageKind.NEED_SNAPSHOT: (int, float),
    MessageKind.HERE: (),
}


class BadMessage(GarbageFrame):
    """A peer sent something no node of this version sends; its connection ends, nothing else."""


def check(message: Any) -> list[Any]:
    """The message, if it has the right shape; raises BadMessage."""
    if type(message) is not list or len(message) < 3:
        raise BadMessage("message is not an array of group, kind and term")
    if type(message[1]) is not int:
        raise BadMessage("message's kind is no whole number")
    fields = FIELDS.get(message[1])
    if fields is None or len(message) != len(fields) + 3:
        raise BadMessage(f"message of unknown kind {message[1]}, or with a wrong number of fields")
    if type(message[0]) is not int or type(message[2]) is not int or not 0 <= message[2] <= MAX_NUMBER:
        raise BadMessage("message's group or term is no whole number, or out of range")
    for value, expected in zip(message[3:], fields, strict=True):
        fits = type(value) is expected
        if fits and expected is int:
            fits = 0 <= value <= MAX_NUMBER
        elif fits and expected is float:
            fits = isfinite(value)
        if not fits:
            kind = MessageKind(message[1]).name
            raise BadMessage(f"message of kind {kind} has a field of a wrong type, or out of range")
    return message


PACKING_BYTES: Final = 5
"""What an entry takes at most in `pack_entries`, beside its command; terms and a run's head aside."""


def pack_entries(entries: Sequence[Entry]) -> bytes:
    """A run of entries with consecutive indices as bytes: first index, (term, count) runs, commands."""
    first, term = entries[0][1], entries[0][2]
    if entries[-1][2] == term:
        runs = [term, len(entries)]
    else:
        runs = []
        for _, _, entry_term in entries:
            if runs and runs[-2] == entry_term:
                runs[-1] += 1
            else:
                runs += [entry_term, 1]
    packed: bytes = msgpack.packb((first, runs, [entry[0] for entry in entries]))
    return packed


def unpack_entries(data: bytes | memoryview) -> list[Entry]:
    """The entries of `pack_entries`; raises BadMessage when they are not a run of entries."""
    try:
        first, runs, commands = msgpack.unpackb(data, max_array_len=MAX_RUN)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise BadMessage(f"run of entries cannot be read: {error}") from error
    if type(commands) is not list or set(map(type, commands)) != {bytes}:
        raise BadMessage("run of entries: empty, or a command that is no bytes")
    terms, counts = _check_runs(runs)
    if type(first) is not int or not 1 <= first <= MAX_NUMBER - MAX_RUN or sum(counts) != len(commands):
        raise BadMessage("run of entries: counts and commands do not match")
    try:
        kinds = set(map(_KIND_OF, commands))
    except IndexError:
        raise BadMessage("run of entries: an empty command") from None
    if not kinds <= _KINDS:
        raise BadMessage("run of entries: an entry of unknown kind")
    if EntryKind.MEMBERSHIP in kinds:
        for command in commands:
            if command[0] == EntryKind.MEMBERSHIP:
                unpack_members(command)
    if len(terms) == 1:
        term = terms[0]
        return [(command, index, term) for index, command in enumerate(commands, first)]
    each = [term for term, count in zip(terms, counts, strict=True) for _ in range(count)]
    indices = range(first, first + len(commands))
    return list(zip(commands, indices, each, strict=True))


def _check_runs(runs: Any) -> tuple[list[int], list[int]]:
    """(terms, how many entries of each); every number is a whole one, terms only rise (Raft §5.3)."""
    if type(runs) is not list or not runs or len(runs) % 2 or set(map(type, runs)) != {int}:
        raise BadMessage("run of entries: its terms cannot be read")
    terms, counts = runs[::2], runs[1::2]
    if min(counts) < 1 or terms[0] < 1 or terms[-1] > MAX_NUMBER or terms != sorted(terms):
        raise BadMessage("run of entries: its terms cannot be")
    return terms, counts


def pack_members(voters: Sequence[int], learners: Sequence[int]) -> bytes:
    """The command of the entry that puts a configuration into the log."""
    packed: bytes = msgpack.packb([sorted(voters), sorted(learners)])
    return bytes([EntryKind.MEMBERSHIP]) + packed


def unpack_members(command: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(voters, learners) of a MEMBERSHIP entry's command; raises BadMessage."""
    try:
        voters, learners = msgpack.unpackb(command[1:], max_array_len=1024)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise BadMessage(f"membership entry cannot be read: {error}") from error
    if type(voters) is not list or type(learners) is not list or not voters:
        raise BadMessage("membership entry does not hold voters and learners")
    members = [*voters, *learners]
    if set(map(type, members)) != {int} or min(members) < 1 or len(set(members)) != len(members):
        raise BadMessage("membership entry names a member that is no node id, or twice")
    return tuple(voters), tuple(learners)
