"""Simulated clients: they train in this process, in chunks of rows."""
