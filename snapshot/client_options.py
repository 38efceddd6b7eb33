"""Options of obstore's HTTP client, which a bucket's are not: obstore panics when it is given them so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

NAMES: Final = frozenset(
    (
        "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type",
        "default_headers", "http1_only", "http2_keep_alive_interval", "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle", "http2_only", "pool_idle_timeout", "pool_max_idle_per_host",
        "proxy_ca_certificate", "proxy_excludes", "proxy_url", "randomize_addresses", "read_timeout",
        "root_certificate", "timeout", "user_agent",
    )
)  # fmt: skip


def check_options(names: Iterable[str]) -> None:
    """Raise ValueError, half a line with the cure, if one of a bucket's options is the HTTP client's."""
    for name in names:
        if name.lower() in NAMES:
            raise ValueError(
                f"{name}: it is not an option of an object store: remove it (an endpoint that begins "
                "with http:// is asked in plain HTTP; HTTP_PROXY and HTTPS_PROXY name a proxy)"
            )
