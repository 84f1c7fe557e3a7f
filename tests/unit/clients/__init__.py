"""The room clients."""
