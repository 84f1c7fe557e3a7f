"""A client of a secure sum: its vector leaves the client only under masks.

Bonawitz et al., CCS 2017, Figure 4, without signatures. doi:10.1145/3133956.3133982
This implementation is experimental and was not audited.

    advertise   two fresh key pairs: c seals shares, s makes pairwise masks
    share       a seed b_u; Shamir shares of b_u and of the private key s_u, one sealed for each v
    mask        y_u = x_u + M(b_u) + sum_{v > u} M(s_uv) - sum_{v < u} M(s_uv)   mod 2^k
    open        the share of b_v if y_v arrived, the share of s_v otherwise

with M the stream of a key and s_uv the key that u and v agree on. A member opens only one of the
two secrets of each other member: with both, the server could unmask a late y_v. For the same reason
the threshold is above half of the members, so that the server cannot send two groups different
lists.

Differences from the paper:

- Seals are bound to the session's terms (threshold, length, bits, context) and to the roster with
  everybody's keys and weights, masks also to the question that the members answer (the model that
  they were sent). If the server tells two members different ones, their masks do not cancel.
- A member refuses a sum in which too few others have a weight comparable to its own: others of
  negligible weight hide nothing (`COMPARABLE`).
- Members commit to b_u and to each share, so that wrong shares are recognized and left out.
- There are no signatures: members trust the server to send the right public keys.
"""

import json
import secrets
import struct
from collections.abc import Collection
from typing import Any

import numpy as np

from ..core.errors import check_int
from . import shamir
from .keys import KEY, ProtocolError, agree, digest, mask, new_key, public_key, seal, unseal
from .messages import (
    DEALT,
    KEYS,
    SEALED,
    SERVER,
    ProtocolTerms,
    ThresholdError,
    decode_message,
    decode_roster,
    decode_rows,
    encode_message,
    encode_rows,
)
from .quantizer import BITS, UnsignedArray

