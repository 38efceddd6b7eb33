"""The reason why a part of a request was not served, with Kafka's code for it.

A command whose outcome is unknown may have been applied. A client must not take that for a refusal, so it is
REQUEST_TIMED_OUT, on which clients look first and then ask again; the message says what is known.
"""

from __future__ import annotations

from typing import NamedTuple

from kio.schema.errors import ErrorCode

from strandline.node.controller.client import Unavailable
from strandline.node.kafka.handlers.error_codes import code_of
from strandline.statemachine.kafka_errors import Refused


class Failure(NamedTuple):
    """The reason why one topic, partition or resource of a request was not served."""

    code: ErrorCode
    message: str | None


def refused(refusal: Refused) -> Failure:
    """The failure for a refusal of the state machine, by Kafka's code for it."""
    return Failure(code_of(refusal), refusal.message)


def timed_out(unavailable: Unavailable) -> Failure:
    """The failure for a controller that did not answer in time."""
    known = "it may have been carried out, or may yet be" if unavailable.unknown else "nothing was changed"
    return Failure(
        ErrorCode.request_timed_out, f"The controller did not answer: {unavailable.reason}; {known}."
    )
