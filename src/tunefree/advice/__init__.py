"""Advice on which method to use, from measured results and from what a method costs."""
