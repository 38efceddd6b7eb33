"""The token by which a command logs in: from a file that its owner alone can read, or from a variable.

It is read for each login: whatever renews it puts another one there while a command runs.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import stat
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from strandline.cluster.failure import MISUSED, CommandFailed

OAUTHBEARER: Final = "OAUTHBEARER"
TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"
"""Kafka's name of the place of a token (KIP-768); of its URLs that of a file is taken."""
TOKEN_VARIABLE: Final = "STRANDLINE_TOKEN"
MAX_BYTES: Final = 16 * 1024
"""As many as a node takes."""
_LEEWAY_SECONDS: Final = 30
"""By so much a node lets clocks differ."""
_LEAST_SECONDS: Final = 5.0
"""librdkafka takes no token that has ended; how long one is good, the node decides."""


def has_token(settings: Mapping[str, str]) -> bool:
    """Whether a command logs in by a token."""
    return settings.get("sasl.mechanism") == OAUTHBEARER


def token_path(settings: Mapping[str, str]) -> Path | None:
    """The file with the token; None where it is in the variable. Raises CommandFailed for another URL."""
    url = settings.get(TOKEN_URL)
    if url is None:
        return None
    found = urlsplit(url)
    path = Path(unquote(found.path))
    if found.scheme != "file" or found.netloc or not path.is_absolute():
        raise CommandFailed(
            f"{TOKEN_URL}={url} is not the URL of a file",
            "have the token written to a file, and name that as file:///PATH",
            MISUSED,
        )
    return path


def token(settings: Mapping[str, str]) -> str:
    """The token of this moment. Raises CommandFailed, without a part of it."""
    path = token_path(settings)
    where = f"the variable {TOKEN_VARIABLE}" if path is None else str(path)
    found = (os.environ.get(TOKEN_VARIABLE, "") if path is None else _read(path)).strip()
    if not found or len(found) > MAX_BYTES or not found.isascii() or not found.isprintable():
        raise CommandFailed(f"{where} has no token", "put a JSON Web Token there, and nothing else", MISUSED)
    ends = _end(found)
    if ends is not None and ends < time.time() - _LEEWAY_SECONDS:
        when = datetime.fromtimestamp(ends, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        raise CommandFailed(f"the token of {where} has ended, at {when}", "get a new one", MISUSED)
    return found


def token_and_end(settings: Mapping[str, str]) -> tuple[str, float]:
    """As librdkafka wants it: the token, and until when it need not ask for another, as Unix time."""
    found = token(settings)
    soonest = time.time() + _LEAST_SECONDS
    ends = _end(found)
    return found, soonest if ends is None else max(ends, soonest)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise CommandFailed(
                    f"{path} can be read by others than its owner", f"chmod 600 {path}", MISUSED
                )
            return file.read(MAX_BYTES + 1).decode("latin-1")
    except OSError as error:
        raise CommandFailed(
            f"{path}: {error.strerror or error}", f"name a file that can be read as {TOKEN_URL}", MISUSED
        ) from None


def _end(found: str) -> float | None:
    """The end that a token gives itself, as Unix time; None if it gives none, which the node judges."""
    try:
        body = found.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["exp"])
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, RecursionError, binascii.Error):
        return None
