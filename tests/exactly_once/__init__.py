"""Histories of transactional clients and their anomalies; and a program that is exactly-once, or is not."""
