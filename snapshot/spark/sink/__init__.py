"""The sink of the data source `strandline`: records written to the brokers, each batch once.

See docs/spark.md, "Writing".
"""
