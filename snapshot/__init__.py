"""State at rest: its formats, and how it is stored and published."""
