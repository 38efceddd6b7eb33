"""Apache Kafka's jars, from Maven once, into a cache folder that all checkouts of this machine share.

    python -m tests.peers.kafka_jars

What Kafka consists of is Maven's to resolve, from the few artifacts in the pom beside this module; mirrors,
credentials and proxies are those that Maven is set up with here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

VERSION: Final = "4.1.0"
POM: Final = Path(__file__).with_name("kafka-pom.xml")
PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_TIMEOUT_SECONDS: Final = 600.0
_ELSE: Final = "or set KAFKA_LIBS to the libs folder of a Kafka"


class NoKafka(Exception):
    """Kafka cannot be had or does not start here; one line that says why and what to do."""


def present() -> Path | None:
    """The folder with Kafka's jars, if it is there; looks at the disk only. Raises NoKafka."""
    named = os.environ.get("KAFKA_LIBS")
    if named:
        if not list(Path(named).glob("kafka_2.13-*.jar")):
            raise NoKafka(f"KAFKA_LIBS={named} holds no kafka_2.13 jar: name another folder, or unset it")
        return Path(named)
    return _folder() if _folder().is_dir() else None


def jars() -> Path:
    """The folder with Kafka's jars; has Maven bring them when they are nowhere. Raises NoKafka."""
    found = present()
    if found is not None:
        return found
    maven = shutil.which("mvn")
    if maven is None:
        raise NoKafka(f"Kafka's jars come through Maven, and there is no mvn: install maven, {_ELSE}")
    folder = _folder()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
        try:
            _copy(maven, partial)
            partial.rename(folder)  # whole or not there
        except OSError:
            if not folder.is_dir():  # nobody else was faster: it is the disk
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise NoKafka(f"Kafka's jars cannot be kept in {folder.parent}: {error.strerror or error}") from error
    return folder


def _copy(maven: str, folder: Path) -> None:
    command = [maven, "-B", "-q", "-f", str(POM), PLUGIN, "-DincludeScope=runtime"]
    try:
        ended = subprocess.run(
            [*command, f"-DoutputDirectory={folder}"],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise NoKafka(f"Maven brought no Kafka within {_TIMEOUT_SECONDS:.0f} s: try again, {_ELSE}") from None
    if ended.returncode:
        said = next(
            (line for line in ended.stdout.splitlines() if "ERROR" in line), f"exit {ended.returncode}"
        )
        raise NoKafka(f"Maven brought no Kafka: {said.strip()[:300]}: see to its settings.xml, {_ELSE}")


def cache() -> Path:
    """The folder for what is kept of other systems, shared by all checkouts of this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "strandline" / "peers"


def java() -> str:
    """The Java to run them with. Raises NoKafka."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if found is None or not Path(found).exists():
        raise NoKafka("Kafka needs Java 17 or newer: run scripts/setup, or set JAVA_HOME")
    return found


def _folder() -> Path:
    return cache() / f"kafka-{VERSION}"


def main() -> int:
    """Exits 1 with one line when they cannot be had."""
    try:
        folder = jars()
    except NoKafka as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Kafka {VERSION} in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
