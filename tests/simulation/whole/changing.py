"""Something that changes all the time, each change flipping an answer: which states an answer can come from.

No answer comes from a state that a node had already left: so no change un-happens. Nothing comes again once
it may be gone, as a request whose answer was lost may take effect at any later time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import ApiKey
from tests.simulation.whole.client import Client, Directory
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.wire import Lost

IN_FORCE_SECONDS: Final = 1.0
"""By then a change that was acknowledged counts on every node, without faults."""
PASSING: Final = (ErrorCode.request_timed_out, ErrorCode.not_controller, ErrorCode.coordinator_not_available)
_ANSWER_SECONDS: Final = 3.0

Value = TypeVar("Value")


@dataclass(slots=True)
class State(Generic[Value]):
    """The value from a change on; `acked` when its answer came, None until then."""

    value: Value
    begun: float
    acked: float | None = None


class Changing(Client, Generic[Value]):
    """Values by name, which it changes one at a time, and the answers of nodes."""

    def __init__(self, cluster: WholeCluster, directory: Directory, check: str, machine: int) -> None:
        super().__init__(cluster, directory, check, machine)
        self.check = check
        self.changes = self.answers = self.refusals = 0
        self.states: dict[str, list[State[Value]]] = {}
        """By name, in the order of the changes."""
        self._least: dict[tuple[int, str], int] = {}
        """By node and name, the first state that the node's answers so far can come from."""
        self._calm: float | None = None

    def calm(self) -> None:
        """Nothing goes wrong from now on: changes have to be in force in time."""
        self._calm = self.world.now

    def tally(self) -> dict[str, int]:
        """What there was, for the report."""
        return {
            f"changes of {self.check}": self.changes,
            f"answers by {self.check}": self.answers,
            f"refused by {self.check}": self.refusals,
        }

    async def ask(self, node: int, key: ApiKey, version: int, **fields: Any) -> Any:
        """The answer of a node; None when there was none."""
        try:
            return await self.wire.ask(node, key, version, _ANSWER_SECONDS, **fields)
        except Lost:
            await self.pause()
            return None

    async def make(self, name: str, value: Value, once: Callable[[bool], Any], what: str) -> bool:
        """Change a value by `once`, a coroutine that gets whether it is the first try and gives the code.

        Gives whether the first request was answered: then none is on its way any more.
        """
        made = State(value, self.world.now)
        self.states[name].append(made)
        first = True
        while True:
            code = await once(first)
            if code is ErrorCode.none:
                made.acked = self.world.now
                self.changes += 1
                return first
            if code is not None and code not in PASSING:
                self.ledger.broken(self.check, f"{what}: {code.name}")
                return False
            first = False
            await self.pause()

    def judge(self, node: int, name: str, began: float, allowed: bool, fits: Callable[[Value], bool]) -> None:
        """Look whether some state that may have been in force gives this answer: `fits` tells which do."""
        self.answers += 1
        self.refusals += not allowed
        states, least = self.states[name], self._least.get((node, name), 0)
        if self._calm is not None:
            in_force = began - IN_FORCE_SECONDS
            known = [
                number
                for number, state in enumerate(states)
                if state.acked is not None and max(state.acked, self._calm) <= in_force
            ]
            least = max([least, *known[-1:]])
        possible = (number for number in range(least, len(states)) if fits(states[number].value))
        found = next(possible, None)
        if found is None:
            told = "allows" if allowed else "refuses"
            late = (
                "a second after its answer" if self._calm is not None else "from what it has answered before"
            )
            self.ledger.broken(
                self.check,
                f"node {node} {told} {name} in state {least} of {len(states) - 1} or later ({late}), "
                "and none of these does",
            )
            return
        self._least[node, name] = found
