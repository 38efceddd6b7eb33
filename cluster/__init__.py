"""Many nodes as one: the command line, and what starts, stops and administers local clusters."""
