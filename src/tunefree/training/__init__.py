"""Training: a run is configured, bound, trained, evaluated and kept."""
