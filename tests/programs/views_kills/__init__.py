"""Views whose processes and nodes are killed, again and again."""
