"""Kafka's own command-line tools, which are the Java client as its makers use it.

Each run is a Java of its own that lives for a second, most of which is starting up. So it is told to compile
little and to collect garbage simply, the classes that every tool loads are kept in an archive that Java maps
instead of reading them (half of the time), and `together` runs several side by side.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from tests.peers.kafka_jars import NoKafka, cache, java, present

TOOLS: Final = "org.apache.kafka.tools"
_JAVA_OPTIONS: Final = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-Xmx256m",
    "-Xlog:disable",  # what does not fit the archive would be told on standard output
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
_AT_A_TIME: Final = 3
_RUN_SECONDS: Final = 40.0


class Ran(NamedTuple):
    """How a tool ended."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Run(NamedTuple):
    """A tool to be run: its class, its arguments and its standard input."""

    main: str
    arguments: tuple[str, ...]
    stdin: str = ""


class KafkaTools:
    """Runs them against `bootstrap`. Raises NoKafka when they are not on this machine; fetches nothing."""

    def __init__(self, bootstrap: str) -> None:
        libs = present()
        if libs is None:
            raise NoKafka("Kafka's jars are not on this machine: run scripts/setup --clients")
        self.bootstrap = bootstrap
        self._libs: Path = libs
        self._java = java()
        self._archive = self._made_archive()

    def topics(self, *arguments: str) -> Run:
        return self.tool(f"{TOOLS}.TopicCommand", *arguments)

    def configs(self, *arguments: str) -> Run:
        return self.tool("kafka.admin.ConfigCommand", *arguments)

    def acls(self, *arguments: str) -> Run:
        return self.tool(f"{TOOLS}.AclCommand", *arguments)

    def tool(self, main: str, *arguments: str, stdin: str = "") -> Run:
        """One that takes the address as most of them do; `arguments` may begin with its subcommand."""
        command = [word for word in arguments[:1] if not word.startswith("--")]
        options = arguments[len(command) :]
        return Run(main, (*command, "--bootstrap-server", self.bootstrap, *options), stdin)

    def run(self, wanted: Run) -> Ran:
        """Run it to its end. A tool that does not end in time is killed, and that is a TimeoutExpired."""
        started = time.perf_counter()
        done = subprocess.run(
            self._command(wanted, f"-XX:SharedArchiveFile={self._archive}"),
            input=wanted.stdin, capture_output=True, text=True, timeout=_RUN_SECONDS, check=False,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout, done.stderr, time.perf_counter() - started)

    def together(self, wanted: Sequence[Run]) -> list[Ran]:
        """Run them side by side; how they ended, in their order."""
        with ThreadPoolExecutor(_AT_A_TIME) as threads:
            return list(threads.map(self.run, wanted))

    def _command(self, wanted: Run, archive: str) -> list[str]:
        return [
            self._java, *_JAVA_OPTIONS, archive, "-cp", f"{self._libs}/*", wanted.main, *wanted.arguments
        ]  # fmt: skip

    def _made_archive(self) -> Path:
        """Of the classes that a tool loads; made once for this Java and these jars. Only speed needs it."""
        java_file = Path(self._java).resolve()
        made_of = f"{java_file} {java_file.stat().st_mtime_ns} {self._libs}"
        archive = cache() / f"tools-{hashlib.sha256(made_of.encode()).hexdigest()[:8]}.jsa"
        if not archive.exists():
            archive.parent.mkdir(parents=True, exist_ok=True)
            partial = archive.with_suffix(f".{os.getpid()}")
            command = self._command(self.topics("--list"), f"-XX:ArchiveClassesAtExit={partial}")
            subprocess.run(command, capture_output=True, timeout=_RUN_SECONDS, check=False)
            if partial.exists():
                partial.rename(archive)
        return archive


def ran(done: Ran) -> list[str]:
    """What a tool said that ended well, and had nothing to complain of."""
    assert (done.code, done.err) == (0, ""), done
    return done.lines
