"""Groups with other parts than the production ones, so that a rule can be taken out."""

from __future__ import annotations

from strandline.node.raft.group import RaftGroup
from strandline.node.raft.rules.replica_state import Part

PARTS = {name: value for name, value in vars(RaftGroup).items() if name.endswith("_class")}


def group_with(*parts: type) -> type[RaftGroup]:
    """RaftGroup, each of these parts in the place of the one it derives from."""
    changed = {}
    for part in parts:
        [place] = [name for name, production in PARTS.items() if issubclass(part, production)]
        changed[place] = part
    return type("_and_".join(part.__name__ for part in parts), (RaftGroup,), changed)


def group_of(part: Part) -> RaftGroup:
    """The group that a part belongs to."""
    assert isinstance(part.state, RaftGroup)
    return part.state
