"""The dangerous schedules of compaction as set pieces: what a random seed hardly meets, step by step."""
