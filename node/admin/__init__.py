"""The HTTP side of a node: its health, its metrics, what it knows. docs/operating.md tells the paths."""
