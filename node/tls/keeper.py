"""TLS of one port: its files, what they make, and another of it when the files change.

A context is never changed: connections that come later get another one. So a connection goes on with what it
began with, and files that do not fit each other (a key was written, its certificate not yet) change nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

log = logging.getLogger(__name__)

WATCH_SECONDS: Final = 5.0
"""Time between two looks at the files: a few system calls each."""
WARN_DAYS: Final = 14
"""A certificate that ends sooner is warned of: time enough to get another from an authority of people."""
WARN_AGAIN_SECONDS: Final = 24 * 3600.0
_DAY: Final = 24 * 3600.0
_NO_CHECK_TIME: Final = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python does not name."""
_PARTIAL_CHAIN: Final = 0x80000
"""OpenSSL's X509_V_FLAG_PARTIAL_CHAIN: what is trusted need not be a root."""


class TlsFilesError(Exception):
    """Files that no server can be made of; `str()` is one line with the cause and the cure."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS as a port is configured."""

    certificate: str
    """Path of this node's certificate, PEM, with the certificates between it and the authority behind it."""
    key: str
    """Path of its private key, PEM, without a password."""
    ca: str = ""
    """Path of the certificates of the authorities that sign the other side's certificates."""
    client_certificate: str = "none"
    """none, wanted or required: Kafka's `ssl.client.auth`."""
    tls_version: str = "1.2"
    """The least version that is spoken."""
    dials: bool = False
    """Whether this node also makes connections, and shows the same certificate there: needs `ca`."""

    @property
    def files(self) -> tuple[str, ...]:
        """All files that it is made of."""
        return tuple(path for path in (self.certificate, self.key, self.ca) if path)


