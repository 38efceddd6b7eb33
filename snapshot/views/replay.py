"""A program's state worked out again from all records; fingerprints tell the states of two circuits apart.

A state is a function of the records and not of the steps that they came in. So a circuit that takes them in
other steps, a topic after the other, keeps the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from strandline.snapshot.views import hashing
from strandline.snapshot.views.building import circuit_of
from strandline.snapshot.views.circuit import Circuit
from strandline.snapshot.views.json_records import Record, RecordReader, batch_of
from strandline.snapshot.views.run import Run
from strandline.snapshot.views.spine import Spine
from strandline.statemachine.views.identity import digest
from strandline.statemachine.views.plan import Plan, Source, Upsert
from strandline.statemachine.views.program import Program


class Fingerprint(NamedTuple):
    """The content of an operator: equal for equal states, whatever runs they are in."""

    digest: int
    """As the operator keeps it itself."""
    spines: tuple[tuple[int, ...], ...]
    """Of its rows, spine by spine: for each number that adds up, Σ number · H(row) mod 2¹²⁸."""


class Replay:
    """A circuit that takes records; raises ViewError."""

    def __init__(self, program: Program) -> None:
        operators = program.operators()
        self.circuit = circuit_of(program)
        self._readers = readers(operators)

    def take(self, topic: str, records: Sequence[Record]) -> None:
        """Take records of a topic, in the order of each partition; raises BadRecord."""
        batch = batch_of(records)
        deltas = {
            name: reader.rows(batch)
            for name, (source, reader) in self._readers.items()
            if source.topic == topic
        }
        self.circuit.step(deltas)


def readers(operators: Mapping[str, Plan]) -> dict[str, tuple[Source, RecordReader]]:
    """Give the sources of a program by their digests, each with a reader of its records."""
    keys = {digest(each.input): each.key for each in operators.values() if isinstance(each, Upsert)}
    return {
        name: (each, RecordReader(each, keys.get(name)))
        for name, each in operators.items()
        if isinstance(each, Source)
    }


def fingerprints(circuit: Circuit) -> dict[str, Fingerprint]:
    """Give what each operator keeps, from its rows."""
    return {
        name: Fingerprint(operator.current.digest, tuple(map(_spine, operator.current.spines)))
        for name, operator in circuit.operators.items()
    }


def _spine(spine: Spine) -> tuple[int, ...]:
    numbers = [0] * spine.layout.sums
    for run in spine.runs:
        for at, value in enumerate(_run(run)):
            numbers[at] = (numbers[at] + value) % hashing.DIGEST_MODULUS
    # Of a number that two columns hold only the whole is the same for equal numbers.
    for high in spine.layout.wide:
        numbers[high + 1] = (numbers[high + 1] + (numbers[high] << 32)) % hashing.DIGEST_MODULUS
        numbers[high] = 0
    return tuple(numbers)


def _run(run: Run) -> list[int]:
    hashes = hashing.row_hashes(run.rows)
    return [hashing.digest(hashes, sums) for sums in run.sums]
