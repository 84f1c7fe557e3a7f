"""The same method over real machines, through Flower: `pip install 'tunefree[flower]'`.

Flower carries the messages; the rounds, the rules, the wires and the ledger are ours, and what
Flower lacks (checkpoints of the server, memory of the clients that outlives a process) is here.
"""

from .apps import client_app, server_app
from .settings import Settings

__all__ = ["Settings", "client_app", "server_app"]
