"""The messages of secure aggregation as bytes: a head (kind, session, sender) and a body.

    head       "TFS2"  kind (1)  session (16)  sender (4)
    keys       a member's two public keys (32 + 32)
    roster     of each member: number (4), its keys (64), its weight (8, float64)
    shares     commitment to the seed (32) and to its own shares (64); for each other: number (4),
               sealed shares (148), commitments to them (64)
    inbox      from each other: number (4), sealed shares (148), commitments to them (64)
    masked     the masked integers
    survivors  of each: number (4)
    opened     of each: number (4), of what (1: "s" its seed, "k" its key), a share (66)

Lists begin with their length (4) and ascend by number; integers are little-endian. Lengths are
checked before anything else is read.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from ..core.errors import check_argument, check_int
from ..core.fields import Checked, PositiveInt
from .keys import DIGEST, KEY, TAG, ProtocolError, digest
from .quantizer import BITS
from .shamir import SHARE

KINDS = ("keys", "roster", "shares", "inbox", "masked", "survivors", "opened")
SERVER = 2**32 - 1  # the server's number as a sender
SEALED = 2 * SHARE + TAG
KEYS = 2 * KEY
WEIGHT = struct.Struct("<d")
CHECKS = 2 * DIGEST  # commitments to a share of the key and to one of the seed
DEALT = SEALED + CHECKS
OPENED = 1 + SHARE
_HEAD = struct.Struct("<4sB16sI")
_MAGIC = b"TFS2"


@dataclass(frozen=True)
class ProtocolTerms(Checked):
    """The parameters of a session, known to the server and its members (the clients in it).

    Args:
        session: 16 bytes that are unique to the session.
        threshold: Fewest members in a sum, >= 2 and more than half of the members.
        length: Number of integers of each member.
        bits: Bits of an integer, 32 or 64.
        context: What else all members must agree on, such as a digest of the run's settings.
    """

    session: bytes
    threshold: Annotated[int, partial(check_int, low=2)]
    length: PositiveInt
    bits: int = 64
    context: bytes = b""

    def __post_init__(self) -> None:
        super().__post_init__()
        has_id = len(self.session) == 16
        check_argument("ProtocolTerms", "session", self.session, "16 bytes", has_id)
        check_argument("ProtocolTerms", "bits", self.bits, "32 or 64", self.bits in BITS)

    def check(self, members: int) -> None:
        """Refuse a number of members for which the threshold is unsafe or out of reach."""
        self.check_left(members)
        if 2 * self.threshold <= members:
            raise ProtocolError(
                f"A threshold of {self.threshold} is not above half of {members} members: two "
                "groups of them could open one member's key and its seed."
            )

    def check_left(self, members: int) -> None:
        """Refuse to continue with fewer members than the threshold."""
        if members < self.threshold:
            raise ThresholdError(f"{members} members are left; it takes {self.threshold}.")

    def bind(self, roster: bytes) -> bytes:
        """Return a digest of the terms and a roster, to which keys are bound."""
        numbers = struct.pack("<IQI", self.threshold, self.length, self.bits)
        return digest(self.session, numbers, self.context, roster)


class ThresholdError(ProtocolError):
    """Too few members are left; no secret can be reconstructed."""


def default_threshold(members: int) -> int:
    """Return a threshold above two thirds, which is safe if up to a third of the members collude.

    >>> [default_threshold(m) for m in (2, 3, 10, 100)]
    [2, 3, 7, 67]
    """
    return max(2, 2 * members // 3 + 1)


def encode_roster(keys: Mapping[int, bytes], weights: Mapping[int, float]) -> bytes:
    """Encode the members' keys and weights."""
    return encode_rows((u, key + WEIGHT.pack(weights[u])) for u, key in keys.items())


def decode_roster(body: memoryview, limit: int) -> tuple[dict[int, bytes], dict[int, float]]:
    """Undo `encode_roster`; refuse weights outside of (0, 1]."""
    rows = decode_rows("roster", body, KEYS + WEIGHT.size, limit)
    weights = {u: float(WEIGHT.unpack(row[KEYS:])[0]) for u, row in rows.items()}
    if not all(0 < w <= 1 for w in weights.values()):
        raise ProtocolError("The weights of a roster must be numbers in (0, 1].")
    return {u: row[:KEYS] for u, row in rows.items()}, weights


def encode_message(kind: str, terms: ProtocolTerms, sender: int, body: bytes) -> bytes:
    """Return a message of a kind."""
    return _HEAD.pack(_MAGIC, KINDS.index(kind), terms.session, sender) + body


def decode_message(kind: str, terms: ProtocolTerms, sender: int, data: bytes) -> memoryview:
    """Return a message's body; refuse another kind, session or sender."""
    if len(data) < _HEAD.size:
        raise ProtocolError(f"A message has at least {_HEAD.size} bytes, got {len(data)}.")
    magic, number, session, who = _HEAD.unpack_from(data)
    if magic != _MAGIC or number != KINDS.index(kind):
        raise ProtocolError(f"This is no message of the kind {kind!r}.")
    if session != terms.session:
        raise ProtocolError("This message belongs to another session.")
    if who != sender:
        raise ProtocolError(f"This message is from {who}, not from {sender}.")
    return memoryview(data)[_HEAD.size :]


def check_length(kind: str, body: memoryview, want: int) -> bytes:
    """Return a body as bytes; refuse another length than `want`."""
    if len(body) != want:
        raise ProtocolError(f"The body of {kind!r} must have {want} bytes, got {len(body)}.")
    return bytes(body)


def encode_rows(items: Iterable[tuple[int, bytes]]) -> bytes:
    """Encode a list of numbered parts of equal length."""
    parts = [struct.pack("<I", number) + part for number, part in sorted(items)]
    return struct.pack("<I", len(parts)) + b"".join(parts)


def decode_rows(kind: str, body: memoryview, width: int, limit: int) -> dict[int, bytes]:
    """Undo `encode_rows` for parts of `width` bytes; refuse a list of more than `limit` parts."""
    if len(body) < 4:
        raise ProtocolError(f"The list of {kind!r} has no length.")
    (count,) = struct.unpack_from("<I", body)
    if count > limit:
        raise ProtocolError(f"The list of {kind!r} has {count} parts, more than {limit}.")
    check_length(kind, body[4:], count * (4 + width))
    rows = dict(struct.iter_unpack(f"<I{width}s", body[4:]))
    if len(rows) < count or list(rows) != sorted(rows):
        raise ProtocolError(f"The numbers in the list of {kind!r} must ascend.")
    return rows
