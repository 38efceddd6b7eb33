"""One contract for a folder and a bucket, and a topic read from S3's protocol (moto's server)."""

from __future__ import annotations

import errno
import os
import pickle
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import obstore
import pytest
from obstore.store import from_url

from strandline.snapshot import storage as storage_module
from strandline.snapshot.spark.audits.answering import AnsweringStorage
from strandline.snapshot.spark.audits.run import NothingToAudit, check_input
from strandline.snapshot.spark.options import SourceError
from strandline.snapshot.storage import (
    FolderStorage,
    NoAnswer,
    ObjectMissing,
    Storage,
    StorageError,
    open_storage,
)
from tests.objectstore.s3_endpoint import endpoint
from tests.spark.planned import TOPICS, read, readable
from tests.spark.stored_cluster import StoredCluster, build_cluster

__all__ = ["endpoint"]


KEYS_TO_S3 = {"region": "us-east-1", "access_key_id": "test", "secret_access_key": "test"}
KEYS = {"a/b/1": b"one", "a/b-c": b"dash", "a/b/2": b"two", "a0": b"zero", "z/1/2": bytes(1000)}


def check(storage: Storage) -> None:
    assert storage.list("") == sorted(KEYS)
    assert storage.list("a/") == ["a/b-c", "a/b/1", "a/b/2"]
    assert storage.list("a/b/") == ["a/b/1", "a/b/2"]
    assert storage.list("none/") == []
    assert storage.folders("") == ["a", "z"]
    assert storage.folders("a/") == ["b"]
    assert storage.folders("none/") == []
    assert storage.get("a/b-c") == b"dash"
    assert type(storage.get_range("a/b-c", 1, 2)) is bytes
    assert storage.get_range("a/b-c", 1, 2) == b"as"
    for missing in ("a/b/3", "a/b"):
        with pytest.raises(ObjectMissing, match=f"there is no object {missing}"):
            storage.get(missing)
        with pytest.raises(ObjectMissing, match=f"there is no object {missing}"):
            storage.get_range(missing, 0, 1)
        with pytest.raises(ObjectMissing, match=f"there is no object {missing}"):
            storage.read_into(missing, 0, memoryview(bytearray(1)))
    for start, length in ((2, 3), (4, 1)):
        asked: list[Callable[[], object]] = [
            partial(storage.get_range, "a/b-c", start, length),
            partial(storage.read_into, "a/b-c", start, memoryview(bytearray(length))),
        ]
        for ask in asked:
            with pytest.raises(StorageError, match="object a/b-c") as told:
                ask()
            assert not isinstance(told.value, NoAnswer), "an object that was cut does not grow"
    room = bytearray(b"****")
    storage.read_into("a/b-c", 1, memoryview(room)[1:3])
    assert room == b"*as*"


def test_a_folder(tmp_path: Path) -> None:
    for key, data in KEYS.items():
        path = tmp_path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    unfinished = tmp_path / ".partial" / "node-1"
    unfinished.mkdir(parents=True)
    (unfinished / "7").write_bytes(b"unfinished")
    check(open_storage(str(tmp_path)))
    check(pickle.loads(pickle.dumps(open_storage(str(tmp_path)))))  # noqa: S301 - as Spark sends it to tasks


@pytest.mark.parametrize("url", ["file:///data", "ftp://host/x", "/there/is/none"])
def test_what_cannot_be_opened_is_named(url: str) -> None:
    with pytest.raises(StorageError, match=url):
        open_storage(url)


def test_an_option_that_is_none_is_named() -> None:
    with pytest.raises(StorageError, match=r"s3://bucket.*no_such_option"):
        open_storage("s3://bucket", {"no_such_option": "1"})


@pytest.mark.parametrize("name", ["timeout", "Allow_HTTP"])
def test_an_option_of_the_http_client_is_refused_before_the_library_panics(name: str) -> None:
    with pytest.raises(StorageError, match=rf"^s3://bucket: {name}: it is not an option of an object store"):
        open_storage("s3://bucket", {"region": "us-east-1", name: "1s"})


