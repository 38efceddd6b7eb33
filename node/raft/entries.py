"""Log entries as the log, the wire and the disk know them, and a run of them as bytes.

A run is packed once, and the same bytes go to the write-ahead log and to every follower.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from operator import itemgetter
from typing import Any, Final

import msgpack

from strandline.node.raft.bad_message import BadMessage

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
_MEMBERSHIP = int(EntryKind.MEMBERSHIP)

PACKING_BYTES: Final = 5
"""Most bytes of an entry in `pack_entries` beside its command, without the terms and the head of a run."""


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
    if type(commands) is list and len(commands) == 1:
        one = _plain_entry(first, runs, commands[0])
        if one is not None:
            return [one]
    if type(commands) is not list or set(map(type, commands)) != {bytes}:
        raise BadMessage("run of entries: empty, or a command that is not bytes")
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


def _plain_entry(first: Any, runs: Any, command: Any) -> Entry | None:
    """The one entry of a run, as most runs are; None for members, and where anything is wrong."""
    if type(first) is not int or type(command) is not bytes or type(runs) is not list or len(runs) != 2:
        return None
    term, count = runs
    if type(term) is not int or type(count) is not int or count != 1 or not command:
        return None
    kind = command[0]
    fits = 1 <= term <= MAX_NUMBER and 1 <= first <= MAX_NUMBER - MAX_RUN
    return (command, first, term) if fits and kind in _KINDS and kind != _MEMBERSHIP else None


def _check_runs(runs: Any) -> tuple[list[int], list[int]]:
    """(terms, how many entries of each); every number is a whole one, terms only rise (Raft §5.3)."""
    if type(runs) is not list or not runs or len(runs) % 2 or set(map(type, runs)) != {int}:
        raise BadMessage("run of entries: its terms cannot be read")
    terms, counts = runs[::2], runs[1::2]
    if min(counts) < 1 or terms[0] < 1 or terms[-1] > MAX_NUMBER or terms != sorted(terms):
        raise BadMessage("run of entries: its terms cannot be")
    return terms, counts


Folders = tuple[tuple[int, int], ...]
"""(node, identity of its data folder) of members, by node; those without one may have any folder."""


def pack_folders(folders: Folders) -> list[list[int]]:
    """The end of a record or an entry behind its members: nothing where no folder is named, as in earlier
    releases."""
    return [[number for pair in folders for number in pair]] if folders else []


def unpack_folders(packed: list[Any]) -> Folders:
    """The folders of `pack_folders`; raises ValueError for anything else."""
    if not packed:
        return ()
    (numbers,) = packed
    if type(numbers) is not list or len(numbers) % 2 or not numbers or set(map(type, numbers)) != {int}:
        raise ValueError("folders of members are not pairs of numbers")
    folders = tuple(zip(numbers[::2], numbers[1::2], strict=True))
    if list(folders) != sorted(dict(folders).items()) or not all(0 < one[1] <= MAX_NUMBER for one in folders):
        raise ValueError("folders of members are not in order, or one cannot be")
    return folders


def pack_members(voters: Sequence[int], learners: Sequence[int], folders: Folders = ()) -> bytes:
    """The command of the entry that puts a configuration into the log."""
    packed: bytes = msgpack.packb([sorted(voters), sorted(learners), *pack_folders(folders)])
    return bytes([EntryKind.MEMBERSHIP]) + packed


def unpack_members(command: bytes) -> tuple[tuple[int, ...], tuple[int, ...], Folders]:
    """(voters, learners, their folders) of a MEMBERSHIP entry's command; raises BadMessage."""
    try:
        voters, learners, *packed = msgpack.unpackb(command[1:], max_array_len=1024)
        folders = unpack_folders(packed)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise BadMessage(f"membership entry cannot be read: {error}") from error
    if type(voters) is not list or type(learners) is not list or not voters:
        raise BadMessage("membership entry does not hold voters and learners")
    members = [*voters, *learners]
    if set(map(type, members)) != {int} or min(members) < 1 or len(set(members)) != len(members):
        raise BadMessage("membership entry names a member that is not a node id, or twice")
    if not dict(folders).keys() <= set(members):
        raise BadMessage("membership entry names the folder of a node that is no member")
    return tuple(voters), tuple(learners), folders
