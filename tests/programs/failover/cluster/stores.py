"""Where the cluster under test keeps its objects: a folder, or S3 as moto plays it, behind a proxy.

Either can be made to fail: the folder when it lies on a small disk, S3 on the way to it.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.programs.failover.cluster.small_disk import SmallDisk
from tests.programs.failover.cluster.store_proxy import StoreProxy

_BUCKET = "failover"
_DISK_BYTES = 6 << 30
_REGION = "us-east-1"
_KEY = "test"


class LocalStorage:
    """A folder; on a small disk when this user may mount one."""

    def __init__(self, folder: Path, *, small_disk: bool) -> None:
        folder.mkdir(mode=0o700, parents=True)
        self.url = str(folder)
        self.settings: tuple[str, ...] = ()
        self.options: dict[str, str] = {}
        self.disk = SmallDisk(folder, _DISK_BYTES) if small_disk and SmallDisk.possible() else None
        self.proxy: StoreProxy | None = None

    async def close(self, keep: Path | None) -> None:
        """Undo the mount; the objects on it are gone, unless there is a place where to `keep` them."""
        if self.disk is not None:
            self.disk.free()
            if keep is not None:
                shutil.copytree(self.disk.path, keep)
            self.disk.unmount()


class S3Storage:
    """A bucket of moto's server. Nodes reach it through `proxy`, whoever uses `options` directly."""

    def __init__(self, proxy: StoreProxy, server: subprocess.Popen[str], port: int) -> None:
        self.url = f"s3://{_BUCKET}"
        self.proxy: StoreProxy | None = proxy
        self.disk: SmallDisk | None = None
        self.options = _options(port)
        self.settings = tuple(
            f"storage.options.{name}={value}" for name, value in _options(proxy.port).items()
        )
        self._server = server

    @classmethod
    async def start(cls, rng: random.Random, log: Path) -> S3Storage:
        """Start the server and make the bucket; the running loop forwards what the nodes say to it.

        What the server prints, a line for each request, goes to `log`.
        """
        server, port = await asyncio.to_thread(_start_server, log)
        proxy = StoreProxy(rng)
        proxy.target_port = port
        await proxy.open()
        return cls(proxy, server, port)

    async def close(self, keep: Path | None) -> None:
        """End the server; the objects are gone with it."""
        assert self.proxy is not None
        await self.proxy.close()
        self._server.communicate(timeout=20)


def _start_server(log: Path) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-m", "tests.objectstore.moto_server"]
    with log.open("ab") as told:
        server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=told, text=True
        )
    assert server.stdout is not None
    port = int(server.stdout.readline())
    make = urllib.request.Request(f"http://127.0.0.1:{port}/{_BUCKET}", method="PUT")
    urllib.request.urlopen(make, timeout=60).close()
    return server, port


Storage = LocalStorage | S3Storage


def _options(port: int) -> dict[str, str]:
    return {
        "endpoint": f"http://127.0.0.1:{port}",
        "region": _REGION,
        "access_key_id": _KEY,
        "secret_access_key": _KEY,
    }
