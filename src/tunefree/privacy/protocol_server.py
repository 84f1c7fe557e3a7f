"""The server of a secure sum: it adds masked vectors and removes the masks from their sum.

Bonawitz et al., CCS 2017, Figure 4. doi:10.1145/3133956.3133982

    U1 sent keys,  U2 of them shares,  U3 of them vectors,  U4 of them opened;  each >= threshold

    sum_{u in U3} x_u = sum_{U3} y_u - sum_{u in U3} M(b_u)
                        - sum_{u in U3, d in U2 \\ U3} sign(d - u) M(s_ud)     mod 2^k

The seeds b_u of members in the sum and the keys s_d of members that are not come from the shares
that U4 opens. A member that drops out before its vector arrives is left out of the sum; one that
drops out later is included. A refused message raises `ProtocolError` and does not change the state:
its sender is treated as absent. The server stores the sum, but no member's masked vector.
"""

from collections.abc import Container

import numpy as np

from . import shamir
from .keys import KEY, ProtocolError, mask, public_key
from .messages import (
    KEYS,
    OPENED,
    SEALED,
    SERVER,
    ProtocolTerms,
    ThresholdError,
    check_length,
    decode_message,
    decode_rows,
    encode_message,
    encode_rows,
)
from .protocol_client import commit_seed, pairwise_key
from .quantizer import BITS, UnsignedArray


class ProtocolServer:
    """The server's part in one session."""

    def __init__(self, terms: ProtocolTerms) -> None:
        self.terms = terms
        self._keys: dict[int, bytes] = {}
        self._roster: bytes | None = None
        self._binding = b""
        self._checks: dict[int, bytes] = {}
        self._sealed: dict[int, dict[int, bytes]] = {}  # by sender, then by recipient
        self._sharing = True
        self._arrived: set[int] = set()
        self._sum: UnsignedArray = np.zeros(terms.length, BITS[terms.bits])
        self._left: bytes | None = None
        self._opened: dict[int, dict[int, bytes]] = {}  # by owner of the secret, then by sender
        self._openers: set[int] = set()

    def receive_keys(self, client: int, message: bytes) -> None:
        """Receive a member's public keys."""
        body = decode_message("keys", self.terms, client, message)
        self._expect(client, self._roster is None, self._keys)
        self._keys[client] = check_length("keys", body, KEYS)

    def roster(self) -> bytes:
        """Return the message with all members' keys; later members are refused."""
        if self._roster is None:
            self.terms.check(len(self._keys))
            members = encode_rows(self._keys.items())
            self._roster = encode_message("roster", self.terms, SERVER, members)
            self._binding = self.terms.bind(self._roster)
        return self._roster

    def receive_shares(self, client: int, message: bytes) -> None:
        """Receive a member's sealed shares."""
        body = decode_message("shares", self.terms, client, message)
        self._expect(client, self._roster is not None and self._sharing, self._sealed, self._keys)
        found = decode_rows("shares", body[KEY:], SEALED, len(self._keys))
        if found.keys() != self._keys.keys() - {client}:
            raise ProtocolError(f"Member {client} did not share with each of the others.")
        self._checks[client], self._sealed[client] = bytes(body[:KEY]), found

    def inbox(self, client: int) -> bytes:
        """Return the message with the shares for a member; later shares are refused."""
        self.terms.check_left(len(self._sealed))
        if client not in self._sealed:
            raise ProtocolError(f"Member {client} did not share.")
        self._sharing = False
        mine = {u: sealed[client] for u, sealed in self._sealed.items() if u != client}
        return encode_message("inbox", self.terms, SERVER, encode_rows(mine.items()))

    def receive_masked(self, client: int, message: bytes) -> None:
        """Add a member's masked vector to the sum."""
        body = decode_message("masked", self.terms, client, message)
        early = self._left is None and not self._sharing
        self._expect(client, early, self._arrived, self._sealed)
        data = check_length("masked", body, self._sum.nbytes)
        self._sum = self._sum + np.frombuffer(data, self._sum.dtype)
        self._arrived.add(client)

    def survivors(self) -> bytes:
        """Return the message that lists the members in the sum; later vectors are refused."""
        if self._left is None:
            self.terms.check_left(len(self._arrived))
            listed = encode_rows((u, b"") for u in self._arrived)
            self._left = encode_message("survivors", self.terms, SERVER, listed)
        return self._left

    def receive_opened(self, client: int, message: bytes) -> None:
        """Receive the shares that a member opened."""
        body = decode_message("opened", self.terms, client, message)
        self._expect(client, self._left is not None, self._openers, self._arrived)
        found = decode_rows("opened", body, OPENED, len(self._sealed))
        if client not in found or not found.keys() <= self._sealed.keys():
            raise ProtocolError(f"Member {client} opened shares of another session.")
        for v, part in found.items():
            if part[:1] != (b"s" if v in self._arrived else b"k"):
                raise ProtocolError(f"Member {client} opened the wrong secret of {v}.")
        self._openers.add(client)
        for v, part in found.items():
            self._opened.setdefault(v, {})[client] = part[1:]

    def unmask_sum(self) -> UnsignedArray:
        """Return the sum of the survivors' vectors, modulo 2^k."""
        seeds = {u: self._secret(u) for u in sorted(self._arrived)}
        gone = {u: self._secret(u) for u in sorted(self._sealed.keys() - self._arrived)}
        t, out = self.terms, self._sum
        for u, seed in seeds.items():
            if commit_seed(self._binding, seed) != self._checks[u]:
                raise ProtocolError(f"The shares of member {u}'s seed are wrong.")
            out = out - mask(seed, t.length, t.bits)
        for d, key in gone.items():
            if public_key(key) != self._keys[d][KEY:]:
                raise ProtocolError(f"The shares of member {d}'s key are wrong.")
            for u in sorted(self._arrived):
                part = mask(pairwise_key(key, self._keys[u][KEY:], self._binding), t.length, t.bits)
                out = out - part if u < d else out + part
        return out

    @property
    def survivor_ids(self) -> tuple[int, ...]:
        """The members in the sum, ascending."""
        return tuple(sorted(self._arrived))

    def _secret(self, u: int) -> bytes:
        """Reconstruct a member's seed or key from `threshold` shares."""
        found = self._opened.get(u, {})
        need = self.terms.threshold
        if self._left is None or len(found) < need:
            raise ThresholdError(
                f"{len(found)} members opened their share of {u}; it takes {need}."
            )
        place = {v: x for x, v in enumerate(sorted(self._keys), start=1)}
        some = {place[v]: found[v] for v in sorted(found)[:need]}
        try:
            return shamir.join(some)
        except ValueError as error:
            raise ProtocolError(f"The shares of member {u} are wrong: {error}") from None

    def _expect(
        self, client: int, now: bool, done: Container[int], members: Container[int] | None = None
    ) -> None:
        """Refuse a message that is early, late, repeated, or from a client that is no member."""
        if not now:
            raise ProtocolError(f"The message of member {client} is out of turn.")
        if members is not None and client not in members:
            raise ProtocolError(f"Member {client} did not take the step before.")
        if client in done:
            raise ProtocolError(f"Member {client} has sent this before.")
