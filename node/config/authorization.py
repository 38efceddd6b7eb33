"""Settings of access control on Kafka's ports: `[authorization]`, the same on all nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AuthorizationSection:
    """Whether clients need access control entries for what they do on Kafka's ports."""

    enabled: bool = False
    super_users: tuple[str, ...] = ()
    """Principals that may do everything, like User:admin."""
    allow_everyone_if_no_acl_found: bool = False
    """Whether everything may be done to a resource that no entry is about."""


def principals(value: Any) -> tuple[str, ...]:
    """Read a list of users, in a variable with semicolons between them: names of certificates have commas."""
    texts = value.split(";") if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(
        isinstance(text, str) and text.startswith("User:") and len(text) > len("User:") for text in texts
    ):
        raise ValueError(f'{value!r} is not a list of principals: write like ["User:admin"]')
    return tuple(texts)
