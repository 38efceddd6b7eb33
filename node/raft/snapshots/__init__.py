"""Taking, storing, sending and installing snapshots of replicas."""
