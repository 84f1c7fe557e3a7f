"""A client of a secure sum: its vector leaves the client only under masks.

Bonawitz et al., CCS 2017, Figure 4, without signatures. doi:10.1145/3133956.3133982

    advertise   two fresh key pairs: c seals shares, s makes pairwise masks
    share       a seed b_u; Shamir shares of b_u and of the private key s_u, one sealed for each v
    mask        y_u = x_u + M(b_u) + sum_{v > u} M(s_uv) - sum_{v < u} M(s_uv)   mod 2^k
    open        the share of b_v if y_v arrived, the share of s_v otherwise

with M the stream of a key and s_uv the key that u and v agree on. A member opens only one of the
two secrets of each other member: with both, the server could unmask a late y_v. For the same reason
the threshold is above half of the members, so that the server cannot send two groups different
lists.

Differences from the paper: masks and seals are bound to the roster, so that no key is used with two
rosters; members commit to b_u, so that wrong shares are detected; shares that cannot be decrypted
count as missing. There are no signatures: members trust the server to send the right public keys.
"""

import json
import secrets
import struct
from typing import Any

import numpy as np

from ..core.errors import check_int
from . import shamir
from .keys import KEY, ProtocolError, agree, digest, mask, new_key, public_key, seal, unseal
from .messages import (
    KEYS,
    SEALED,
    SERVER,
    ProtocolTerms,
    ThresholdError,
    decode_message,
    decode_rows,
    encode_message,
    encode_rows,
)
from .quantizer import BITS, UnsignedArray

STAGES = ("new", "advertised", "shared", "masked", "opened")
SECRETS = ("seal", "mask", "seed", "own", "binding")
MAX_MEMBERS = 2**20