STAGES = ("new", "advertised", "shared", "masked", "opened")
SECRETS = ("seal", "mask", "seed", "own", "binding")
MAX_MEMBERS = 2**20
COMPARABLE = 0.1  # smallest weight of a member that hides another, relative to the other's


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
        self._weights: dict[int, float] = {}
        self._binding = b""
        self._own: bytes = b""  # shares of its own secrets
        self._inbox: dict[int, bytes] = {}

    @property
    def weight(self) -> float:
        """This client's weight in the sum, from the roster."""
        if self.client not in self._weights:
            raise ProtocolError(f"Member {self.client} is {self.stage!r} and has no weight yet.")
        return self._weights[self.client]

    def _expect_stage(self, stage: str) -> None:
        if self.stage != stage:
            raise ProtocolError(f"Member {self.client} is {self.stage!r}, not {stage!r}.")

    def _check_is_hidden(self, members: Collection[int]) -> None:
        """Refuse a sum of these members, of which this is one, if it does not hide this one."""
        self.terms.check_left(len(members))
        near = sum(self._weights[v] >= COMPARABLE * self.weight for v in members)
        need = max(self.least, self.terms.threshold)
        if near < need:
            why = f"of {len(members)} members, {near} have a weight like its own"
            raise ThresholdError(f"Member {self.client} hides among {need}, not {near}: {why}.")

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
        body = decode_message("roster", self.terms, SERVER, roster)
        members, weights = decode_roster(body, MAX_MEMBERS)
        self.terms.check(len(members))
        if members.get(self.client) != self._public_keys():
            raise ProtocolError(f"The roster has not the keys that member {self.client} sent.")
        self._roster, self._weights = members, weights
        self._check_is_hidden(members)
        self._binding = self.terms.bind(roster)
        key_shares, seed_shares = (
            shamir.split(secret, len(members), self.terms.threshold)
            for secret in (self._mask_key, self._seed)
        )
        dealt, own = {}, b""
        for v, key_share, seed_share in zip(members, key_shares, seed_shares, strict=True):
            text = key_share + seed_share
            checks = commit_shares(self._binding, self.client, v, text)
            if v == self.client:
                self._own, own = text, checks
            else:
                dealt[v] = seal(self._seal_key_with(v, self.client, v), text) + checks
        self.stage = "shared"
        reply = commit_seed(self._binding, self._seed) + own + encode_rows(dealt.items())
        return encode_message("shares", self.terms, self.client, reply)

    def _seal_key_with(self, other: int, sender: int, receiver: int) -> bytes:
        """Return the key that seals the shares from one of two members to the other."""
        way = struct.pack("<II", sender, receiver)
        theirs = self._roster[other][:KEY]
        return agree(self._seal_key, theirs, b"seal" + self._binding + way)

    def mask(self, inbox: bytes, values: UnsignedArray, question: bytes = b"") -> bytes:
        """Return the message with the masked values.

        Args:
            inbox: The server's message with the others' shares, which determines the members.
            values: This client's integers, times its weight.
            question: A digest of what is answered; masks of members with another do not cancel.
        """
        self._expect_stage("shared")
        found = self._read_list("inbox", inbox, DEALT)
        if self.client in found or not found.keys() <= self._roster.keys():
            raise ProtocolError("The inbox has shares of a client that is no other member.")
        t = self.terms
        self._check_is_hidden([self.client, *found])
        if values.shape != (t.length,) or values.dtype != BITS[t.bits]:
            raise ProtocolError(f"A member adds {t.length} integers of {t.bits} bits.")
        self._inbox, self.stage = found, "masked"
        total = values + mask(self._seed, t.length, t.bits)
        binding = bind_question(self._binding, question)
        for v in found:
            common = pairwise_key(self._mask_key, self._roster[v][KEY:], binding)
            part = mask(common, t.length, t.bits)
            total = np.add(total, part) if self.client < v else np.subtract(total, part)
        body = total.astype(BITS[t.bits], copy=False).tobytes()
        return encode_message("masked", t, self.client, body)

    def open(self, survivors: bytes) -> bytes:
        """Return the message with the shares that unmask the survivors' sum, and nothing else.

        Shares that cannot be decrypted, or are not those that their owner committed to, are left
        out.
        """
        self._expect_stage("masked")
        left = self._read_list("survivors", survivors, 0)
        if not left.keys() <= self._inbox.keys() | {self.client}:
            raise ProtocolError("The survivors include a client that did not share.")
        if self.client not in left:
            raise ProtocolError(f"Member {self.client} sent its numbers, but is left out.")
        self._check_is_hidden(left)
        self.stage = "opened"
        mine = {self.client: self._own}
        for v, dealt in self._inbox.items():
            text = unseal(self._seal_key_with(v, v, self.client), dealt[:SEALED])
            if text is None or len(text) != 2 * shamir.SHARE:
                continue
            if commit_shares(self._binding, v, self.client, text) == dealt[SEALED:]:
                mine[v] = text
        out = {
            v: b"s" + text[shamir.SHARE :] if v in left else b"k" + text[: shamir.SHARE]
            for v, text in mine.items()
        }
        self._seal_key = self._mask_key = self._seed = bytes(KEY)
        return encode_message("opened", self.terms, self.client, encode_rows(out.items()))

    def _terms_digest(self) -> str:
        return self.terms.bind(b"").hex()

    def state(self) -> bytes:
        """Return the secret state, to continue in another process.

        A state must be resumed only once: two copies could open both secrets of a member.
        """
        secret = (self._seal_key, self._mask_key, self._seed, self._own, self._binding)
        text: dict[str, Any] = {name: v.hex() for name, v in zip(SECRETS, secret, strict=True)}
        for name, table in (("roster", self._roster), ("inbox", self._inbox)):
            text[name] = {str(v): part.hex() for v, part in table.items()}
        text |= {"weights": {str(v): w for v, w in self._weights.items()}}
        text |= {"client": self.client, "stage": self.stage, "terms": self._terms_digest()}
        return json.dumps(text).encode()

    @classmethod
    def resume(cls, terms: ProtocolTerms, state: bytes, least: int = 2) -> "ProtocolClient":
        """Return the client with a stored state; refuse terms that changed since it was stored."""
        try:
            found = json.loads(state)
            client, stage = int(found["client"]), STAGES[STAGES.index(found["stage"])]
            seal, mask, seed, own, binding = (bytes.fromhex(found[name]) for name in SECRETS)
            roster, inbox = (
                {int(v): bytes.fromhex(part) for v, part in found[name].items()}
                for name in ("roster", "inbox")
            )
            weights = {int(v): float(w) for v, w in found["weights"].items()}
            is_valid = (
                len(seal) == len(mask) == len(seed) == KEY
                and len(own) in (0, 2 * shamir.SHARE)
                and all(0 <= v < SERVER for v in (client, *roster))
                and all(len(keys) == KEYS for keys in roster.values())
                and all(len(dealt) == DEALT for dealt in inbox.values())
                and inbox.keys() <= roster.keys() == weights.keys()
                and all(0 < w <= 1 for w in weights.values())
                and (client in roster) == (stage not in STAGES[:2])
            )
            same = found["terms"]
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            is_valid, same = False, None
        if not is_valid:
            raise ProtocolError("This is not the state of a member.")
        member = cls(client, terms, least)
        if same != member._terms_digest():
            raise ProtocolError("The terms of the session have changed since it began.")
        member._seal_key, member._mask_key, member._seed = seal, mask, seed
        member._own, member._binding = own, binding
        member._roster, member._weights = roster, weights
        member._inbox, member.stage = inbox, stage
        return member


def bind_question(binding: bytes, question: bytes) -> bytes:
    """Return what pairwise masks are bound to."""
    return digest(b"question", binding, question)


def pairwise_key(private: bytes, public: bytes, binding: bytes) -> bytes:
    """Return the key of the mask that two members share."""
    return agree(private, public, b"mask" + binding)


def commit_seed(binding: bytes, seed: bytes) -> bytes:
    """Return a commitment to a seed, which detects a wrong one and does not reveal it."""
    return digest(b"seed", binding, seed)


def commit_share(binding: bytes, owner: int, holder: int, kind: bytes, share: bytes) -> bytes:
    """Return a commitment to a share of a key (kind b"k") or seed (b"s") for its holder."""
    return digest(b"share", binding, struct.pack("<II", owner, holder), kind, share)


def commit_shares(binding: bytes, owner: int, holder: int, text: bytes) -> bytes:
    """Return the commitments to the two shares that a holder gets of an owner."""
    parts = ((b"k", text[: shamir.SHARE]), (b"s", text[shamir.SHARE :]))
    return b"".join(commit_share(binding, owner, holder, kind, part) for kind, part in parts)
