"""What holds for every method and every part: a new one is tested by being listed."""
