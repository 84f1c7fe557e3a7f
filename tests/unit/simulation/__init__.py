"""The room engines."""
