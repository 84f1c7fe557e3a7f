"""Training: configure, bind, train, evaluate and save a run."""
