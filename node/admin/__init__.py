"""The HTTP API of a node: its health, its metrics, its state. docs/operating.md has the paths."""
