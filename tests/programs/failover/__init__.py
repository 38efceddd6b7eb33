"""A leader is killed, stopped and cut off again and again under load, in real processes: what clients see."""
