"""Common parts of every replica on this node, for any state machine."""
