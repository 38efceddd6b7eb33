"""Consumer groups at the leader of their coordinator: waiting requests, timers, and the resulting
commands."""
