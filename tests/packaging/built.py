"""Building and installing with uv, from the index that this machine is set up for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests import ROOT

_SECONDS: Final = 240
_OFFLINE: Final = ("Failed to fetch", "error sending request")


class Uv:
    """The uv of scripts/setup. A test is skipped where the index cannot be reached."""

    def __init__(self) -> None:
        own = ROOT / ".tools" / "uv" / "bin" / "uv"
        found = str(own) if own.exists() else shutil.which("uv")
        if found is None:
            pytest.skip("no uv in .tools, nor on the PATH")
        self._uv = found
        self._environ = {**os.environ, "UV_SYSTEM_CERTS": "1", "UV_PYTHON_DOWNLOADS": "never"}
        self._environ.setdefault("SSL_CERT_FILE", os.environ.get("PIP_CERT", ""))
        if not self._environ["SSL_CERT_FILE"]:
            del self._environ["SSL_CERT_FILE"]
        if index := os.environ.get("UV_INDEX_URL") or os.environ.get("PIP_INDEX_URL"):
            self._environ.setdefault("UV_DEFAULT_INDEX", index)

    def run(self, *arguments: str | Path) -> None:
        """Run uv in the project's folder; AssertionError with its words when it fails."""
        done = self._try(*arguments)
        if done.returncode and any(word in done.stderr for word in _OFFLINE):
            pytest.skip(f"the index cannot be reached: {done.stderr.strip().splitlines()[-1]}")
        assert done.returncode == 0, done.stderr

    def _try(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._uv, "--quiet", *arguments],
            cwd=ROOT, env=self._environ, capture_output=True, text=True, timeout=_SECONDS, check=False,
        )  # fmt: skip

    def build(self, folder: Path, *options: str) -> Path:
        """Build into a folder; the wheel."""
        self.run("build", "--out-dir", folder, *options)
        (wheel,) = folder.glob("*.whl")
        return wheel

    def install(self, python: Path, environment: Path, wheel: Path, extras: str = "") -> Path:
        """Make an environment with a wheel in it, and what it needs in the locked versions; its python.

        `extras` are names in brackets.
        """
        locked = environment.with_suffix(".txt")
        self.run(
            "export", "--frozen", "--no-emit-project", "--no-hashes", "--all-extras", "--output-file", locked
        )
        self.run("venv", "--python", python, environment)
        made = environment / "bin" / "python"
        install = ("pip", "install", "--python", made, "--constraint", locked, f"{wheel}{extras}")
        # scripts/setup has left all of it in uv's cache; an index may have it fetch PySpark's 400 MB again.
        if self._try(*install, "--offline").returncode:
            self.run(*install)
        return made
