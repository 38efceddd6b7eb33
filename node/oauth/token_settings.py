"""The tokens that a listener takes, as its settings have them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """One issuer's tokens, for this cluster."""

    keys: str
    """Path or URL of the issuer's JSON Web Key Set."""
    issuer: str
    audience: str
    principal_claim: str = "sub"


def is_url(place: str) -> bool:
    """Whether a place is a URL, and not the path of a file."""
    return "://" in place
