"""A Spark stream over a cluster, killed again and again: `scripts/spark-kills`."""
