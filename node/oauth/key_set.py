"""The public keys of an identity provider: a JSON Web Key Set (RFC 7517), in a file or at a URL.

A key set is read when a node starts, again each hour, and when a token names a key that it has not; so keys
can be rotated without a word to the nodes. A read that fails leaves the keys that there are.
"""

from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import jwt

from strandline.node.oauth.errors import KeySetError
from strandline.node.oauth.token_settings import is_url

log = logging.getLogger(__name__)

READ_SECONDS: Final = 5.0
MAX_BYTES: Final = 1 << 20
REFRESH_SECONDS: Final = 3600.0
AGAIN_SECONDS: Final = 10.0
"""The least time between two reads: tokens of strangers may name any key."""
ALGORITHMS: Final = frozenset(
    ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
)
"""Signatures with a private key. Never `none`, and never HMAC, for which a public key would be the secret."""
_KINDS: Final = {"RSA": ("RS", "PS"), "EC": ("ES",), "OKP": ("EdDSA",)}
"""Beginnings of the algorithms for which a key of a kind (`kty`) can be used."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """One key of the set."""

    kid: str | None
    kind: str
    algorithm: str | None
    """The one algorithm that it is for, if it says so."""
    key: Any

    def fits(self, algorithm: str) -> bool:
        """Whether a signature of this algorithm may be held against the key."""
        return algorithm.startswith(_KINDS[self.kind]) and self.algorithm in (None, algorithm)


class KeySet:
    """The keys at one place. All of it blocks, and may be called by any thread."""

    def __init__(self, place: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.place = place
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: tuple[PublicKey, ...] = ()
        self._reading = False
        """Whether a thread reads: names that take long to be resolved must not keep a second one."""
        self._read_at: float | None = None
        """When it was tried last, whatever came of it; None before the first time."""
        self._whole_at: float | None = None
        """When that succeeded last."""
        self.reads = Counter(ok=0, failed=0)
        """The numbers of reads, `ok` and `failed`."""

    def open(self) -> None:
        """Read the keys. Raises KeySetError for a file; of a URL, which may come later, it only warns."""
        self._read_at = self._clock()
        try:
            self._read()
        except KeySetError as error:
            if not is_url(self.place):
                raise
            log.warning("%s; logins with tokens fail until then", error)

    def find(self, kid: str | None, algorithm: str) -> PublicKey | None:
        """The key that a token names; without a name the only one that fits the algorithm, if it is one."""
        found = self._find(kid, algorithm)
        now = self._clock()
        stale = self._whole_at is None or now - self._whole_at >= REFRESH_SECONDS
        if (found is None or stale) and self._may_read(now):
            try:
                self._read()
            except KeySetError as error:
                log.warning("%s; the keys that are known are used until then", error)
            finally:
                self._reading = False
            found = self._find(kid, algorithm)
        return found

    def _find(self, kid: str | None, algorithm: str) -> PublicKey | None:
        fitting = [one for one in self._keys if one.fits(algorithm) and kid in (None, one.kid)]
        return fitting[0] if len(fitting) == 1 else None

    def _may_read(self, now: float) -> bool:
        with self._lock:
            if self._reading or (self._read_at is not None and now - self._read_at < AGAIN_SECONDS):
                return False
            self._reading, self._read_at = True, now
            return True

    def _read(self) -> None:
        try:
            self._keys = _keys(self.place, _url(self.place) if is_url(self.place) else _file(self.place))
        except KeySetError:
            self.reads["failed"] += 1
            raise
        self.reads["ok"] += 1
        self._whole_at = self._clock()


def _file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise KeySetError(f"{path}: {error.strerror}: write the path of a JSON Web Key Set") from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """The server at the place decides which tokens are right, and no other may."""
        return None


class _Deadline:
    """Ends a read when its time is over: the time-out of a socket is that of one piece of an answer."""

    def __init__(self, seconds: float) -> None:
        self.over = False
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def watched(self, kind: Any) -> Callable[..., Any]:
        """Makes connections of this kind, whose sockets are shut down in time."""

        def made(*arguments: Any, **options: Any) -> Any:
            connection = kind(*arguments, **options)
            connect = connection.connect

            def watch() -> None:
                connect()
                self._socket = connection.sock
                if self.over:
                    self._end()

            connection.connect = watch
            return connection

        return made

    def _end(self) -> None:
        self.over = True
        if self._socket is not None:
            with suppress(OSError):
                # Not SSLSocket's own, which takes its state from under the thread that reads.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class _Watched(urllib.request.AbstractHTTPHandler):
    deadline: _Deadline

    def do_open(self, http_class: Any, req: urllib.request.Request, **more: Any) -> http.client.HTTPResponse:
        return super().do_open(self.deadline.watched(http_class), req, **more)


class _Http(_Watched, urllib.request.HTTPHandler):
    pass


class _Https(_Watched, urllib.request.HTTPSHandler):
    pass


def _opener(deadline: _Deadline) -> urllib.request.OpenerDirector:
    """With the proxy of https alone, which only passes TLS on: another one could answer with its own keys."""
    proxy = urllib.request.getproxies().get("https")
    handlers = [_Http(), _Https()]
    for handler in handlers:
        handler.deadline = deadline
    through = urllib.request.ProxyHandler({} if proxy is None else {"https": proxy})
    return urllib.request.build_opener(_NoRedirect, through, *handlers)


def _url(place: str) -> bytes:
    deadline = _Deadline(READ_SECONDS)
    found = bytearray()
    try:
        with deadline, _opener(deadline).open(place, timeout=READ_SECONDS) as answer:
            while len(found) <= MAX_BYTES and (part := answer.read1(65_536)):
                found += part
        if not deadline.over:
            return bytes(found)
        why: object = ""
    except (OSError, ValueError, http.client.HTTPException) as error:  # of OSErrors URLError and time-outs
        why = getattr(error, "reason", None) or str(error) or type(error).__name__
    if deadline.over:
        why = f"it took more than {READ_SECONDS:g} s"
    host = urlsplit(place).hostname
    raise KeySetError(f"the keys at {place} cannot be read ({_line(why)}): see that {host} answers")


def _line(why: object) -> str:
    """A reason without what a server put into it to begin a line of the log."""
    return "".join(one if one.isprintable() else " " for one in str(why)[:200])


def _keys(place: str, data: bytes) -> tuple[PublicKey, ...]:
    cure = "put a JSON Web Key Set with public keys there"
    if len(data) > MAX_BYTES:
        raise KeySetError(f"{place} is longer than {MAX_BYTES} bytes: {cure}")
    try:
        told = json.loads(data)["keys"]
        found = tuple(key for one in told if (key := _key(one)) is not None)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise KeySetError(f"{place} is no JSON Web Key Set ({type(error).__name__}): {cure}") from error
    if not found:
        raise KeySetError(f"{place} has no public key that signs tokens: {cure}")
    return found


def _key(told: dict[str, Any]) -> PublicKey | None:
    """None for a key of another use or kind, as providers have them beside (RFC 7517, section 5)."""
    kid, kind, algorithm = told.get("kid"), told.get("kty"), told.get("alg")
    if kind not in _KINDS or told.get("use", "sig") != "sig" or "d" in told:
        return None
    if algorithm is not None and algorithm not in ALGORITHMS:
        return None
    if not isinstance(kid, str | None):
        return None
    try:
        return PublicKey(kid, kind, algorithm, jwt.PyJWK(told, algorithm).key)
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
