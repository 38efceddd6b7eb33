"""Reasons of a refusal: the value that every layer below Kafka's requests answers with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.errors import ErrorCode


class Failure(NamedTuple):
    """The reason why one topic, partition or resource of a request was not served."""

    code: ErrorCode
    message: str | None


@dataclass(frozen=True, slots=True)
class AppendFailed:
    """The batch was not acknowledged. Under NOT_ENOUGH_REPLICAS_AFTER_APPEND alone it may be there all the
    same, now or later; under any other code it is not and never will be."""

    code: ErrorCode
    message: str
    records: Sequence[int] = ()
    """Numbers within the batch of the records it was refused for, where it was for single ones."""
