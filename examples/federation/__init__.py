"""A Flower federation on this machine: a SuperLink and SuperNodes as local processes."""
