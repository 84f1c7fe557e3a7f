"""One round: the server's half, the client's half, and the protocol between them."""

from .client import (
    ClientTask,
    init_client_memory,
    local_update,
    make_sender,
    pack_uploads,
    update_memory,
    wire_for_round,
)
from .pool import ClientPool, NoClientsError, QueryRequest, RoundResult
from .scaling import exchange_moments
from .server import ServerState, init_server_state, output_model, run_round

__all__ = [
    "ClientPool",
    "ClientTask",
    "NoClientsError",
    "QueryRequest",
    "RoundResult",
    "ServerState",
    "exchange_moments",
    "init_client_memory",
    "init_server_state",
    "local_update",
    "make_sender",
    "output_model",
    "pack_uploads",
    "run_round",
    "update_memory",
    "wire_for_round",
]
