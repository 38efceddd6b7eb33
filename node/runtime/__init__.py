"""What the process gives every part: event loop and threads, memory, logs, and turns that stay short."""
