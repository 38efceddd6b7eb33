"""Finite automata for names, in time that no pattern can blow up.

A client's regular expression runs on the node's loop, so nothing here backtracks. The pattern is a program of
positions, of which several are held at once; the sets that come up are remembered with where each character
leads from them, so that a name costs one look-up a character. All that is built is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

MAX_PROGRAM: Final = 2_000
MAX_STEPS: Final = 300_000
"""Positions looked at while sets are built, in an automaton's whole life: some tenths of a second."""
WORD: Final = frozenset("0123456789_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_Set = tuple[frozenset[int], str]
"""Positions, and the character before them: "" at the beginning, else one that stands for its kind."""


class InvalidPattern(ValueError):
    """It is no regular expression of RE2, or it takes more than is allowed."""


Emit = Callable[["Program", int], int]
"""Puts a part of the pattern into a program, before the position given; the position it begins at."""


class Program:
    """Positions of a nondeterministic automaton; 0 is the end of the pattern."""

    def __init__(self) -> None:
        self.characters: list[frozenset[str]] = [frozenset()]
        self.after: list[tuple[int, ...]] = [()]
        """Positions that follow each position; if it has characters, one of them is consumed on the way."""
        self.condition: list[str] = [""]
        """Condition to pass each position: "" (none), or the letter of RE2's empty-width assertion."""

    def add(self, characters: frozenset[str], after: tuple[int, ...], condition: str = "") -> int:
        if len(self.after) >= MAX_PROGRAM:
            raise InvalidPattern(f"it needs more than {MAX_PROGRAM} positions")
        self.characters.append(characters)
        self.after.append(after)
        self.condition.append(condition)
        return len(self.after) - 1


class Automaton:
    """Decides whether a name matches a pattern. The constructor raises InvalidPattern."""

    def __init__(self, emit: Emit) -> None:
        self._program = Program()
        self._start: _Set = frozenset((emit(self._program, 0),)), ""
        self._steps = 0
        self._moves: dict[tuple[_Set, str], _Set] = {}
        self._ends: dict[_Set, bool] = {}

    def matches(self, name: str) -> bool:
        """Whether the whole name matches; raises InvalidPattern when the pattern turns out too costly."""
        state, moves = self._start, self._moves
        for character in name:
            state = moves.get((state, character)) or self._move(state, character)
            if not state[0]:
                return False
        if state not in self._ends:
            self._ends[state] = 0 in self._reached(state, "")
        return self._ends[state]

    def _move(self, state: _Set, character: str) -> _Set:
        program = self._program
        reached = (p for p in self._reached(state, character) if character in program.characters[p])
        before = "a" if character in WORD else "-"
        follow = frozenset(program.after[position][0] for position in reached), before
        self._moves[state, character] = follow
        return follow

    def _reached(self, state: _Set, following: str) -> dict[int, None]:
        """All positions that are reached without a character, between the last one and the following."""
        program = self._program
        pending, before = sorted(state[0]), state[1]
        seen = dict.fromkeys(pending)
        while pending:
            position = pending.pop()
            self._steps += 1
            if program.characters[position] or not _holds(program.condition[position], before, following):
                continue
            for after in program.after[position]:
                if after not in seen:
                    seen[after] = None
                    pending.append(after)
        if self._steps > MAX_STEPS:
            raise InvalidPattern("it takes too much work to match")
        return seen


def _holds(condition: str, before: str, after: str) -> bool:
    match condition:
        case "^":
            return before == ""
        case "$":
            return after == ""
        case "b":
            return (before in WORD) != (after in WORD)
        case "B":
            return (before in WORD) == (after in WORD)
        case _:
            return True


def one_of(characters: frozenset[str]) -> Emit:
    """Any one of these characters."""
    # What matches nothing must not look like a position without characters: it leads nowhere.
    return lambda program, after: program.add(characters, (after,) if characters else ())


def assertion(condition: str) -> Emit:
    """No character, where the condition holds."""
    return lambda program, after: program.add(frozenset(), (after,), condition)


def sequence(parts: Iterable[Emit], program: Program, after: int) -> int:
    """Put one after the other into a program, before the position given; where the first begins."""
    for emit in reversed(list(parts)):
        after = emit(program, after)
    return after


def alternation(program: Program, starts: list[int]) -> int:
    """A position from which any of these is reached."""
    return starts[0] if len(starts) == 1 else program.add(frozenset(), tuple(starts))


def repetition(emit: Emit, low: int, high: int | None) -> Emit:
    """A part from `low` to `high` times; None: any number."""

    def repeated(program: Program, after: int) -> int:
        if high is None:
            loop = program.add(frozenset(), ())
            program.after[loop] = (emit(program, loop), after)
            after = loop
        else:
            end = after
            for _ in range(high - low):
                after = program.add(frozenset(), (emit(program, after), end))
        for _ in range(low):
            after = emit(program, after)
        return after

    return repeated