def test_a_folder_that_is_gone_is_told_from_an_object_that_is(tmp_path: Path) -> None:
    """A listing of nothing would say that nothing was ever published."""
    place, away = tmp_path / "objects", tmp_path / "away"
    (place / "a").mkdir(parents=True)
    (place / "a" / "1").write_bytes(b"one")
    storage = open_storage(str(place))
    asked: list[Callable[[], object]] = [
        lambda: storage.folders("a/"),
        lambda: storage.list("a/"),
        lambda: storage.versions("a/"),
        lambda: storage.get("a/1"),
        lambda: storage.get_range("a/1", 0, 1),
        lambda: storage.read_into("a/1", 0, memoryview(bytearray(1))),
    ]
    place.rename(away)
    for mounted in (False, True):
        if mounted:
            place.mkdir()
        for ask in asked:
            with pytest.raises(NoAnswer, match=r"the folder is gone, or empty: bring it back, or mount it"):
                ask()
    place.rmdir()
    away.rename(place)
    for ask in asked:
        ask()


def test_a_folder_that_goes_while_it_is_listed_is_no_shorter_list(tmp_path: Path) -> None:
    """The names of a few files come at once, and what they are one by one: the others would be missing."""
    place = tmp_path / "objects"
    (place / "a").mkdir(parents=True)
    for number in range(3):
        (place / "a" / str(number)).write_bytes(b"x")
    storage = open_storage(str(place))
    assert isinstance(storage, FolderStorage)
    files = storage._files("")
    next(files)
    place.rename(tmp_path / "away")
    with pytest.raises(NoAnswer, match="the folder is gone, or empty"):
        list(files)


def test_a_folder_that_comes_back_before_it_is_looked_for_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object was looked for without the folder, and the folder once it was there again."""
    place, away = tmp_path / "objects", tmp_path / "away"
    (place / "a").mkdir(parents=True)
    (place / "a" / "1").write_bytes(b"x")
    storage = open_storage(str(place))
    assert isinstance(storage, FolderStorage)
    look = storage._is_empty

    def back() -> bool:
        if away.exists():
            away.rename(place)
        return look()

    monkeypatch.setattr(storage, "_is_empty", back)
    asks: list[tuple[Callable[[], object], object]] = [
        (lambda: storage.folders(""), ["a"]),
        (lambda: storage.list("a/"), ["a/1"]),
        (lambda: storage.get("a/1"), b"x"),
        (lambda: storage.get_range("a/1", 0, 1), b"x"),
    ]
    for ask, answer in asks:
        place.rename(away)
        assert ask() == answer
    with pytest.raises(ObjectMissing):
        storage.get("a/2")
    sizes = storage._files("a/")
    (place / "a" / "2").write_bytes(b"xy")
    found = [next(sizes)]
    place.rename(away)
    found += sizes
    assert sorted(key for key, _ in found) == ["a/1", "a/2"]


def test_an_audit_waits_on_where_the_shell_that_began_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of Spark's ends its wait with Spark; an audit's parent is not what waits for the answer."""
    place, away, waits = tmp_path / "objects", tmp_path / "away", list[float]()
    (place / "a").mkdir(parents=True)
    storage = AnsweringStorage(open_storage(str(place)))
    place.rename(away)

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 5:
            away.rename(place)

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(os, "getppid", lambda: len(waits))
    assert storage.folders("") == ["a"]
    assert len(waits) == 5


