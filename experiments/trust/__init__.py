"""Accuracy under attack."""
