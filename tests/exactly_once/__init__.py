"""What transactional clients saw, and the anomalies that must not be in it."""
