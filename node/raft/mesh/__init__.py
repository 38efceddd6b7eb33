"""The connections between the nodes."""
