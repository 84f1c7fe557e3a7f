"""The server of a secure sum: it adds masked vectors and removes the masks from their sum.

Bonawitz et al., CCS 2017, Figure 4. doi:10.1145/3133956.3133982
This implementation is experimental and was not audited.

    U1 sent keys,  U2 of them shares,  U3 of them vectors,  U4 of them opened;  each >= threshold

    sum_{u in U3} x_u = sum_{U3} y_u - sum_{u in U3} M(b_u)
                        - sum_{u in U3, d in U2 \\ U3} sign(d - u) M(s_ud)     mod 2^k

The seeds b_u of members in the sum and the keys s_d of members that are not come from the shares
that U4 opens. A member that drops out before its vector arrives is left out of the sum; one that
drops out later is included. A refused message raises `ProtocolError` and does not change the state:
its sender is treated as absent. An opened share that is not the one that its owner committed to is
left out; while `threshold` right ones remain, the sum is unmasked. A member that dealt shares of no
secret is named by `DealerError`: its vector cannot be taken out of the sum any more, so the sum is
lost. The server stores the sum, but no member's masked vector.
"""

from collections.abc import Container, Mapping

import numpy as np

from . import shamir
from .keys import KEY, ProtocolError, check_public, mask, public_key
from .messages import (
    CHECKS,
    DEALT,
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
    encode_roster,
    encode_rows,
)
from .protocol_client import bind_question, commit_seed, commit_share, pairwise_key
from .quantizer import BITS, UnsignedArray


class DealerError(ProtocolError):
    """The shares that `member` dealt have no secret in common."""

    def __init__(self, member: int) -> None:
        super().__init__(f"The shares that member {member} dealt are wrong.")
        self.member = member


class ProtocolServer:
    """The server's part in one session.

    Args:
        terms: The session's parameters.
        weights: Weights of the members in (0, 1], by which they multiply their values; None is 1.
    """

    def __init__(self, terms: ProtocolTerms, weights: Mapping[int, float] | None = None) -> None:
        self.terms, self._weights = terms, weights
        self._keys: dict[int, bytes] = {}
        self._roster: bytes | None = None
        self._binding = b""
        self._checks: dict[int, bytes] = {}  # commitments to the seed and the member's own shares
        self._sealed: dict[int, dict[int, bytes]] = {}  # by sender, then by recipient
        self._sharing = True
        self._arrived: set[int] = set()
        self._sum: UnsignedArray = np.zeros(terms.length, BITS[terms.bits])
        self._left: bytes | None = None
        self._opened: dict[int, dict[int, bytes]] = {}  # by owner of the secret, then by sender
        self._openers: set[int] = set()

    def receive_keys(self, client: int, message: bytes) -> None:
        """Receive a member's public keys; keys that the others would refuse are refused here."""
        body = decode_message("keys", self.terms, client, message)
        self._expect(client, self._roster is None, self._keys)
        keys = check_length("keys", body, KEYS)
        for key in (keys[:KEY], keys[KEY:]):
            check_public(key)
        self._keys[client] = keys

    def roster(self) -> bytes:
        """Return the message with all members' keys; later members are refused."""
        if self._roster is None:
            self.terms.check(len(self._keys))
            weights = dict.fromkeys(self._keys, 1.0) if self._weights is None else self._weights
            members = encode_roster(self._keys, weights)
            self._roster = encode_message("roster", self.terms, SERVER, members)
            self._binding = self.terms.bind(self._roster)
        return self._roster

    def receive_shares(self, client: int, message: bytes) -> None:
        """Receive a member's sealed shares."""
        body = decode_message("shares", self.terms, client, message)
        self._expect(client, self._roster is not None and self._sharing, self._sealed, self._keys)
        found = decode_rows("shares", body[KEY + CHECKS :], DEALT, len(self._keys))
        if found.keys() != self._keys.keys() - {client}:
            raise ProtocolError(f"Member {client} did not share with each of the others.")
        self._checks[client], self._sealed[client] = bytes(body[: KEY + CHECKS]), found

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
        """Receive the shares that a member opened; wrong ones are left out."""
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
            if self._is_right(v, client, part):
                self._opened.setdefault(v, {})[client] = part[1:]

    def _is_right(self, owner: int, holder: int, part: bytes) -> bool:
        """Whether an opened share is the one that its owner committed to."""
        own = owner == holder
        checks = self._checks[owner][KEY:] if own else self._sealed[owner][holder][SEALED:]
        half = checks[: CHECKS // 2] if part[:1] == b"k" else checks[CHECKS // 2 :]
        return commit_share(self._binding, owner, holder, part[:1], part[1:]) == half

    def unmask_sum(self, question: bytes = b"") -> UnsignedArray:
        """Return the sum of the survivors' vectors, modulo 2^k.

        Args:
            question: What the members answered, as in `ProtocolClient.mask`.

        Raises:
            ThresholdError: Too few right shares of a secret were opened.
            DealerError: A member dealt shares that have no secret in common.
        """
        seeds = {u: self._secret(u) for u in sorted(self._arrived)}
        gone = {u: self._secret(u) for u in sorted(self._sealed.keys() - self._arrived)}
        t, out, binding = self.terms, self._sum, bind_question(self._binding, question)
        for seed in seeds.values():
            out = out - mask(seed, t.length, t.bits)
        for d, key in gone.items():
            for u in sorted(self._arrived):
                part = mask(pairwise_key(key, self._keys[u][KEY:], binding), t.length, t.bits)
                out = out - part if u < d else out + part
        return out

    @property
    def survivor_ids(self) -> tuple[int, ...]:
        """The members in the sum, ascending."""
        return tuple(sorted(self._arrived))

    def _secret(self, u: int) -> bytes:
        """Reconstruct a member's seed or key from `threshold` shares.

        All shares here are those that the member committed to, so any of them give the secret if
        it is honest. If not, others may still do.
        """
        found, need = sorted(self._opened.get(u, {})), self.terms.threshold
        if self._left is None or len(found) < need:
            if len(self._openers) - len(found) > max(len(self._keys) - need, 1):
                raise DealerError(u)  # more miss its share than can be dishonest
            few = f"{len(found)} right shares of member {u}'s secret were opened"
            raise ThresholdError(f"{few}; it takes {need}.")
        place = {v: x for x, v in enumerate(sorted(self._keys), start=1)}
        for k in range(len(found) if len(found) > need else 1):
            some = {place[v]: self._opened[u][v] for v in (found[k:] + found[:k])[:need]}
            try:
                secret = shamir.join(some)
            except ValueError:
                continue
            if self._is_secret(u, secret):
                return secret
        raise DealerError(u)

    def _is_secret(self, u: int, secret: bytes) -> bool:
        """Whether this is the seed of a member in the sum, or the key of one that is not."""
        if u in self._arrived:
            return commit_seed(self._binding, secret) == self._checks[u][:KEY]
        return public_key(secret) == self._keys[u][KEY:]

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
