"""The newest cluster epoch this node knows: what names its objects and tags its appends."""

from __future__ import annotations

from strandline.statemachine.controller.controller import Controller


class ClusterEpoch:
    """The maximum of the local controller replica's epoch and of any that was met elsewhere."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._learned = 0

    def current(self) -> int:
        """At least 1; never goes back while the process lives."""
        epoch = self._controller.cluster_epoch
        if epoch > self._learned:
            self._learned = epoch
        return self._learned

    def learn(self, epoch: int) -> None:
        """Take in an epoch seen in a partition's window, which may be ahead of the local replica."""
        if epoch > self._learned:
            self._learned = epoch