class ProtocolClient:
    """One client's part in one session.

    Args:
        client: The client's number.
        terms: The session's parameters.
        least: Fewest members of a sum that this client takes part in, for any terms.
    """

    def __init__(self, client: int, terms: ProtocolTerms, least: int = 2) -> None:
        check_int("ProtocolClient", "least", least, 2)
        self.client, self.terms, self.stage, self.least = client, terms, "new", least
        self._seal_key, self._mask_key = new_key(), new_key()
        self._seed = secrets.token_bytes(KEY)
        self._roster: dict[int, bytes] = {}
        self._binding = b""
        self._own: bytes = b""  # shares of its own secrets
        self._inbox: dict[int, bytes] = {}

    def _expect_stage(self, stage: str) -> None:
        if self.stage != stage:
            raise ProtocolError(f"Member {self.client} is {self.stage!r}, not {stage!r}.")

    def _check_company(self, members: int) -> None:
        self.terms.check_left(members)
        if members < self.least:
            raise ThresholdError(f"Member {self.client} hides among {self.least}, not {members}.")

    def advertise(self) -> bytes:
        """Return the message with the public keys."""
        self._expect_stage("new")
        self.stage = "advertised"
        return encode_message("keys", self.terms, self.client, self._public_keys())

    def _public_keys(self) -> bytes:
        return public_key(self._seal_key) + public_key(self._mask_key)

    def _read_list(self, kind: str, message: bytes, width: int) -> dict[int, bytes]:
        """Return the list in a message of the server."""
        body = decode_message(kind, self.terms, SERVER, message)
        return decode_rows(kind, body, width, MAX_MEMBERS)

    def share(self, roster: bytes) -> bytes:
        """Return the message with shares of this client's secrets, sealed for each other member."""
        self._expect_stage("advertised")
        members = self._read_list("roster", roster, KEYS)
        self.terms.check(len(members))
        if members.get(self.client) != self._public_keys():
            raise ProtocolError(f"The roster has not the keys that member {self.client} sent.")
        self._roster, self._binding = members, self.terms.bind(roster)
        key_shares, seed_shares = (
            shamir.split(secret, len(members), self.terms.threshold)
            for secret in (self._mask_key, self._seed)
        )
        sealed = {}
        for v, key_share, seed_share in zip(members, key_shares, seed_shares, strict=True):
            if v == self.client:
                self._own = key_share + seed_share
            else:
                sealed[v] = seal(self._seal_key_with(v, self.client, v), key_share + seed_share)
        self.stage = "shared"
        body = commit_seed(self._binding, self._seed) + encode_rows(sealed.items())
        return encode_message("shares", self.terms, self.client, body)

    def _seal_key_with(self, other: int, sender: int, receiver: int) -> bytes:
        """Return the key that seals the shares from one of two members to the other."""
        way = struct.pack("<II", sender, receiver)
        theirs = self._roster[other][:KEY]
        return agree(self._seal_key, theirs, b"seal" + self._binding + way)

    def mask(self, inbox: bytes, values: UnsignedArray) -> bytes:
        """Return the message with the masked values; `inbox` determines the other members."""
        self._expect_stage("shared")
        found = self._read_list("inbox", inbox, SEALED)
        if self.client in found or not found.keys() <= self._roster.keys():
            raise ProtocolError("The inbox has shares of a client that is no other member.")
        t = self.terms
        self._check_company(len(found) + 1)
        if values.shape != (t.length,) or values.dtype != BITS[t.bits]:
            raise ProtocolError(f"A member adds {t.length} integers of {t.bits} bits.")
        self._inbox, self.stage = found, "masked"
        total = values + mask(self._seed, t.length, t.bits)
        for v in found:
            common = pairwise_key(self._mask_key, self._roster[v][KEY:], self._binding)
            part = mask(common, t.length, t.bits)
            total = np.add(total, part) if self.client < v else np.subtract(total, part)
        body = total.astype(BITS[t.bits], copy=False).tobytes()
        return encode_message("masked", t, self.client, body)

    def open(self, survivors: bytes) -> bytes:
        """Return the message with the shares that unmask the survivors' sum, and nothing else."""
        self._expect_stage("masked")
        left = self._read_list("survivors", survivors, 0)
        if not left.keys() <= self._inbox.keys() | {self.client}:
            raise ProtocolError("The survivors include a client that did not share.")
        if self.client not in left:
            raise ProtocolError(f"Member {self.client} sent its numbers, but is left out.")
        self._check_company(len(left))
        self.stage = "opened"
        mine = {self.client: self._own}
        for v, sealed in self._inbox.items():
            text = unseal(self._seal_key_with(v, v, self.client), sealed)
            if text is not None and len(text) == 2 * shamir.SHARE:
                mine[v] = text
        out = {
            v: b"s" + text[shamir.SHARE :] if v in left else b"k" + text[: shamir.SHARE]
            for v, text in mine.items()
        }
        self._seal_key = self._mask_key = self._seed = bytes(KEY)
        return encode_message("opened", self.terms, self.client, encode_rows(out.items()))

    def state(self) -> bytes:
        """Return the secret state, to continue in another process.

        A state must be resumed only once: two copies could open both secrets of a member.
        """
        secret = (self._seal_key, self._mask_key, self._seed, self._own, self._binding)
        text: dict[str, Any] = {name: v.hex() for name, v in zip(SECRETS, secret, strict=True)}
        for name, table in (("roster", self._roster), ("inbox", self._inbox)):
            text[name] = {str(v): part.hex() for v, part in table.items()}
        return json.dumps({"client": self.client, "stage": self.stage, **text}).encode()

    @classmethod
    def resume(cls, terms: ProtocolTerms, state: bytes, least: int = 2) -> "ProtocolClient":
        """Return the client with a stored state."""
        try:
            found = json.loads(state)
            client, stage = int(found["client"]), STAGES[STAGES.index(found["stage"])]
            seal, mask, seed, own, binding = (bytes.fromhex(found[name]) for name in SECRETS)
            roster, inbox = (
                {int(v): bytes.fromhex(part) for v, part in found[name].items()}
                for name in ("roster", "inbox")
            )
            is_valid = (
                len(seal) == len(mask) == len(seed) == KEY
                and len(own) in (0, 2 * shamir.SHARE)
                and all(0 <= v < SERVER for v in (client, *roster))
                and all(len(keys) == KEYS for keys in roster.values())
                and all(len(sealed) == SEALED for sealed in inbox.values())
                and inbox.keys() <= roster.keys()
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            is_valid = False
        if not is_valid:
            raise ProtocolError("This is not the state of a member.")
        member = cls(client, terms, least)
        member._seal_key, member._mask_key, member._seed = seal, mask, seed
        member._own, member._binding = own, binding
        member._roster, member._inbox, member.stage = roster, inbox, stage
        return member


def pairwise_key(private: bytes, public: bytes, binding: bytes) -> bytes:
    """Return the key of the mask that two members share."""
    return agree(private, public, b"mask" + binding)


def commit_seed(binding: bytes, seed: bytes) -> bytes:
    """Return a commitment to a seed, which detects a wrong one and does not reveal it."""
    return digest(b"seed", binding, seed)
