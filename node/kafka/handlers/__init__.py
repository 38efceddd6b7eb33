"""The requests of Kafka's protocol, one module for each family; handler.py has the table."""
