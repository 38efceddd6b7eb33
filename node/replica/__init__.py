"""What every replica on this node has in common, whatever its state machine."""
