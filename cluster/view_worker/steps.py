"""Steps of a version's circuit: some records in, the changes of its views out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from strandline.cluster.view_worker import limits
from strandline.cluster.view_worker.fetched import Place
from strandline.cluster.view_worker.inputs import Inputs
from strandline.snapshot.views.circuit import Circuit
from strandline.snapshot.views.errors import ViewLimit
from strandline.snapshot.views.json_records import records_of
from strandline.snapshot.views.replay import readers
from strandline.snapshot.views.sink import Changes
from strandline.statemachine.views.plan import Plan

STEP_RECORDS: Final = 50_000
STEP_BYTES: Final = 8 << 20
"""A step takes so much, and what was read at once with the last of it."""
STEP_SECONDS: Final = 1.0
"""A brief step aims at no more: another version's pause waits for its end."""
LEAST_RECORDS: Final = 5_000
"""Of a brief step, also where these take longer. A step has a price of its own, on a busy machine most of a
second: with 500, a version there fell behind 1,000 records a second."""
WAIT_SECONDS: Final = 0.05
"""For records, after which the program's row is looked at again."""
BOUNDED_WAIT_SECONDS: Final = 0.005
"""The same where a cut is to be come to: what lies below it is there."""


class CannotRun(Exception):
    """The version cannot go on, for a reason that no restart mends."""


class Steps:
    """Takes records into a circuit, in steps that a transaction can have."""

    def __init__(
        self, circuit: Circuit, operators: Mapping[str, Plan], monotonic: Callable[[], float]
    ) -> None:
        self._circuit = circuit
        self._monotonic = monotonic
        self.cap = STEP_RECORDS
        """The most records of a step."""
        self._most = STEP_RECORDS
        self._brief = LEAST_RECORDS
        """The records of a brief step, by the time that steps have taken."""
        self._last = 0, 0.0
        """The records of the last step, and the seconds that it has taken."""
        self._readers = readers(operators)

    @property
    def skipped(self) -> int:
        """Bad records that were passed over."""
        return sum(reader.skipped for _, reader in self._readers.values())

    def step(
        self, inputs: Inputs, bounds: Mapping[Place, int] | None = None, *, brief: bool = False
    ) -> tuple[int, dict[str, Changes]]:
        """Take what is there, or less: where that changes too much for a transaction, or would last too long.

        Gives the number of records, and what the sinks say. Raises CannotRun, ViewError, and what `inputs`
        raises.
        """
        self._learn()
        most = min(self._most, self.cap, self._brief if brief else STEP_RECORDS)
        seconds = WAIT_SECONDS if bounds is None else BOUNDED_WAIT_SECONDS
        while True:
            taken = inputs.take(most, STEP_BYTES, seconds, bounds)
            count = sum(records.num_rows for records in taken.values())
            if not count:
                return 0, {}
            began = self._monotonic()
            skipped = [reader.skipped for _, reader in self._readers.values()]
            deltas = {
                name: reader.rows(taken[source.topic])
                for name, (source, reader) in self._readers.items()
                if source.topic in taken
            }
            try:
                said = self._circuit.step(deltas, limits.STEP_CHANGES if count > 1 else limits.RECORD_CHANGES)
            except ViewLimit as limit:
                if count == 1:
                    [(topic, records)] = taken.items()
                    [record] = records_of(records)
                    place = f"record {record.offset} of {topic}-{record.partition}"
                    raise CannotRun(
                        f"{place} is too much for one transaction: {limit}: change the view, so that "
                        "fewer of its rows depend on one record"
                    ) from None
                inputs.give_back()
                for (_, reader), before in zip(self._readers.values(), skipped, strict=True):
                    reader.skipped = before
                most = self._most = count // 2
            else:
                self._most = min(self.cap, 2 * self._most)
                self._last = count, self._monotonic() - began
                return count, said

    def wrote(self, seconds: float) -> None:
        """The last step's changes have taken so much more."""
        count, taken = self._last
        self._last = count, taken + seconds

    def _learn(self) -> None:
        """Have a brief step be as large as the last one's rate allows; a quick one allows twice as much.

        Few records that were there tell nothing of many.
        """
        (count, seconds), self._last = self._last, (0, 0.0)
        if seconds > STEP_SECONDS / 4:
            self._brief = max(LEAST_RECORDS, min(STEP_RECORDS, round(count * STEP_SECONDS / seconds)))
        elif count >= self._brief:
            self._brief = min(STEP_RECORDS, 2 * count)
