"""Keys of a section that lets clients in by tokens of an issuer: a listener's, and those of `[admin]`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from strandline.node.config.addresses import is_loopback
from strandline.node.config.file_paths import file_path
from strandline.node.config.values import optional_text, some_text
from strandline.node.oauth.token_settings import TokenSettings, is_url

if TYPE_CHECKING:
    from strandline.node.oauth.bearer_tokens import BearerTokens

DEFAULT_CLAIM: Final = "sub"
CURES: Final = {
    "oauth_keys": "write the path or the https URL of the issuer's JSON Web Key Set",
    "oauth_issuer": "write what the claim iss of its tokens says",
    "oauth_audience": "write the name that this cluster has in the claim aud of its tokens",
}
"""By each key that tokens need, how it is set right."""


class TokenSection(Protocol):
    """A section with these keys; empty texts where no token is taken."""

    @property
    def oauth_keys(self) -> str: ...

    @property
    def oauth_issuer(self) -> str: ...

    @property
    def oauth_audience(self) -> str: ...

    @property
    def oauth_principal_claim(self) -> str: ...


def bearer_tokens(section: TokenSection) -> BearerTokens:
    """The checks of a section's tokens, whose keys have yet to be read."""
    # What reads tokens costs 9 MB, and most nodes need none of it.
    from strandline.node.oauth.bearer_tokens import BearerTokens

    return BearerTokens(
        TokenSettings(
            section.oauth_keys, section.oauth_issuer, section.oauth_audience, section.oauth_principal_claim
        )
    )


def _keys_place(value: Any) -> str:
    if not isinstance(value, str) or not is_url(value):
        return file_path(value)
    found = urlsplit(value)
    if "@" in found.netloc:
        raise ValueError("its user or password would be in logs, and no request has them: leave them out")
    if found.scheme == "https" or (found.scheme == "http" and is_loopback(found.hostname or "")):
        return value
    raise ValueError(
        f"{value!r} is no URL whose answer can be trusted: write one with https, or the path of a file"
    )


TOKEN_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "oauth_keys": _keys_place,
    "oauth_issuer": optional_text,
    "oauth_audience": optional_text,
    "oauth_principal_claim": some_text,
}
assert {*CURES, "oauth_principal_claim"} == set(TOKEN_READERS)
