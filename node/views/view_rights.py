"""The rights of the processes of views where clients need permissions: what the programs say, and no more.

A node may know a program later than the node that runs it. What is refused until then ends the process, and
the next one is begun within seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from strandline.statemachine.controller.acl import Operation, ResourceType
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.view_state import group_name

_READ: Final = frozenset((Operation.READ, Operation.DESCRIBE))
_WRITE: Final = frozenset((Operation.WRITE, Operation.DESCRIBE))


class ViewRights:
    """The rights of `Internal:views`, by the programs that this node has applied."""

    def __init__(self, machine: Callable[[], Controller]) -> None:
        self._machine = machine
        self._seen: tuple[Controller, int] | None = None
        self._read: frozenset[str] = frozenset()
        self._written: frozenset[str] = frozenset()
        self._groups: frozenset[str] = frozenset()

    def allows(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether a process may do this to the resource."""
        machine = self._machine()
        if self._seen != (machine, machine.version):
            self._look(machine)
            self._seen = machine, machine.version
        if kind is ResourceType.GROUP:
            return operation in _READ and name in self._groups
        if kind is ResourceType.TRANSACTIONAL_ID:
            return operation in _WRITE and name in self._groups
        if kind is not ResourceType.TOPIC:
            return False
        if name in self._read and operation in _READ:
            return True
        # What is not there yet is answered as that, after which a client asks again; it has no right to
        # create it.
        absent = machine.topic(name) is None and operation in _READ | _WRITE
        return absent or (name in self._written and operation in _WRITE)

    def _look(self, machine: Controller) -> None:
        read, written, groups = set(), set(), set()
        for program in machine.view_programs.values():
            # Also before the first version is live: this node may hear of a cutover later than its process.
            groups.add(group_name(program.name, program.created, None))
            for version in program.versions():
                # The process that has filled a live version reads on as a client of the filling's group.
                groups.add(group_name(program.name, program.created, version.attempt))
                # A topic that was deleted and made again under the name is another one.
                inputs = [machine.topic_by_id(topic_id) for _, topic_id in version.inputs]
                outputs = [machine.topic_by_id(view.topic_id) for view in version.views]
                read |= {topic.name for topic in inputs if topic is not None}
                written |= {topic.name for topic in outputs if topic is not None}
        self._read, self._written, self._groups = frozenset(read), frozenset(written), frozenset(groups)
