"""The room privacy."""
