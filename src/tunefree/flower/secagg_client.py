"""A node's place in a session whose numbers are added up under masks.

A node may find itself in a new process at each message; what it knows of the session is a file that
is used up before the answer leaves, so that nothing is answered twice.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import ArgumentError, DataError
from ..core.files import write_atomically
from ..core.types import Channels, Vector
from ..methods import Method
from ..privacy import Channel, ProtocolClient, ProtocolError, ProtocolTerms, Quantizer, Secure
from ..privacy.messages import default_threshold

MEASURED = {"measured loss": "loss", "measured lr": "lr"}  # for the history; they leak too
FILE = "session.json"
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class SecAggTerms:
    """What a node is told of a session."""

    terms: ProtocolTerms
    quantizer: Quantizer
    what: str = ""  # is measured, if no work is asked for

    @classmethod
    def for_training(
        cls, secure: Secure, people: int, method: Method, x: Vector, preparing: bool
    ) -> "SecAggTerms":
        """Return the deal of a round's work among at most so many people."""
        return cls._new(secure, people, _shapes(method, x, preparing))

    @classmethod
    def for_probe(cls, secure: Secure, people: int, what: str, at: list[Vector]) -> "SecAggTerms":
        """Return the deal of what is measured at some points in between."""
        return cls._new(secure, people, _measures(at[0], what, len(at)), what)

    @classmethod
    def _new(cls, secure: Secure, people: int, shapes: Shapes, what: str = "") -> "SecAggTerms":
        bounds = {n: _bound(secure, what or MEASURED.get(n, n)) for n in shapes}
        channels = tuple(Channel(n, shape, bounds[n]) for n, shape in shapes.items())
        quantizer = Quantizer(channels, people, secure.bits)
        threshold = default_threshold(people) if secure.threshold is None else secure.threshold
        terms = ProtocolTerms(secrets.token_bytes(16), threshold, quantizer.length, secure.bits)
        return cls(terms, quantizer, what)

    def to_text(self) -> str:
        """Return it as text."""
        bounds = {c.name: c.bound for c in self.quantizer.channels}
        t = self.terms
        known = {"threshold": t.threshold, "people": self.quantizer.max_clients, "bits": t.bits}
        asked = {"session": t.session.hex(), "what": self.what}
        return json.dumps({"bounds": bounds, **known, **asked})

    @classmethod
    def read(cls, text: object, method: Method, x: Vector, preparing: bool) -> "SecAggTerms":
        """Return the deal of a text, for the channels that this node knows."""
        try:
            found = json.loads(str(text))
            bounds, what = found["bounds"], str(found["what"])
            shapes = _measures(x, what, len(bounds)) if what else _shapes(method, x, preparing)
            channels = tuple(Channel(n, s, float(bounds[n])) for n, s in shapes.items())
            quantizer = Quantizer(channels, int(found["people"]), int(found["bits"]))
            session, threshold = bytes.fromhex(found["session"]), int(found["threshold"])
            return cls(
                ProtocolTerms(session, threshold, quantizer.length, quantizer.bits), quantizer, what
            )
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise DataError(f"The terms of a session are damaged: {error}") from None


def _bound(secure: Secure, name: str) -> float:
    if not isinstance(secure.bound, Mapping):
        return secure.bound
    if name not in secure.bound:
        raise ArgumentError(f"Secure(bound=...) has none for the channel {name!r}.")
    return secure.bound[name]


def _measures(x: Vector, what: str, points: int) -> Shapes:
    shape = tuple(x.shape) if what == "grad" else ()
    return {f"point {j}": shape for j in range(points)}


def _shapes(method: Method, x: Vector, preparing: bool) -> Shapes:
    names = method.channels(preparing)
    shapes: Shapes = {n: tuple(x.shape) if n in method.vectors else () for n in names}
    return shapes | dict.fromkeys(MEASURED, ())


class SecAggClient:
    """A node's place in a session, kept in a file between messages.

    Args:
        folder: Of this client and run.
        client: Its number.
        deal: The session.
        least: Fewest clients among whom it is willing to hide.
    """

    def __init__(self, folder: Path, client: int, deal: SecAggTerms, least: int) -> None:
        self._path, self._client, self._deal, self._least = folder / FILE, client, deal, least

    def keys(self) -> bytes:
        """Begin; forget any session before."""
        member = ProtocolClient(self._client, self._deal.terms, self._least)
        return self._kept(member, member.advertise())

    def share(self, roster: bytes) -> bytes:
        """Answer the roster."""
        member = self._taken()
        return self._kept(member, member.share(roster))

    def mask(self, inbox: bytes, rows: Channels, weight: float) -> bytes:
        """Return one client's rows (1, ...) under masks."""
        values = self._deal.quantizer.encode({n: v[0] for n, v in rows.items()}, weight)
        member = self._taken()
        return self._kept(member, member.mask(inbox, values))

    def answer(self, kind: str, message: bytes) -> bytes:
        """Answer a message that asks for no numbers."""
        if kind == "keys":
            return self.keys()
        return self.share(message) if kind == "shares" else self.open(message)

    def open(self, survivors: bytes) -> bytes:
        """Answer the list of survivors; the session is over for this node."""
        return self._taken().open(survivors)

    def _taken(self) -> ProtocolClient:
        try:
            state = self._path.read_bytes()
        except OSError:
            raise ProtocolError("This node is in no session.") from None
        self._path.unlink()  # first: whatever happens now, it cannot happen twice
        return ProtocolClient.resume(self._deal.terms, state, self._least)

    def _kept(self, member: ProtocolClient, local_update: bytes) -> bytes:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, member.state())
        return local_update
