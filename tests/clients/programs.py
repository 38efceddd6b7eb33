"""The clients that are no Python: built once by `scripts/setup --clients`, kept in the cache of this user.

    python -m tests.clients.programs

Each is named by a hash of what it is made of, so that another source, lock file or tool makes another one,
and a checkout never runs what another one built. Packages come from wherever go and npm are set up here to
get them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.peers.kafka_jars import PLUGIN, NoKafka, cache, java, present

HERE: Final = Path(__file__).parent
_BUILD_SECONDS: Final = 600.0
_SETUP: Final = "run scripts/setup --clients"
_WARNINGS: Final = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
_JAVA_OPTIONS: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-Xlog:disable")


class Missing(Exception):
    """A driver is not on this machine, or cannot be made; one line that says why."""


class Program(NamedTuple):
    """A driver: its folder beside this module, what it is built from, the tools for it, and how it is run."""

    name: str
    sources: tuple[str, ...]
    tool: str
    """What has to be on the PATH to build it."""
    build: Callable[[Path, Path], Sequence[Sequence[str]]]
    """The commands that make it from a copy of its sources (first) in a folder (second)."""
    run: Callable[[Path], Sequence[str]]
    made_for: str = ""
    """The Python whose libraries it has."""

    def folder(self) -> Path:
        """Where it is once it is built. Raises Missing when its tool is not here."""
        tool = shutil.which(self.tool)
        if tool is None:
            raise Missing(f"{self.name} needs {self.tool}, which is not on the PATH")
        made_of = hashlib.sha256(f"{Path(tool).resolve()}{self.made_for}".encode())
        for source in self.sources:
            made_of.update((HERE / self.name / source).read_bytes())
        return cache() / f"client-{self.name}-{made_of.hexdigest()[:12]}"

    def command(self) -> list[str]:
        """How to run it; looks at the disk only. Raises Missing."""
        folder = self.folder()
        if not folder.is_dir():
            raise Missing(f"the driver for {self.name} is not built: {_SETUP}")
        return list(self.run(folder))


def _java_build(sources: Path, folder: Path) -> Sequence[Sequence[str]]:
    options = ("--release", "17", "-cp", f"{_libs()}/*", "-d", str(folder))
    return [["javac", *options, *(str(sources / name) for name in _JAVA_SOURCES)]]


def _java_run(folder: Path) -> Sequence[str]:
    log = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
    return [_runs_java(), *_JAVA_OPTIONS, log, "-cp", f"{folder}{os.pathsep}{_libs()}/*", "Driver"]


def _go_build(sources: Path, folder: Path) -> Sequence[Sequence[str]]:
    return [["go", "build", "-C", str(sources), "-mod=readonly", "-o", str(folder / "driver"), "."]]


def _go_run(folder: Path) -> Sequence[str]:
    return [str(folder / "driver")]


def _npm_build(sources: Path, folder: Path) -> Sequence[Sequence[str]]:
    copied = [str(sources / name) for name in ("driver.js", "package.json", "package-lock.json")]
    install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder)]
    return [["cp", *copied, str(folder)], install]


def _npm_run(folder: Path) -> Sequence[str]:
    node = shutil.which("node")
    if node is None:
        raise Missing("kafkajs needs node, which is not on the PATH")
    return [node, "--no-warnings", str(folder / "driver.js")]


def _maven_build(sources: Path, folder: Path) -> Sequence[Sequence[str]]:
    bring = ["mvn", "-B", "-q", "-f", str(sources / "pom.xml"), PLUGIN]
    return [[*bring, "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]]


def _streams_build(sources: Path, folder: Path) -> Sequence[Sequence[str]]:
    compile_it = ("javac", "--release", "17", "-cp", f"{folder}/*", "-d", str(folder))
    return [*_maven_build(sources, folder), [*compile_it, str(sources / "Totals.java")]]


def _streams_run(folder: Path) -> Sequence[str]:
    classes = f"{folder}{os.pathsep}{folder}/*"
    return [_runs_java(), *_JAVA_OPTIONS, _WARNINGS, "-cp", classes, "Totals"]


def _connect_run(folder: Path) -> Sequence[str]:
    classes = f"{folder}/*{os.pathsep}{_libs()}/*"
    worker = "org.apache.kafka.connect.cli.ConnectDistributed"
    return [_runs_java(), *_JAVA_OPTIONS, _WARNINGS, "-cp", classes, worker]


def _pip_build(sources: Path, folder: Path) -> Sequence[Sequence[str]]:
    environment = folder / "environment"  # for its pip: that of the project has none
    install = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--only-binary=:all:"]
    return [
        [sys.executable, "-m", "venv", str(environment)],
        [*install, "--target", str(folder), "--requirement", str(sources / "requirements.txt")],
        ["rm", "-r", str(environment)],
    ]


def _spark_connect_run(folder: Path) -> Sequence[str]:
    return ["env", f"PYTHONPATH={folder}", sys.executable, "-P", "-m", "tests.spark.connect_client"]


def _spark_run(folder: Path) -> Sequence[str]:
    return [sys.executable, "-P", "-m", "tests.clients.spark_copy", str(folder)]


_JAVA_SOURCES: Final = ("Driver.java", "Login.java", "Tools.java")
JAVA: Final = Program("java", _JAVA_SOURCES, "javac", _java_build, _java_run)
_GO_SOURCES: Final = ("go.mod", "go.sum", "main.go")
FRANZ_GO: Final = Program("franz-go", (*_GO_SOURCES, "login.go"), "go", _go_build, _go_run)
KAFKA_GO: Final = Program("kafka-go", _GO_SOURCES, "go", _go_build, _go_run)
KAFKAJS: Final = Program(
    "kafkajs", ("package.json", "package-lock.json", "driver.js"), "npm", _npm_build, _npm_run
)
STREAMS: Final = Program("streams", ("pom.xml", "Totals.java"), "mvn", _streams_build, _streams_run)
CONNECT: Final = Program("connect", ("pom.xml",), "mvn", _maven_build, _connect_run)
SPARK: Final = Program("spark", ("pom.xml",), "mvn", _maven_build, _spark_run)
SPARK_CONNECT: Final = Program(
    "spark-connect", ("requirements.txt",), "env", _pip_build, _spark_connect_run,
    str(sys.implementation.cache_tag),
)  # fmt: skip
PROGRAMS: Final = (
    JAVA, FRANZ_GO, KAFKA_GO, KAFKAJS, SPARK, SPARK_CONNECT, STREAMS, CONNECT,
)  # fmt: skip


def tools_command() -> list[str]:
    """How to run Kafka's tools in one Java. Raises Missing."""
    *command, _ = JAVA.command()
    return [*command, _WARNINGS, "Tools"]  # of two such settings the last one counts


