"""A node's part in secure aggregation.

A node may handle each message in a new process. Its state is a file that is removed before the
answer is sent, so that no message is answered twice.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import ArgumentError, DataError
from ..core.files import MAX_JSON, read_file, write_atomically
from ..core.types import Channels, Vector
from ..methods import Method
from ..privacy import Channel, ProtocolClient, ProtocolError, ProtocolTerms, Quantizer, Secure

MEASURED = {"measured loss": "loss", "measured lr": "lr"}  # for the history; masked like channels
FILE = "session.json"
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class SecAggTerms:
    """The parameters of a session of secure aggregation, as the server sends them to nodes."""

    terms: ProtocolTerms
    quantizer: Quantizer
    what: str = ""  # the probed quantity; empty for local training

    @classmethod
    def create(cls, secure: Secure, clients: int, shapes: Shapes, what: str = "") -> "SecAggTerms":
        """Return the terms of a new session of at most `clients` clients."""
        bounds = {n: _bound_of(secure, what or MEASURED.get(n, n)) for n in shapes}
        channels = tuple(Channel(n, shape, bounds[n]) for n, shape in shapes.items())
        quantizer = Quantizer(channels, clients, secure.bits)
        return cls(secure.new_terms(quantizer), quantizer, what)

    def to_text(self) -> str:
        """Return the terms as JSON."""
        return json.dumps(
            {
                "bounds": {c.name: c.bound for c in self.quantizer.channels},
                "threshold": self.terms.threshold,
                "people": self.quantizer.max_clients,
                "bits": self.terms.bits,
                "session": self.terms.session.hex(),
                "what": self.what,
            }
        )

    @classmethod
    def from_text(cls, text: object, method: Method, x: Vector, preparing: bool) -> "SecAggTerms":
        """Undo `to_text`, with the channels that this node derives from the method."""
        try:
            found = json.loads(str(text))
            bounds, what = found["bounds"], str(found["what"])
            if what:
                shapes = probe_shapes(x, what, len(bounds))
            else:
                shapes = training_shapes(method, x, preparing)
            channels = tuple(Channel(n, s, float(bounds[n])) for n, s in shapes.items())
            quantizer = Quantizer(channels, int(found["people"]), int(found["bits"]))
            session, threshold = bytes.fromhex(found["session"]), int(found["threshold"])
            terms = ProtocolTerms(session, threshold, quantizer.length, quantizer.bits)
            return cls(terms, quantizer, what)
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise DataError(f"The terms of a session are damaged: {error}") from None


def _bound_of(secure: Secure, name: str) -> float:
    if not isinstance(secure.bound, Mapping):
        return secure.bound
    if name not in secure.bound:
        raise ArgumentError(f"Secure(bound=...) has none for the channel {name!r}.")
    return secure.bound[name]


def probe_shapes(x: Vector, what: str, points: int) -> Shapes:
    """Return the shapes of what a client answers to a query at some points."""
    shape = tuple(x.shape) if what == "grad" else ()
    return {f"point {j}": shape for j in range(points)}


def training_shapes(method: Method, x: Vector, preparing: bool) -> Shapes:
    """Return the shapes of what a client sends after training."""
    names = method.channels(preparing)
    shapes: Shapes = {n: tuple(x.shape) if n in method.vectors else () for n in names}
    return shapes | dict.fromkeys(MEASURED, ())


class SecAggClient:
    """A node's `ProtocolClient`, stored in a file of a folder between messages.

    The client agrees to be summed among at least `least` clients.
    """

    def __init__(self, folder: Path, client: int, terms: SecAggTerms, least: int) -> None:
        self._path, self._client, self._terms, self._least = folder / FILE, client, terms, least

    def answer(self, kind: str, message: bytes) -> bytes:
        """Answer a message of kind "keys", "shares" or "opened"."""
        if kind == "keys":
            client = ProtocolClient(self._client, self._terms.terms, self._least)
            return self._store(client, client.advertise())
        client = self._take()
        if kind == "shares":
            return self._store(client, client.share(message))
        return client.open(message)

    def mask(self, inbox: bytes, rows: Channels, weight: float) -> bytes:
        """Return this client's rows (1, ...), times its weight, under masks."""
        values = self._terms.quantizer.encode({n: v[0] for n, v in rows.items()}, weight)
        client = self._take()
        return self._store(client, client.mask(inbox, values))

    def _take(self) -> ProtocolClient:
        """Load and remove the stored client, so that a failure cannot make it answer twice."""
        try:
            state = read_file(self._path, MAX_JSON)
        except OSError:
            raise ProtocolError("This node takes part in no session.") from None
        self._path.unlink()
        return ProtocolClient.resume(self._terms.terms, state, self._least)

    def _store(self, client: ProtocolClient, answer: bytes) -> bytes:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, client.state())
        return answer
