"""Recommendations: which methods to try on given data."""
