"""The room server."""
