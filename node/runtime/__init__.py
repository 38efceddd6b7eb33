"""Runtime of every part: event loop and threads, memory, logs, and short turns."""
