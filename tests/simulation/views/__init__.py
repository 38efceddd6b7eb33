"""Programs of views in the simulated world: production processes beside a played log, controller and store."""
