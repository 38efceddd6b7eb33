"""`strandline export`, killed again and again."""
