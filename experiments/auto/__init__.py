"""Why `auto` is what it is: candidates beside tuned baselines."""
