"""Interface of every replicated state machine for the log that drives it.

A machine is pure: no clock, no randomness, no I/O. Time and ids arrive inside commands, so the same
entries give the same state, byte for byte, on every replica. That is what lets a simulator, a property
test and an audit treat a replica's history as a function of its log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import msgpack

Captured = Callable[[], bytes]
"""Makes the canonical bytes of a state as it was when it was captured. It may be called later, in any thread,
while the machine goes on, and more than once."""


class Rows(NamedTuple):
    """A large part of a state: its number of rows, and a function that gives their present content later.

    To capture it, a machine copies the dictionary, but not its values. From then on it does not change a
    captured value, but replaces it by a changed copy. Each value carries the `age` in which it was made, and
    each capture raises the machine's age by one: so a value of the present age is in no capture, and may be
    changed in place.
    """

    size: int
    given: Callable[[], Iterable[Any]]


class ReadState(Protocol):
    """The state of a snapshot, read and built, to be put in the place of a machine's.

    Reading a large state takes long, and so does letting go of one. Each may be done in any thread while the
    machine goes on, and goes a row at a time, so that other threads have the interpreter in between.
    """

    def adopt(self) -> None:
        """Replace the machine's whole state, at once: called once at most, where entries are applied."""

    def let_go(self) -> None:
        """Free what the machine does not have: its former state or, if this was not adopted, the one read."""


class ReadAttributes:
    """The ReadState of a machine whose state is some of its attributes.

    `parts` names the objects in a row of which there may be very many. They are freed one by one, and never
    changed: a snapshot under way may have them too.
    """

    def __init__(
        self,
        machine: object,
        attributes: dict[str, Any],
        parts: Callable[[Any], Iterable[Any]] = lambda row: (),
    ) -> None:
        self._machine = machine
        self._attributes = attributes
        self._parts = parts

    def adopt(self) -> None:
        """See ReadState."""
        present = vars(self._machine)
        former = {name: present[name] for name in self._attributes}
        present.update(self._attributes)
        self._attributes = former

    def let_go(self) -> None:
        """See ReadState."""
        for value in self._attributes.values():
            while isinstance(value, dict) and value:
                row = value.popitem()[1]
                parts = list(self._parts(row))
                del row
                while parts:
                    parts.pop()
        self._attributes = {}


class Corruption(ValueError):
    """The log holds what no correct leader writes; the replica must stop, its state is not to be used."""


class StateMachine(Protocol):
    """A deterministic function from log entries to state.

    An exception from any method means that the log has an entry that no correct leader writes. The replica
    then stops, rather than go on with a state that differs from the other replicas'. A command that merely
    lost a race must be answered by value.
    """

    kind: str
    """Names the machine in its snapshots, e.g. ``"partition"``."""

    def begin_term(self, index: int, term: int, node: int) -> None:
        """Apply the first entry of a term: `node` leads from log index `index` on."""

    def apply(self, index: int, term: int, command: bytes) -> Any:
        """Apply one command, exactly once and in log order; the result goes to the command's proposer."""

    def snapshot(self) -> bytes:
        """The whole state as canonical bytes: equal states give equal bytes."""

    def capture(self) -> Captured:
        """As `snapshot`, of this moment, at once and without making the bytes: that takes long for a large
        state, and nothing may wait for it."""

    def read(self, state: bytes) -> ReadState:
        """Read what `snapshot` gave, in any thread, and change nothing; raises ValueError if it cannot be
        read."""

    def restore(self, state: bytes) -> None:
        """Read and adopt, in one go, before anything waits for the machine; raises ValueError as `read`."""


def packed(fields: Mapping[str, Any]) -> bytes:
    """A msgpack map of these fields, each of msgpack's types or Rows of them.

    A row at a time: a thread that does this lets others have the interpreter in between.
    """
    packer = msgpack.Packer(autoreset=False)
    packer.pack_map_header(len(fields))
    for name, value in fields.items():
        packer.pack(name)
        if isinstance(value, Rows):
            packer.pack_array_header(value.size)
            for row in value.given():
                packer.pack(row)
        else:
            packer.pack(value)
    result: bytes = packer.bytes()
    return result


class _Parts:
    """Gives a state to the decoder a part at a time: one copy of all of it would hold all threads."""

    def __init__(self, state: bytes) -> None:
        self._state = state
        self._at = 0

    def read(self, size: int) -> bytes:
        part = self._state[self._at : self._at + size]
        self._at += len(part)
        return part


def unpacker(state: bytes) -> msgpack.Unpacker:
    """Reads what `packed` gave, in the order of its fields, a row at a time; see `rows` and `keyed_rows`."""
    return msgpack.Unpacker(_Parts(state), max_buffer_size=len(state))


def rows(source: msgpack.Unpacker) -> Iterator[Any]:
    """The elements of the array that comes next; all of them are to be taken before what follows it."""
    for _ in range(source.read_array_header()):
        yield source.unpack()


def keyed_rows(source: msgpack.Unpacker) -> Iterator[tuple[Any, Iterator[Any]]]:
    """As `rows`, of an array of pairs of a key and an array."""
    for _ in range(source.read_array_header()):
        if source.read_array_header() != 2:
            raise ValueError("a row is not a pair")
        yield source.unpack(), rows(source)
