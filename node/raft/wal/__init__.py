"""The write-ahead log of a node, and each group's log on it."""
