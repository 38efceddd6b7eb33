"""The sinks of a version's circuit: what they may say, and the whole content of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from strandline.snapshot.views.circuit import Circuit
from strandline.snapshot.views.errors import ViewError
from strandline.snapshot.views.sink import Changes, Phase, Sink

_TINY: Final = 1 << 20
"""Parts of a content of which one is next to nothing."""


class Sinks:
    """They begin silent."""

    def __init__(self, circuit: Circuit) -> None:
        self._circuit = circuit
        self._sinks = [each for each in circuit.operators.values() if isinstance(each, Sink)]

    def follow(self, *, all_sinks: bool) -> None:
        """Let sinks say what changes from here on: all, or only those that can never say it later."""
        for sink in self._sinks:
            if sink.phase is not Phase.FOLLOWING and (all_sinks or not self._can_dump(sink)):
                sink.move(Phase.FOLLOWING)

    def dump(self, parts: int) -> Iterator[dict[str, Changes]]:
        """Give the whole content of the sinks that were silent, part by part."""
        silent = [sink for sink in self._sinks if sink.phase is Phase.SILENT]
        for sink in silent:
            sink.move(Phase.DUMPING)
        contents = {sink.name: self._circuit.contents(sink.name, parts) for sink in silent}
        for _ in range(parts):
            yield {sink.name: sink.dump(next(contents[sink.name])) for sink in silent}

    def _can_dump(self, sink: Sink) -> bool:
        """Whether operators keep all that the sink's content is made of."""
        try:
            next(self._circuit.contents(sink.name, _TINY))
        except ViewError:
            return False
        return True
