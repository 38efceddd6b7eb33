"""Records to the brokers in transactions: what Spark's sink and views write with.

A batch is sent until it is acknowledged, and a broker knows it by its number.
"""
