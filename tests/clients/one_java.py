"""Kafka's tools one after the other in one Java (java/Tools.java), whose start most of their time is."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.clients.driver import Lines
from tests.clients.programs import tools_command
from tests.peers.kafka_tools import TOOLS, KafkaTools, Ran, Run

_ALONE: Final = frozenset({f"{TOOLS}.consumer.ConsoleConsumer", f"{TOOLS}.VerifiableProducer"})
"""Each has a Java of its own: one counts in a static field, one tells what it did when its Java ends."""


class ToolsInOneJava(KafkaTools):
    """The tools while their Java runs. Raises NoKafka, and programs.Missing when it is not built."""

    def __init__(self, bootstrap: str, log: Path) -> None:
        super().__init__(bootstrap)
        self._lines = Lines("Kafka's tools", tools_command(), log)

    def run(self, wanted: Run) -> Ran:
        if wanted.main in _ALONE:
            return super().run(wanted)
        started = time.perf_counter()
        asked = {"main": wanted.main, "arguments": wanted.arguments, "stdin": wanted.stdin}
        self._lines.write(json.dumps(asked))
        told = json.loads(self._lines.read(wanted.main))
        return Ran(told["code"], told["out"], told["err"], time.perf_counter() - started)

    def together(self, wanted: Sequence[Run]) -> list[Ran]:
        alone = [one for one in wanted if one.main in _ALONE]
        return super().together(wanted) if len(alone) == len(wanted) else [self.run(one) for one in wanted]

    def end(self) -> None:
        self._lines.kill()
