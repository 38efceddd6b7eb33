"""Consumer groups at the leader of their coordinator: what is awaited, and the commands that decide it."""
