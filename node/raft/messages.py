"""What groups say to each other, and how a run of log entries is written down.

A message is a short msgpack array that begins ``[group, kind, term]``; every one carries its group and
term, and an answer counts only in the term it names (docs/raft.md, "replies carry no term"). A run of
entries is packed once and the same bytes go to the write-ahead log and to every follower.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import msgpack

Entry = tuple[bytes, int, int]
"""(command, index, term), the shape PySyncObj keeps entries in. The command's first byte is its EntryKind."""

MAX_RUN = 1 << 20


class EntryKind(IntEnum):
    """First byte of every entry's command; the numbers are PySyncObj's."""

    REGULAR = 0
    BEGIN_TERM = 1
    MEMBERSHIP = 2


class MessageKind(IntEnum):
    """Second field of a message. The fields after ``[group, kind, term]`` stand beside each."""

    APPEND = 1  # prev_index, prev_term, commit, entries, sent_at
    APPEND_REPLY = 2  # accepted, match | rejected prev_index, hint_index, hint_term, sent_at
    VOTE = 3  # last_index, last_term, transfer
    VOTE_REPLY = 4  # granted
    PRE_VOTE = 5  # last_index, last_term
    PRE_VOTE_REPLY = 6  # granted, asked term
    TIMEOUT_NOW = 7  #
    SNAPSHOT = 8  # index, snapshot term, offset, total, digest, data, sent_at
    SNAPSHOT_REPLY = 9  # index, next offset, status, sent_at
    QUIET = 10  # last_index
    NEED_SNAPSHOT = 11  # least index, sent_at


FIELDS: dict[int, tuple[type, ...]] = {
    MessageKind.APPEND: (int, int, int, bytes, float),
    MessageKind.APPEND_REPLY: (bool, int, int, int, float),
    MessageKind.VOTE: (int, int, bool),
    MessageKind.VOTE_REPLY: (bool,),
    MessageKind.PRE_VOTE: (int, int),
    MessageKind.PRE_VOTE_REPLY: (bool, int),
    MessageKind.TIMEOUT_NOW: (),
    MessageKind.SNAPSHOT: (int, int, int, int, bytes, bytes, float),
    MessageKind.SNAPSHOT_REPLY: (int, int, int, float),
    MessageKind.QUIET: (int,),
    MessageKind.NEED_SNAPSHOT: (int, float),
}


class BadMessage(ValueError):
    """A peer sent something no node of this version sends."""


def check(message: Any) -> list[Any]:
    """The message, if it has the right shape; raises BadMessage."""
    if type(message) is not list or len(message) < 3:
        raise BadMessage("message is not an array of group, kind and term")
    fields = FIELDS.get(message[1]) if type(message[1]) is int else None
    if fields is None or len(message) != len(fields) + 3:
        raise BadMessage(f"message of unknown kind {message[1]!r} or with a wrong number of fields")
    if type(message[0]) is not int or type(message[2]) is not int or message[2] < 0:
        raise BadMessage("message's group or term is no whole number")
    for value, expected in zip(message[3:], fields, strict=True):
        if type(value) is not expected or (type(value) is int and value < 0):
            raise BadMessage(f"message of kind {MessageKind(message[1]).name} has a field of a wrong type")
    return message


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
        if type(first) is not int or sum(runs[1::2]) != len(commands) or first < 1:
            raise BadMessage("run of entries: counts and commands do not match")
        if len(runs) == 2:
            term = runs[0]
            entries = [(command, index, term) for index, command in enumerate(commands, first)]
        else:
            terms = [term for term, count in zip(runs[::2], runs[1::2], strict=True) for _ in range(count)]
            entries = [
                (command, index, term)
                for index, (command, term) in enumerate(zip(commands, terms, strict=True), first)
            ]
    except BadMessage:
        raise
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise BadMessage(f"run of entries cannot be read: {error}") from error
    if not entries or not all(type(command) is bytes and command for command in commands):
        raise BadMessage("run of entries: empty, or a command that is no bytes")
    return entries
