"""The demonstration: real records through a real cluster that loses a leader, checked record by record."""
