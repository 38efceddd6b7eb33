"""The three fences of exactly-once, one scene for each, and what happens where one of them is taken out."""
