"""Pure and deterministic state machines: time and ids arrive inside commands, nothing else comes in."""
