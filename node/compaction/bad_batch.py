"""The error of a batch that cannot be cleaned; apart from the rest, so that a node starts without numpy."""


class BadBatch(ValueError):
    """Bytes that are no batch, or whose records are not what its header says."""
