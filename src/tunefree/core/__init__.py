"""Shared by all layers: types, errors, random numbers, layout and plan, text and files."""
