"""Programs of views in the simulated world: production processes, a played log, controller and store."""