def test_what_may_not_be_read_is_refused_and_no_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays so, as what a bucket refuses. A mount point that is closed to all is no such thing."""
    place = tmp_path / "objects"
    (place / "a").mkdir(parents=True)
    (place / "a" / "1").write_bytes(b"one")
    storage, scan = open_storage(str(place)), os.scandir
    closed: list[str] = [str(place / "a")]

    def refuse(path: str, *more: object) -> None:
        if any(path.startswith(one) for one in closed):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    def scanned(path: str) -> object:
        refuse(path)
        return scan(path)

    def opened(path: str, *more: object, **options: object) -> None:
        refuse(path)

    monkeypatch.setattr(os, "scandir", scanned)
    monkeypatch.setattr("builtins.open", opened)
    asked: list[Callable[[], object]] = [
        lambda: storage.folders("a/"),
        lambda: storage.sizes("a/"),
        lambda: storage.get("a/1"),
        lambda: storage.get_range("a/1", 0, 1),
    ]
    for silent in (False, True):
        if silent:
            closed[:] = [str(place)]
        for ask in asked:
            with pytest.raises(StorageError) as told:
                ask()
            assert isinstance(told.value, NoAnswer) is silent, str(told.value)
            assert ("Permission denied" in str(told.value)) is not silent


def bucket(endpoint: str, name: str, objects: Mapping[str, bytes]) -> Storage:
    """A bucket with these objects below a prefix, and another one beside it."""
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT"), timeout=60).close()
    options = {**KEYS_TO_S3, "endpoint": endpoint}
    whole = from_url(f"s3://{name}", config=options, client_options={"allow_http": True})  # type: ignore[call-overload]
    for key, data in {**{f"prefix/{key}": data for key, data in objects.items()}, "prefix-2/a": b"x"}.items():
        obstore.put(whole, key, data, use_multipart=False)
    return open_storage(f"s3://{name}/prefix", options)


@pytest.mark.s3
def test_a_bucket(endpoint: str) -> None:
    storage = bucket(endpoint, "contract", KEYS)
    check(storage)
    check(pickle.loads(pickle.dumps(storage)))  # noqa: S301 - as Spark sends it to tasks


class Refusing(BaseHTTPRequestHandler):
    """An S3 whose account may do nothing."""

    def do_GET(self) -> None:
        said = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def refusing() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_bucket_that_refuses_is_one_line_that_says_what_to_check(refusing: str) -> None:
    options = {**KEYS_TO_S3, "endpoint": refusing}
    storage = open_storage("s3://closed/prefix", options)
    asked: list[Callable[[], object]] = [
        lambda: storage.list("snapshots/"),
        lambda: storage.versions("l0/"),
        lambda: storage.folders("l0/"),
        lambda: storage.get("cluster"),
        lambda: storage.get_range("l0/a", 0, 1),
        lambda: read(storage, {"topic": "orders"}),
        lambda: check_input("s3://closed/prefix", options, "harbour"),
    ]
    for ask in asked:
        with pytest.raises((StorageError, SourceError, NothingToAudit)) as told:
            ask()
        line = str(told.value)
        assert line.startswith("s3://closed/prefix: "), line
        assert line.endswith("check the bucket's name, its options and what they permit"), line
        assert "\n" not in line
        assert ": AccessDenied (Access Denied), status 403: " in line


def test_a_bucket_that_does_not_answer_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes connections and says nothing; another one takes none."""
    monkeypatch.setattr(storage_module, "LOOK_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as closed:
        places = [f"http://127.0.0.1:{one.getsockname()[1]}" for one in (silent, closed)]
        closed.close()
        for place in places:
            options = {**KEYS_TO_S3, "endpoint": place}
            with pytest.raises(StorageError) as told:
                open_storage("s3://mute/prefix", options).list("snapshots/")
            assert str(told.value) == (
                f"s3://mute/prefix: {place} does not answer (error sending request): "
                "check the bucket's name, its options and what they permit"
            )
        silent.setblocking(False)
        tries = 0
        with suppress(BlockingIOError):
            while True:
                silent.accept()[0].close()
                tries += 1
        assert 1 <= tries <= 3, "obstore by itself tries eleven times, for three minutes"


@pytest.mark.s3
def test_a_topic_in_a_bucket(endpoint: str, tmp_path: Path) -> None:
    cluster: StoredCluster = build_cluster(tmp_path / "objects", batches_a_round=2)
    files = [path for path in cluster.root.rglob("*") if path.is_file()]
    objects = {path.relative_to(cluster.root).as_posix(): path.read_bytes() for path in files}
    storage = bucket(endpoint, "topics", objects)
    assert read(storage, {"topic": TOPICS}) == readable(cluster)
