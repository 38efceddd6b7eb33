"""Programs, and the difference of two: which operators go on as they are, and which are new."""

from __future__ import annotations

import enum
from collections import defaultdict
from dataclasses import dataclass

from strandline.statemachine.views.identity import digest
from strandline.statemachine.views.plan import Plan, Sink, operators
from strandline.statemachine.views.types import Type


@dataclass(frozen=True, slots=True)
class View:
    """A view: its columns, its rows' plan, and its topic; a local view has none."""

    name: str
    columns: tuple[tuple[str, Type], ...]
    rows: Plan
    topic: str | None
    sink: Sink | None

    @property
    def root(self) -> Plan:
        """The last operator of the view."""
        return self.rows if self.sink is None else self.sink


@dataclass(frozen=True, slots=True)
class Program:
    """The views of one file, those that others read before them."""

    views: tuple[View, ...]

    def operators(self) -> dict[str, Plan]:
        """Give all operators by digest, inputs before those that take them; equal ones are shared."""
        return {digest(each): each for view in self.views for each in operators(view.root)}


class Fate(enum.Enum):
    """The fate of a view when one program takes the place of another."""

    UNCHANGED = "unchanged"
    NEW = "new"
    MODIFIED = "modified"
    RENAMED = "renamed"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class ViewChange:
    """The fate of one view. `was` is the former name of one that is renamed."""

    name: str
    fate: Fate
    was: str | None
    kept: tuple[str, ...]
    """Digests of its operators that the old program has."""
    new: tuple[str, ...]
    """Digests of its operators that the old program does not have."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The operators that are kept, new and dropped, by digest, and each view's fate."""

    kept: tuple[str, ...]
    new: tuple[str, ...]
    dropped: tuple[str, ...]
    views: tuple[ViewChange, ...]


def difference(old: Program, new: Program) -> Difference:
    """Compare two programs. What depends on a changed operator is new: its digest has that one's in it."""
    before, after = old.operators(), new.operators()
    return Difference(
        tuple(each for each in after if each in before),
        tuple(each for each in after if each not in before),
        tuple(each for each in before if each not in after),
        tuple(_changes(old, new, before)),
    )


def _changes(old: Program, new: Program, before: dict[str, Plan]) -> list[ViewChange]:
    roots = {view.name: digest(view.root) for view in old.views}
    names = {view.name for view in new.views}
    # A view that went away may have come back under another name; each once, in the order of the file.
    gone: dict[str, list[str]] = defaultdict(list)
    for name, root in roots.items():
        if name not in names:
            gone[root].append(name)
    changes = []
    for view in new.views:
        root, was = digest(view.root), None
        if view.name in roots:
            fate = Fate.UNCHANGED if roots[view.name] == root else Fate.MODIFIED
        elif gone[root]:
            fate, was = Fate.RENAMED, gone[root].pop(0)
        else:
            fate = Fate.NEW
        own = [digest(each) for each in operators(view.root)]
        kept = tuple(each for each in own if each in before)
        changes.append(
            ViewChange(view.name, fate, was, kept, tuple(each for each in own if each not in before))
        )
    dropped = {name for left in gone.values() for name in left}
    changes += [ViewChange(name, Fate.DROPPED, None, (), ()) for name in roots if name in dropped]
    return changes
