"""Programs that measure, load and hurt clusters; `scripts/` starts them. docs/testing.md lists them."""
