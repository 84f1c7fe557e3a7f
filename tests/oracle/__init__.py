"""Slow NumPy loops, one client at a time, written from the papers."""
