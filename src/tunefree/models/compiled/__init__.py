"""Compiled engines: torch.compile, recorded graphs, and operations made for batched clients."""
