"""One round: the server's half, the client's half, and the protocol between them."""
