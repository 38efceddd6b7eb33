"""Transactional load on three real nodes under faults; anomalies in what its clients saw are looked for."""
