"""Operators of a circuit: what each gets, gives and keeps.

An operator's state is a function of the records it has seen and not of the steps they came in. It is replaced
as a whole: a step answers with a new state, which the circuit installs when all operators have answered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

from strandline.snapshot.views.errors import ViewInvariant
from strandline.snapshot.views.run import HashRange, Run
from strandline.snapshot.views.spine import Spine
from strandline.snapshot.views.zset import Positions, ZSet

VALUE_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class State:
    """Spines, and the digest of what the operator keeps (`hashing.digest`).

    Nothing in it can be written to.
    """

    spines: tuple[Spine, ...] = ()
    digest: int = 0


EMPTY: Final = State()
"""The state of an operator that keeps nothing."""


@dataclass(slots=True)
class StateManifest:
    """A state to hand over: its runs, spine by spine, and a small msgpack value.

    One owner takes it, by `adopt`: two circuits that loaded one manifest would both write on.
    """

    runs: tuple[tuple[Run, ...], ...]
    value: bytes
    _owner: str | None = field(default=None, init=False)

    def adopt(self, owner: str) -> None:
        """Make `owner` the owner. Raises ViewInvariant when there is one."""
        if self._owner is not None:
            raise ViewInvariant(f"the state of {self._owner} cannot also be that of {owner}")
        self._owner = owner


@dataclass(frozen=True, slots=True)
class StatePlan:
    """A way for a batch job to make the same state from all input at once, in pieces.

    `keys` has, input by input, the columns whose hash (`hashing.key_hash`) says to which piece a row belongs;
    None for an operator that keeps nothing. One `step` over all rows of a piece, from the empty state, makes
    that piece.
    """

    keys: tuple[Positions, ...] | None


class Operator(ABC):
    """One operator; raises ViewError alone, and has no input, output or clock.

    `name` is how its manifest's owner is called.
    """

    def __init__(self, name: str, initial: State) -> None:
        self.name = name
        self._current = initial

    @property
    def current(self) -> State:
        """The state after the last step that was installed."""
        return self._current

    @abstractmethod
    def step(self, deltas: tuple[ZSet, ...]) -> tuple[ZSet, State]:
        """Give the change of the output for changes of the inputs, and the state after it; change nothing."""

    @abstractmethod
    def state(self) -> StateManifest:
        """Give everything that `load` needs to go on from here."""

    @abstractmethod
    def load(self, manifest: StateManifest) -> None:
        """Take over a state and become its owner; raises ViewInvariant where it is not this operator's."""

    @abstractmethod
    def contents(self, inputs: tuple[ZSet, ...], hash_range: HashRange) -> ZSet:
        """Give the integral of the output: the part for a range of hashes of the nearest kept keys.

        `inputs` are the same part of the inputs, which an operator that keeps nothing derives its own from.
        """

    @abstractmethod
    def state_plan(self) -> StatePlan:
        """Tell how a batch job makes this state."""

    def install(self, state: State) -> None:
        """Make a state the current one."""
        self._current = state


def manifest(state: State, extra: Sequence[Any] = ()) -> StateManifest:
    """Write a state down: its spines' runs, its digest, and what else an operator keeps."""
    digest = state.digest.to_bytes(16, "big")
    value: bytes = msgpack.packb([VALUE_VERSION, digest, *extra])
    return StateManifest(tuple(spine.runs for spine in state.spines), value)


def restored(owner: Operator, found: StateManifest, layouts: Sequence[Spine]) -> tuple[State, list[Any]]:
    """Read what `manifest` wrote, into spines of some layouts; raises ViewInvariant where they differ."""
    try:
        version, digest, *extra = msgpack.unpackb(found.value)
    except (ValueError, TypeError) as error:
        raise ViewInvariant(f"the state of {owner.name} cannot be read: {error}") from None
    if version != VALUE_VERSION:
        raise ViewInvariant(f"the state of {owner.name} has version {version}; this is {VALUE_VERSION}")
    if len(found.runs) != len(layouts):
        raise ViewInvariant(f"the state of {owner.name} has {len(found.runs)} spines, not {len(layouts)}")
    for runs, spine in zip(found.runs, layouts, strict=True):
        if any(run.layout != spine.layout for run in runs):
            raise ViewInvariant(f"the state of {owner.name} has runs of another layout")
    found.adopt(owner.name)
    spines = tuple(Spine(spine.layout, runs) for runs, spine in zip(found.runs, layouts, strict=True))
    return State(spines, int.from_bytes(digest, "big")), extra


def no_state(owner: Operator, found: StateManifest) -> State:
    """Read the manifest of an operator that keeps nothing."""
    return restored(owner, found, ())[0]
