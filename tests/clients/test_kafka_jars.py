"""Fetching Kafka's jars: from the mirror this machine names, once, and only what is listed."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.peers import kafka_jars
from tests.peers.kafka_jars import CENTRAL, Jar, NoKafka, Repository, fetch, jars, listed, present, repository

DATA = b"a jar"
JAR = Jar("org/some/thing/1/thing-1.jar", hashlib.sha256(DATA).hexdigest())


@contextmanager
def mirror(data: bytes, failures: int = 0) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """A repository where everything is `data`: its address, and path and authorization of each request."""
    asked: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Authorization"]))
            if len(asked) <= failures:
                self.send_error(503)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/maven", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine where nothing is set and nothing was fetched."""
    for name in ("KAFKA_LIBS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MAVEN_HOME", str(tmp_path / "maven"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path


def settings(home: Path, body: str) -> None:
    (home / ".m2").mkdir(exist_ok=True)
    text = f'<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0">{body}</settings>'
    (home / ".m2" / "settings.xml").write_text(text)


def mirror_of(pattern: str, url: str = "https://mirror.invalid/maven/") -> str:
    return f"<mirrors><mirror><id>near</id><mirrorOf>{pattern}</mirrorOf><url>{url}</url></mirror></mirrors>"


def test_everything_listed_is_one_jar_with_its_checksum() -> None:
    found = listed()
    assert len(found) == len({Path(jar.path).name for jar in found}) > 30
    assert all(jar.path.endswith(".jar") and len(jar.sha256) == 64 for jar in found)
    assert any(jar.path.endswith(f"kafka_2.13-{kafka_jars.VERSION}.jar") for jar in found)


@pytest.mark.parametrize(
    ("pattern", "stands"),
    [
        ("*", True),
        ("central", True),
        ("external:*", True),
        ("other, central", True),
        ("*,!central", False),
        ("other", False),
        ("external:http:*", False),
    ],
)
def test_mirrors_are_taken_by_maven_s_rules(home: Path, pattern: str, stands: bool) -> None:
    assert repository() == Repository(CENTRAL, None)
    settings(home, mirror_of(pattern))
    assert repository().url == ("https://mirror.invalid/maven" if stands else CENTRAL)


def test_the_user_s_settings_come_before_the_machine_s(home: Path) -> None:
    (home / "maven" / "conf").mkdir(parents=True)
    machine = mirror_of("*", "https://machine.invalid")
    (home / "maven" / "conf" / "settings.xml").write_text(f"<settings>{machine}</settings>")
    assert repository().url == "https://machine.invalid"
    settings(home, mirror_of("*", "https://user.invalid"))
    assert repository().url == "https://user.invalid"


def test_it_is_fetched_once_from_the_mirror_with_its_credentials(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_jars, "listed", lambda: [JAR])
    monkeypatch.setenv("MIRROR_PASSWORD", "p:w")
    with mirror(DATA, failures=1) as (url, asked):
        named = "<username>me</username><password>${env.MIRROR_PASSWORD}</password>"
        server = f"<server><id>near</id>{named}</server>"
        settings(home, mirror_of("*", url) + f"<servers>{server}</servers>")
        assert present() is None
        folder = jars()
        assert jars() == folder == present()
    assert (folder / "thing-1.jar").read_bytes() == DATA
    credentials = "Basic " + base64.b64encode(b"me:p:w").decode()
    assert asked == [(f"/maven/{JAR.path}", credentials)] * 2
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_what_is_not_what_was_listed_is_not_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_jars, "listed", lambda: [JAR])
    with mirror(b"another jar") as (url, _):
        settings(home, mirror_of("*", url))
        with pytest.raises(NoKafka, match=r"thing-1\.jar is not the file that .* lists"):
            jars()
    assert present() is None
    assert list(kafka_jars.cache().iterdir()) == []


def test_what_maven_has_is_not_fetched_unless_it_is_something_else(home: Path, tmp_path: Path) -> None:
    kept = tmp_path / "repository" / JAR.path
    kept.parent.mkdir(parents=True)
    with mirror(DATA) as (url, asked):
        for data, requests in ((DATA, 0), (b"damaged", 1)):
            kept.write_bytes(data)
            fetch([JAR], tmp_path, Repository(url, None), tmp_path / "repository")
            assert (tmp_path / "thing-1.jar").read_bytes() == DATA
            assert len(asked) == requests


def test_errors_name_the_cure(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_jars, "listed", lambda: [JAR])
    settings(home, mirror_of("*", "http://127.0.0.1:1/"))
    with pytest.raises(NoKafka, match=r"cannot fetch thing-1\.jar .* set KAFKA_LIBS"):
        jars()
    server = "<server><id>near</id><username>me</username><password>{jSMOWnoPFg=}</password></server>"
    settings(home, mirror_of("*") + f"<servers>{server}</servers>")
    with pytest.raises(NoKafka, match="encrypted: set KAFKA_LIBS"):
        jars()
    (home / ".m2" / "settings.xml").write_text("<settings>")
    with pytest.raises(NoKafka, match=r"cannot be read .*: mend it"):
        jars()
    monkeypatch.setenv("KAFKA_LIBS", str(home))
    with pytest.raises(NoKafka, match=r"holds no kafka_2\.13 jar"):
        present()
