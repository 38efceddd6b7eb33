"""An audit of storage that does not answer has no verdict: it would find everything lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from strandline.snapshot.names import PREFIX
from strandline.snapshot.patient_storage import FIRST_WAIT_SECONDS, PATIENCE_SECONDS, PatientStorage
from strandline.snapshot.storage import NoAnswer, Storage, StorageError

TRIES: Final = 3
"""Times that one question is asked of a storage which answers others."""
Answer = TypeVar("Answer")


class Interrupted(BaseException):
    """The storage did not answer for so long that the audit is given up.

    Whatever an audit catches is about the object that it reads, so this is no Exception.
    """


class AnsweringStorage(PatientStorage):
    """A storage that is waited for; without an answer it raises Interrupted.

    Where it answers all but one question, as a disk with a bad sector, it raises NoAnswer, which an audit
    takes for a finding.
    """

    ends_with_parent = False  # which may be a shell

    def _patiently(self, ask: Callable[[], Answer]) -> Answer:
        for _ in range(TRIES):
            try:
                return ask()
            except NoAnswer as error:
                failed = error
            if not self._answers():
                break
            time.sleep(FIRST_WAIT_SECONDS)
        else:
            raise failed
        try:
            return super()._patiently(ask)
        except NoAnswer as error:
            raise Interrupted(str(error)) from None

    def _answers(self) -> bool:
        """Whether the storage answers at all."""
        try:
            self._storage.folders(PREFIX)
        except StorageError:
            return False
        return True


def answering(storage: Storage) -> AnsweringStorage:
    """The same, waited for from now on.

    Raises StorageError if it does not answer now: the user is there to read why.
    """
    storage.folders(PREFIX)
    return AnsweringStorage(storage, PATIENCE_SECONDS)


_TOLD: Final = f"{Interrupted.__module__}.{Interrupted.__qualname__}: "


@contextmanager
def interrupted_as(kind: type[Exception]) -> Iterator[None]:
    """Raise this for Interrupted, also where a task raised it, of which Spark gives the stack trace."""
    try:
        yield
    except Interrupted as error:
        raise kind(_without_verdict(str(error))) from None
    except (PySparkException, Py4JError) as error:
        for line in map(str.strip, str(error).splitlines()):
            if line.startswith(_TOLD):
                raise kind(_without_verdict(line.removeprefix(_TOLD))) from None
        raise


def _without_verdict(reason: str) -> str:
    return f"{reason}; the audit has no verdict: begin it again"
