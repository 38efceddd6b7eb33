"""A partition's running verifications of producers, as long as the applied state does not have the answer.

The applied state shows whether a producer's transaction is open. Until the transaction's first batch is
applied, only the leader knows that it asked the transaction coordinator, or the answer. Batches that come
meanwhile share that answer, so a producer with several batches in flight causes one question.
"""

from __future__ import annotations

from strandline.node.partition.batch import Verification
from strandline.node.refusal import Refusal


class _Asked:
    __slots__ = ("batches", "epoch", "verification")

    def __init__(self) -> None:
        self.epoch = -1
        self.verification: Verification | None = None
        self.batches = 0
        """Accepted with a verification and not yet answered, of whatever epoch."""


class Verifications:
    """By producer id; there as long as a batch of the producer that was to be verified is unanswered."""

    def __init__(self) -> None:
        self._asked: dict[int, _Asked] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def of(self, producer_id: int, epoch: int, ended: int) -> Verification | None:
        """The verification that a batch may share; None: the coordinator has to be asked.

        One that failed is not shared, nor one with the number of a transaction that has ended here (`ended`
        is the highest): the producer has gone on to its next one.
        """
        asked = self._asked.get(producer_id)
        if asked is None or asked.epoch != epoch:
            return None
        verification = asked.verification
        assert verification is not None
        if verification.done():
            if verification.cancelled() or verification.exception() is not None:
                return None
            verified = verification.result()
            if isinstance(verified, Refusal) or verified.number <= ended:
                return None
        return verification

    def begin(self, producer_id: int, epoch: int, verification: Verification) -> None:
        """A batch that waits for this verification was accepted; the newest one is shared."""
        asked = self._asked.get(producer_id)
        if asked is None:
            asked = self._asked[producer_id] = _Asked()
        asked.epoch, asked.verification = epoch, verification
        asked.batches += 1

    def end(self, producer_id: int) -> None:
        """Such a batch was answered."""
        asked = self._asked[producer_id]
        asked.batches -= 1
        if not asked.batches:
            del self._asked[producer_id]