_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_MODES: Final = {"none": ssl.CERT_NONE, "wanted": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


@dataclass(frozen=True, slots=True)
class Loaded:
    """Contexts, and the facts about their files at the time they were made."""

    context: ssl.SSLContext
    """For connections that come in."""
    dialling: ssl.SSLContext | None
    """For those that this node makes, where it makes any."""
    not_after: float
    """Unix time at which the node's certificate ends."""
    readable_key: bool
    """Whether every user of this machine may read the private key."""


def load(settings: TlsSettings) -> Loaded:
    """Make contexts of the files; blocking. Raises TlsFilesError."""
    for path in settings.files:
        try:
            with open(path, "rb") as file:
                file.read(1)
        except OSError as error:
            raise TlsFilesError(
                f"{path}: {error.strerror or error}: let the node's user read it, or correct the path"
            ) from error
    server = _context(ssl.PROTOCOL_TLS_SERVER, settings)
    server.verify_mode = _MODES[settings.client_certificate]
    dialling = _dialling(settings) if settings.dials else None
    not_after = _not_after(settings)
    return Loaded(server, dialling, not_after, bool(os.stat(settings.key).st_mode & 0o004))


def _context(protocol: int, settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = _VERSIONS[settings.tls_version]
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(settings.certificate, settings.key, _no_password)
    except (ssl.SSLError, ValueError) as error:
        raise TlsFilesError(
            f"{settings.certificate} and {settings.key} are not a certificate and its private key, both in "
            f"PEM and the key without a password ({_reason(error)}): write the pair again"
        ) from error
    if settings.ca:
        try:
            context.load_verify_locations(settings.ca)
        except ssl.SSLError as error:
            raise TlsFilesError(
                f"{settings.ca} holds no certificates in PEM ({_reason(error)}): write those of the "
                "authorities that sign the other side's certificates"
            ) from error
    return context


def _dialling(settings: TlsSettings) -> ssl.SSLContext:
    """Names are not compared: what dials proves by other means that it speaks to the node it means."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, settings)
    context.check_hostname = False
    return context


def _no_password() -> str:
    # Without this OpenSSL asks at the terminal, and the node would wait there.
    raise ValueError("the key has a password")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return getattr(error, "reason", None) or str(error)


def _not_after(settings: TlsSettings) -> float:
    """The end of the certificate that the other side gets to see, from a handshake with itself in memory.

    Where this node dials, both sides are asked for what nodes ask of each other, but for the time.
    """
    server = _context(ssl.PROTOCOL_TLS_SERVER, settings)
    if settings.dials:
        client = _dialling(settings)
        server.verify_mode = ssl.CERT_REQUIRED
        client.verify_flags = server.verify_flags = ssl.VerifyFlags(_NO_CHECK_TIME)
    else:
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False
        client.load_verify_locations(settings.certificate)
        client.verify_flags = ssl.VerifyFlags(_NO_CHECK_TIME | _PARTIAL_CHAIN)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    try:
        for _ in range(4):
            for end in ends:
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    continue
        told = ends[0].getpeercert()
    except (ssl.SSLError, ValueError) as error:
        if settings.dials:
            raise TlsFilesError(
                f"{settings.certificate}: the other nodes cannot accept it ({_reason(error)}): {settings.ca} "
                "must have the authority that signed it, and it must be for TLS servers and clients"
            ) from error
        raise TlsFilesError(
            f"{settings.certificate}: no client can use it ({_reason(error)}): get one for a TLS server"
        ) from error
    assert told is not None
    return ssl.cert_time_to_seconds(str(told["notAfter"]))


class TlsKeeper:
    """The contexts for the next connections of one port, made again when its files change."""

    def __init__(
        self,
        settings: TlsSettings,
        port: str,
        *,
        loop: asyncio.AbstractEventLoop,
        watch_seconds: float = WATCH_SECONDS,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`port` is its name in messages, like "listener public"."""
        self.settings = settings
        self.port = port
        self._loop = loop
        self._watch_seconds = watch_seconds
        self._wall = wall
        self._seen: object = None
        self._loaded: Loaded | None = None
        self._warned: float | None = None
        self._failure = ""
        self._watch: asyncio.Task[None] | None = None

    @property
    def context(self) -> ssl.SSLContext:
        """For the next connection that comes in."""
        assert self._loaded is not None, "it was opened"
        return self._loaded.context

    @property
    def dialling(self) -> ssl.SSLContext:
        """For the next connection that this node makes; only with `TlsSettings.dials`."""
        assert self._loaded is not None
        assert self._loaded.dialling is not None
        return self._loaded.dialling

    @property
    def not_after(self) -> float | None:
        """Unix time at which the certificate ends that the other side is shown; None until it was opened."""
        return None if self._loaded is None else self._loaded.not_after

    def open(self) -> None:
        """Read the files, and watch them from now on; blocking. Raises TlsFilesError."""
        with contextlib.suppress(OSError):  # `load` tells of it, with the cure
            self._seen = self._signature()
        self._take(load(self.settings))
        self._watch = self._loop.create_task(self._watched())

    def close(self) -> None:
        """Watch no more."""
        if self._watch is not None:
            self._watch.cancel()

    def _signature(self) -> object:
        """Differs when a file was written, or another put in its place, also behind a symbolic link."""
        found = [os.stat(path) for path in self.settings.files]
        return [(one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns) for one in found]

    def _changed(self) -> tuple[object, Loaded] | None:
        seen = self._signature()
        return None if seen == self._seen else (seen, load(self.settings))

    async def _watched(self) -> None:
        while True:
            await asyncio.sleep(self._watch_seconds)
            try:
                changed = await self._loop.run_in_executor(None, self._changed)
            except (OSError, TlsFilesError) as error:
                self._fail(str(error))
                continue
            except Exception as error:  # the watching goes on, or a new certificate is never read
                self._fail(repr(error))
                continue
            self._failure = ""
            if changed is not None:
                self._seen, loaded = changed
                self._take(loaded)
                log.info("%s has read its certificate again: %s", self.port, self._end())
            self._warn()

    def _fail(self, failure: str) -> None:
        if failure != self._failure:
            log.warning("%s goes on with the certificate it has: %s", self.port, failure)
        self._failure = failure
        self._warn()

    def _take(self, loaded: Loaded) -> None:
        self._loaded, self._warned = loaded, None
        if loaded.readable_key:
            log.warning("every user of this machine may read %s: chmod 600 it", self.settings.key)
        self._warn()

    def _warn(self) -> None:
        """Say once a day that the certificate ends soon, or has ended."""
        left = self._left()
        if left > WARN_DAYS * _DAY:
            return
        if self._warned is not None and self._loop.time() - self._warned < WARN_AGAIN_SECONDS:
            return
        self._warned = self._loop.time()
        level = logging.WARNING if left > 0 else logging.ERROR
        log.log(
            level,
            "%s: %s: write a new one to %s, which the node reads again by itself",
            self.port,
            self._end(),
            self.settings.certificate,
        )

    def _left(self) -> float:
        assert self._loaded is not None, "it was opened"
        return self._loaded.not_after - self._wall()

    def _end(self) -> str:
        days = self._left() / _DAY
        return f"its certificate ends in {days:.0f} days" if days > 0 else "its certificate has expired"
