"""Apache Kafka's jars, from Maven Central once, into a cache folder that all checkouts of this machine share.

    python -m tests.peers.kafka_jars

There is no Maven in it, because installing one takes longer than everything it would do here: which jars they
are, and what is in them, stands in the list beside this module, so nothing has to be resolved. What is set
for Maven on this machine counts all the same: the mirror and its credentials in `settings.xml`, and what lies
in the local repository is not fetched. Proxies are those of the environment.

The list is sha256sum's, over what `mvn dependency:copy-dependencies -Dmdep.useRepositoryLayout=true` brings
for kafka_2.13, kafka-tools and slf4j-simple, without Connect and the web server that only Connect needs.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import os
import re
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

VERSION: Final = "4.1.0"
CENTRAL: Final = "https://repo.maven.apache.org/maven2"
_LIST: Final = Path(__file__).with_name(f"kafka-{VERSION}.sha256")
_AT_A_TIME: Final = 8
_TRIES: Final = 3
_TIMEOUT_SECONDS: Final = 60.0


class NoKafka(Exception):
    """Kafka cannot be had or does not start here; one line that says why and what to do."""


class Repository(NamedTuple):
    """Where artifacts are fetched; `authorization` is a header's value."""

    url: str
    authorization: str | None


class Jar(NamedTuple):
    """One artifact: its path in any repository, and the SHA-256 of its bytes in hex."""

    path: str
    sha256: str


def present() -> Path | None:
    """The folder with Kafka's jars, if it is there; looks at the disk only. Raises NoKafka."""
    named = os.environ.get("KAFKA_LIBS")
    if named:
        if not list(Path(named).glob("kafka_2.13-*.jar")):
            raise NoKafka(f"KAFKA_LIBS={named} holds no kafka_2.13 jar: name another folder, or unset it")
        return Path(named)
    folder = _folder(listed())
    return folder if folder.is_dir() else None


def jars() -> Path:
    """The folder with Kafka's jars; fetches them when they are nowhere. Raises NoKafka."""
    found = present()
    if found is not None:
        return found
    wanted = listed()
    folder = _folder(wanted)
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        fetch(wanted, partial, repository(), _local_repository())
        try:
            partial.rename(folder)  # whole or not there
        except OSError:
            if not folder.is_dir():  # nobody else was faster: it is the disk
                raise
    except OSError as error:
        raise NoKafka(f"Kafka's jars cannot be kept in {folder.parent}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


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


def listed() -> list[Jar]:
    """What Kafka consists of."""
    return [Jar(path, digest) for digest, path in (line.split() for line in _LIST.read_text().splitlines())]


def fetch(wanted: list[Jar], folder: Path, source: Repository, local: Path) -> None:
    """Put every jar into `folder`: from `local`, else from `source`. Raises NoKafka, OSError."""
    with ThreadPoolExecutor(_AT_A_TIME) as threads:
        # The first failure is raised here, and what has not begun by then never begins.
        found = [threads.submit(_fetch_one, jar, folder, source, local) for jar in wanted]
        try:
            for one in found:
                one.result()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def _fetch_one(jar: Jar, folder: Path, source: Repository, local: Path) -> None:
    target = folder / Path(jar.path).name
    kept = local / jar.path
    if kept.is_file() and _digest(kept.read_bytes()) == jar.sha256:
        shutil.copyfile(kept, target)
        return
    request = urllib.request.Request(f"{source.url}/{jar.path}")
    if source.authorization is not None:
        request.add_unredirected_header("Authorization", source.authorization)
    for left in reversed(range(_TRIES)):
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
                data: bytes = answer.read()
            break
        except (OSError, http.client.HTTPException) as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if refused or not left:
                raise NoKafka(
                    f"cannot fetch {Path(jar.path).name} from {source.url} ({error}): allow that, name a "
                    "mirror in ~/.m2/settings.xml, or set KAFKA_LIBS to the libs folder of a Kafka"
                ) from error
    if _digest(data) != jar.sha256:
        raise NoKafka(
            f"{source.url}/{jar.path} is not the file that {_LIST.name} lists: ask who runs the mirror"
        )
    target.write_bytes(data)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _folder(wanted: list[Jar]) -> Path:
    """A list of its own has a folder of its own, so that a checkout of another time finds what it lists."""
    return cache() / f"kafka-{VERSION}-{_digest(repr(wanted).encode())[:8]}"


# ---- what is set for Maven on this machine


def repository() -> Repository:
    """Maven Central, or the mirror that Maven would take in its place. Raises NoKafka."""
    found = list(_settings())
    for settings in found:
        for mirror in settings.iterfind("mirrors/mirror"):
            if _stands_for_central(_text(mirror, "mirrorOf")):
                name = _text(mirror, "id")
                return Repository(_text(mirror, "url").rstrip("/"), _authorization(found, name))
    return Repository(CENTRAL, _authorization(found, "central"))


def _local_repository() -> Path:
    named = [_text(settings, "localRepository") for settings in _settings()]
    return Path(next(filter(None, named), Path.home() / ".m2" / "repository"))


def _settings() -> Iterator[ElementTree.Element]:
    """The user's settings, then the machine's: as in Maven, the first that says something wins."""
    home = os.environ.get("MAVEN_HOME") or "/usr/share/maven"
    for path in (Path.home() / ".m2" / "settings.xml", Path(home, "conf", "settings.xml")):
        try:
            root = ElementTree.parse(path).getroot()
        except FileNotFoundError:
            continue
        except (OSError, ElementTree.ParseError) as error:
            raise NoKafka(f"{path} cannot be read ({error}): mend it") from error
        for element in root.iter():
            element.tag = element.tag.rpartition("}")[2]  # the namespace is another one for each version
        yield root


def _stands_for_central(mirror_of: str) -> bool:
    """Whether a mirror with this `mirrorOf` takes the place of central, by Maven's rules."""
    patterns = [pattern.strip() for pattern in mirror_of.split(",")]
    return "!central" not in patterns and not {"*", "external:*", "central"}.isdisjoint(patterns)


def _authorization(found: list[ElementTree.Element], name: str) -> str | None:
    for settings in found:
        for server in settings.iterfind("servers/server"):
            user, password = _text(server, "username"), _text(server, "password")
            if _text(server, "id") != name or not user:
                continue
            if re.fullmatch(r".*\{.*\}.*", password):
                raise NoKafka(
                    f"the password of server {name} in Maven's settings is encrypted: set KAFKA_LIBS to the "
                    "libs folder of a Kafka"
                )
            return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    return None


def _text(element: ElementTree.Element, name: str) -> str:
    """A setting, with the variables of the environment that it names put in."""
    text = (element.findtext(name) or "").strip()
    return re.sub(r"\$\{env\.(\w+)\}", lambda match: os.environ.get(match[1], ""), text)


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
