"""Objects in a bucket: the contract in memory, what each error means, and which URLs are refused."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import obstore
import pytest
import uvloop
from obstore import exceptions

from strandline.node.objectstore.obstore_store import ObstoreStore, changed, unread
from strandline.node.objectstore.store import NotDone, ObjectNotFound, OutcomeUnknown
from tests.objectstore.store_contract import check_contract


def test_contract_in_memory() -> None:
    store = ObstoreStore("memory:///", max_object_bytes=4 * 1024 * 1024)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(check_contract(store))


@pytest.mark.parametrize("url", ["s3://bucket/prefix", "gs://bucket/prefix"])
def test_urls_of_buckets_are_taken(url: str) -> None:
    ObstoreStore(url, options={"skip_signature": "true"})


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("file:///data", "obstore does not sync files, a power cut may take them: give the folder as a path"),
        ("ftp://host/x", "not one of s3, s3a, gs"),
        ("/data", "not one of s3"),
        ("az://container/x", "Account must be specified"),
    ],
)
def test_other_urls_are_refused_with_the_reason(url: str, reason: str) -> None:
    with pytest.raises(NotDone, match=reason) as raised:
        ObstoreStore(url)
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_obstore_still_does_not_sync_files(tmp_path: Path) -> None:
    """The day this fails, file: URLs may be taken."""
    script = f"import obstore.store; obstore.put(obstore.store.LocalStore({str(tmp_path)!r}), 'a', b'x')"
    calls = "trace=fsync,fdatasync,rename,renameat,renameat2"
    trace = subprocess.run(
        ["strace", "-f", "-e", calls, sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert (tmp_path / "a").read_bytes() == b"x"
    assert "rename" in trace.stderr
    assert "sync(" not in trace.stderr


def test_a_refused_change_is_definite_and_any_other_error_is_not() -> None:
    refused = changed("put", "a", exceptions.PermissionDeniedError("no\n\nDebug source: ..."))
    assert isinstance(refused, NotDone)
    assert (refused.retriable, refused.reason) == (False, "no")
    unknown = changed("put", "a", exceptions.GenericError("503 Slow Down"))
    assert isinstance(unknown, OutcomeUnknown)
    assert unknown.retriable
    missing = changed("put", "a", FileNotFoundError("no such bucket"))
    assert isinstance(missing, NotDone)
    assert "the bucket is missing" in str(missing)


def test_an_error_is_told_without_the_server_s_markup_and_the_time_it_took() -> None:
    text = (
        "Generic S3 error: Error performing PUT http://h/b/a in 16.063653ms - Server returned non-2xx status "
        'code: 503 Slow Down: <?xml version="1.0" encoding="utf-8"?>\n<Error>\n'
    )
    assert changed("put", "a", exceptions.GenericError(text)).reason == (
        "Generic S3 error: Error performing PUT http://h/b/a - Server returned non-2xx status code: 503 Slow "
        "Down"
    )


def test_a_listing_of_a_bucket_that_is_missing_says_so() -> None:
    error = unread("list", "l0/", FileNotFoundError("NoSuchBucket"))
    assert type(error) is NotDone, "ObjectNotFound would be an answer"
    assert (error.reason, error.cure) == (
        "the bucket is missing (NoSuchBucket)",
        "create the bucket, or correct storage.url",
    )
    assert "credentials" in changed("put", "a", exceptions.PermissionDeniedError("no")).cure


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"endpont": "http://x"}, "Configuration key: 'endpont' is not valid for store 'S3'"),
        ({"proxy_url": "http://x"}, "obstore cannot take these options: proxy_url"),
    ],
)
def test_an_option_that_there_is_not_is_one_line(options: dict[str, str], line: str) -> None:
    with pytest.raises(NotDone, match=line) as caught:
        ObstoreStore("s3://bucket", options=options)
    assert "\n" not in str(caught.value)


def test_a_panic_inside_the_library_is_an_error_of_the_operation() -> None:
    keys = {"access_key_id": "a", "secret_access_key": "b", "endpoint": "http://h:99999"}
    store = ObstoreStore("s3://bucket", options=keys, allow_http=True)
    with pytest.raises(OutcomeUnknown, match="panicked"):
        asyncio.run(store.put("a", [b"x"]))
    with pytest.raises(NotDone, match="panicked"):
        asyncio.run(store.get("a"))


def test_a_read_that_fails_is_definite() -> None:
    assert isinstance(unread("get", "a", FileNotFoundError()), ObjectNotFound)
    assert unread("get", "a", exceptions.GenericError("503")).retriable
    assert not unread("get", "a", exceptions.UnauthenticatedError("who?")).retriable


def test_a_store_that_lists_in_no_order_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def chunks() -> Any:
        yield [{"path": "b"}, {"path": "a"}]

    monkeypatch.setattr(obstore, "list", lambda *_, **__: chunks())
    with pytest.raises(NotDone, match="does not list in key order"):
        asyncio.run(ObstoreStore("memory:///").list("", "", 10))


def test_a_deletion_that_ends_at_a_missing_key_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ObstoreStore("memory:///")
    real = obstore.delete_async

    async def strict(handle: Any, paths: str | Sequence[str]) -> None:
        for path in [paths] if isinstance(paths, str) else paths:
            await obstore.head_async(handle, path)
            await real(handle, path)

    async def check() -> None:
        await store.put("a", [b"x"])
        await store.put("c", [b"x"])
        await store.delete_many(["a", "b", "c"])
        assert await store.list("", "", 10) == []

    monkeypatch.setattr(obstore, "delete_async", strict)
    asyncio.run(check())


def test_a_store_nobody_answers_at_leaves_the_outcome_unknown() -> None:
    store = ObstoreStore(
        "s3://bucket",
        options={
            "endpoint": "http://127.0.0.1:9",
            "access_key_id": "a",
            "secret_access_key": "b",
            "region": "us-east-1",
        },
        timeout_seconds=1.0,
        allow_http=True,
    )
    with pytest.raises(OutcomeUnknown):
        asyncio.run(store.put("a", [b"x"]))
    with pytest.raises(NotDone):
        asyncio.run(store.get("a"))
