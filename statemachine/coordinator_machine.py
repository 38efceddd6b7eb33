"""Base of the two coordinators' state machines: entries, terms, snapshots, checkpoints.

The coordinators of groups and of transactions have different states, but read their logs in the same way.
This module decodes an entry and checks its term, carries the time, and captures the state for a checkpoint. A
subclass adds handlers for its commands and its part of the snapshot. An entry holds one command:
`[term, time, kind, *fields]`.

As everywhere, a command that lost a race is answered by value, and an entry that no correct leader writes
raises Corruption, which stops the replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, Protocol

import msgpack

from strandline.statemachine.machine import Captured, Corruption, ReadAttributes, ReadState, packed, unpacker

CHECKPOINT: Final = 0
"""The kind of a CoordinatorCheckpoint; a subclass's kinds begin at 1."""
_COMMON_FIELDS: Final = 3
"""Of a snapshot: format, term, time."""


class OlderTerm(NamedTuple):
    """The whole entry was made in an earlier term than the present one, `term`; nothing was changed."""

    term: int


class CoordinatorCommand(Protocol):
    """A command of a coordinator: a frozen dataclass with its kind, and its fields as msgpack holds them."""

    kind: ClassVar[int]

    def fields(self) -> list[Any]: ...


@dataclass(frozen=True, slots=True)
class CoordinatorCheckpoint:
    """Hand this entry's state to the publisher, on every replica. Result: the entry's index."""

    kind: ClassVar[int] = CHECKPOINT

    def fields(self) -> list[Any]:
        return []


class CoordinatorMachine:
    """A coordinator's state; see StateMachine for what the log asks of it.

    `on_checkpoint(index, captured)` is called inside the apply of a CoordinatorCheckpoint, on every replica,
    with the state as of that very entry; when entries are applied again after a restart it gets the same
    again. A subclass's constructor takes the same and nothing else: a snapshot is loaded into a new instance.
    """

    kind: str
    formats: ClassVar[tuple[int, ...]] = (1,)
    """Of snapshots: those that it reads, and last the one that it writes."""
    HANDLERS: ClassVar[Mapping[int, Callable[..., Any]]]
    """By kind: an unbound method `(self, index, *fields)`; its result goes to the entry's proposer."""

    def __init__(self, on_checkpoint: Callable[[int, Captured], None]) -> None:
        self.term = 0
        """The newest term."""
        self.time = 0
        """The highest time any entry carried, in ms, since `go_on_from` was called last."""
        self._on_checkpoint = on_checkpoint

    # What a subclass brings.

    def fields(self) -> dict[str, Any]:
        """Its part of the snapshot: of msgpack's types or Rows of them, and canonical: equal states, equal
        bytes."""
        raise NotImplementedError

    def load(self, name: str, source: msgpack.Unpacker) -> None:
        """Take up one of the fields that `fields` gave, on a new instance, in their order; raises ValueError
        for anything else."""
        raise NotImplementedError

    def parts(self, row: Any) -> Iterable[Any]:
        """The objects of which there may be very many in a value of its dictionaries; see ReadAttributes."""
        return ()

    def go_on_from(self, now: int) -> None:
        """Time goes on from here, in ms, be it earlier: this is a clock that most nodes agree on.

        A leader whose clock is ahead while it hears too few others pushes time ahead of all of them. What was
        stamped meanwhile stays for as much longer; but if time stood still until the others have caught up,
        nothing of what they stamp would go for as long. Handlers of commands that forget by age call this.
        """
        self.time = now

    # The log.

    def begin_term(self, index: int, term: int, node: int) -> None:
        """A leader's first entry; raises Corruption when the term does not go up."""
        if term <= self.term:
            raise Corruption(f"entry {index}: node {node} begins term {term} after term {self.term}")
        self.term = term

    def apply(self, index: int, term: int, command: bytes) -> Any:
        """Apply an entry; OlderTerm or its handler's result. Raises Corruption; the state is then not to be
        used."""
        try:
            made_in, time, kind, *fields = msgpack.unpackb(command)
            if term != self.term or made_in > term:
                raise Corruption(f"made in term {made_in}, logged in {term}, while {self.term} is present")
            if made_in < term:
                return OlderTerm(term)
            if time > self.time:
                self.time = time
            if kind == CHECKPOINT:
                self._on_checkpoint(index, self.capture())
                return index
            handler = self.HANDLERS.get(kind)
            if handler is None:
                raise Corruption(f"command kind {kind} is unknown: a newer release's? Upgrade this node")
            return handler(self, index, *fields)
        except Corruption as error:
            raise Corruption(f"entry {index}: {error}") from None
        except Exception as error:
            raise Corruption(f"entry {index} is not one of {self.kind}: {error!r}") from error

    # The snapshot.

    def snapshot(self) -> bytes:
        """The whole state as canonical bytes."""
        return self.capture()()

    def capture(self) -> Captured:
        """See StateMachine."""
        common = {"format": self.formats[-1], "term": self.term, "time": self.time}
        return partial(packed, {**common, **self.fields()})

    def read(self, state: bytes) -> ReadState:
        """See StateMachine."""
        made, blank = type(self)(self._on_checkpoint), type(self)(self._on_checkpoint)
        source = unpacker(state)
        try:
            made._load(source, [*blank.fields()])
            if source.tell() != len(state):
                raise ValueError("it goes on behind its end")
        except Exception as error:
            raise ValueError(f"a state of {self.kind} cannot be read: {error}") from error
        return ReadAttributes(self, vars(made), self.parts)

    def restore(self, state: bytes) -> None:
        """See StateMachine."""
        self.read(state).adopt()

    def _load(self, source: msgpack.Unpacker, names: Sequence[str]) -> None:
        fields = source.read_map_header()
        version = _number(source, "format")
        if version not in self.formats:
            reads = " and ".join(map(str, self.formats))
            raise ValueError(f"it has format {version}, this release reads {reads}")
        self.term, self.time = _number(source, "term"), _number(source, "time")
        for name in names:
            _expect(source, name)
            self.load(name, source)
        if fields != _COMMON_FIELDS + len(names):
            raise ValueError(f"it has {fields} fields")


def _expect(source: msgpack.Unpacker, name: str) -> None:
    if (found := source.unpack()) != name:
        raise ValueError(f"it has {found!r} in the place of its {name}")


def _number(source: msgpack.Unpacker, name: str) -> int:
    _expect(source, name)
    value = source.unpack()
    if type(value) is not int:
        raise ValueError(f"its {name} is not a number")
    return value


def encode(term: int, time: int, command: CoordinatorCommand) -> bytes:
    """One entry of the log, made in `term` at `time` (ms); `term` is also the one to propose it in."""
    packed: bytes = msgpack.packb([term, time, command.kind, *command.fields()])
    return packed
