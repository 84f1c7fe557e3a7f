"""Training over real machines with Flower: `pip install 'tunefree[flower]'`.

Flower carries the messages. The rounds, rules, wires and the ledger are those of the simulation;
the server's checkpoints and the clients' memory on disk, which Flower lacks, are here.
"""

from .apps import client_app, server_app
from .settings import Settings

__all__ = ["Settings", "client_app", "server_app"]