def made(program: Program) -> Path:
    """The folder of a driver, which is built when it is not there. Raises Missing."""
    folder = program.folder()
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as scratch:
            sources, partial = Path(scratch, "sources"), Path(scratch, "made")
            sources.mkdir()
            partial.mkdir()
            for source in program.sources:
                shutil.copyfile(HERE / program.name / source, sources / source)
            for command in program.build(sources, partial):
                _do(program, command)
            partial.rename(folder)  # whole or not there
    except OSError as error:
        if not folder.is_dir():  # nobody else was faster: it is the disk
            raise Missing(f"{program.name} cannot be kept in {folder.parent}: {error}") from error
    return folder


def _do(program: Program, command: Sequence[str]) -> None:
    try:
        ended = subprocess.run(
            command, env={**os.environ, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_BUILD_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Missing(f"{program.name}: {command[0]} is not done within {_BUILD_SECONDS:.0f} s") from None
    if ended.returncode:
        said = ended.stdout.strip().splitlines() or [f"exit {ended.returncode}"]
        raise Missing(f"{program.name}: {command[0]} says: {said[0][:300]}")


def _libs() -> Path:
    try:
        libs = present()
    except NoKafka as error:
        raise Missing(str(error)) from error
    if libs is None:
        raise Missing(f"Kafka's jars are not on this machine: {_SETUP}")
    return libs


def _runs_java() -> str:
    try:
        return java()
    except NoKafka as error:
        raise Missing(str(error)) from error


def main() -> int:
    """Build what is missing; exits 1 with a line for each that cannot be had."""
    failed = 0
    for program in PROGRAMS:
        try:
            print(f"{program.name} in {made(program)}")
        except Missing as error:
            print(f"no driver for {error}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
