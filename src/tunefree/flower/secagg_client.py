"""A node's part in secure aggregation; experimental and not audited.

A node may handle each message in a new process. Its state is a file that is removed before the
answer is sent, so that no message is answered twice. What it has masked is recorded in another file
(`MaskLog`), so that it masks nothing twice, whatever is restarted.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from ..core.errors import ArgumentError, DataError
from ..core.files import (
    MAX_BYTES,
    MAX_JSON,
    check_writable,
    open_regular,
    read_file,
    sync_folder,
    write_atomically,
)
from ..core.lock import lock_folder
from ..core.types import Channels, Vector
from ..methods import Method
from ..privacy import Channel, ProtocolClient, ProtocolError, ProtocolTerms, Quantizer, Secure
from ..privacy.digits import DIGITS
from ..privacy.keys import digest
from .memory import MemoryStore
from .payload import HeaderValue, Payload

MEASURED = {"measured loss": "loss", "measured lr": "lr"}  # for the history; masked like channels
FILE = "session.json"
LOCK_SECONDS = 60.0  # how long a message waits for another one that the client is answering
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

    def bind(self, header: Mapping[str, HeaderValue]) -> "SecAggTerms":
        """Bind the terms to the run and round of a message: all members must agree on them."""
        same = (str(header[n]).encode() for n in ("run", "terms", "round"))
        context = digest(*same, self.to_text().encode())
        return replace(self, terms=replace(self.terms, context=context))

    @classmethod
    def from_text(
        cls, text: object, method: Method, x: Vector, preparing: bool, columns: int = 0
    ) -> "SecAggTerms":
        """Undo `to_text`, with the channels that this node derives from the method and its data."""
        try:
            found = json.loads(str(text))
            bounds, what = found["bounds"], str(found["what"])
            if what:
                size = columns if what == "moments" else x.numel()
                shapes = probe_shapes(size, what, len(bounds))
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


def probe_shapes(size: int, what: str, points: int) -> Shapes:
    """Return the shapes of what a client answers to a query at some points of this size."""
    lengths = {"grad": (size,), "moments": (len(DIGITS) * (2 * size + 1),)}
    return {f"point {j}": lengths.get(what, ()) for j in range(points)}


def training_shapes(method: Method, x: Vector, preparing: bool) -> Shapes:
    """Return the shapes of what a client sends after training."""
    names = method.channels(preparing)
    shapes: Shapes = {n: tuple(x.shape) if n in method.vectors else () for n in names}
    return shapes | dict.fromkeys(MEASURED, ())


def digest_question(payload: Payload, *, lasting: bool = False) -> bytes:
    """Return a digest of what a request asks of all clients alike: the run, the round, the model.

    Masks are bound to it, so that they do not cancel if clients are sent different models, or are
    told to standardise their inputs differently.

    A client that uses all of its data answers a question alike in every round, as long as the model
    is the same, which it is after a round that was lost. A digest of the `lasting` question leaves
    out the round, the rates' factor and the cohort's share.
    """
    named = payload.header
    header = [str(named.get(n, "")) for n in ("terms", "kind", "what")]
    if lasting:
        numbers = {"preparing": float(int(named["round"]) < 0)}
    else:
        header.append(str(named["round"]))
        numbers = {n: float(named[n]) for n in ("fraction", "factor") if n in named}
    parts = [json.dumps([header, numbers, payload.scalars], sort_keys=True).encode()]
    for name, array in sorted(payload.arrays.items()):
        if name.startswith(("down.", "point ")) or name == "scale":
            parts += [f"{name} {array.dtype} {array.shape}".encode(), array.data]
    return digest(*parts)


class MaskLog:
    """What a client has masked, in a file for all runs of a node: digests, one per line.

    A sum with this client and the same sum without it would differ by its vector. Both could come
    about if a round is repeated after a crash, or in another run with the same seed.
    """

    def __init__(self, store: MemoryStore) -> None:
        self._path = store.home / f"masked-{store.client}.log"

    def check(self, *keys: bytes) -> None:
        """Refuse to mask what was masked before."""
        try:
            known = set(read_file(self._path, MAX_BYTES).split())
        except FileNotFoundError:
            return
        except OSError as error:
            raise ProtocolError(f"{self._path} cannot be read: {error.strerror}.") from None
        if any(key.hex().encode() in known for key in keys):
            raise ProtocolError(
                "This client has masked its numbers for this round before, or the same ones in "
                "another, and does not do so twice, since the difference of two sums may be its "
                "numbers. A new run needs another seed."
            )

    def add(self, *keys: bytes) -> None:
        """Record what is masked, before it is sent."""
        with check_writable("The record of what a client masked must be a file", self._path):
            is_new = not os.path.lexists(self._path)
            with open_regular(self._path, "ab") as file:
                # A line of its own for each, also after one that a full disk cut short.
                file.write(b"".join(b"\n" + key.hex().encode() for key in keys) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                sync_folder(self._path.parent)


class SecAggClient:
    """A node's `ProtocolClient`, stored in a file of a folder between messages.

    The client agrees to be summed among at least `least` clients. It masks the training of a round
    of a run once, the same question once in all runs (if it uses all of its data, also in another
    round), and the same vector once in a round of all runs, whose settings may differ.
    """

    def __init__(
        self, store: MemoryStore, terms: SecAggTerms, least: int, run: str, t: int
    ) -> None:
        self._path, self._log, self._client = store.path / FILE, MaskLog(store), store.client
        self._home = store.home
        self._terms, self._least, self._round = terms, least, b"%d" % t
        self._once = () if terms.what else (digest(b"round", run.encode(), self._round),)

    def answer(self, kind: str, message: bytes) -> bytes:
        """Answer a message of kind "keys", "shares" or "opened"."""
        if kind == "keys":
            with self._exclusive():
                self._log.check(*self._once)
                client = ProtocolClient(self._client, self._terms.terms, self._least)
                answer = client.advertise()
                self._store(client.state())
                return answer
        if kind == "shares":
            return self._act(lambda client: client.share(message))
        return self._act(lambda client: client.open(message))

    def mask(self, inbox: bytes, rows: Channels, question: bytes, *lasting: bytes) -> bytes:
        """Return this client's rows (1, ...), times its weight, under masks.

        A second time the same question is refused, as is a `lasting` one.
        """
        values, keys = {n: v[0] for n, v in rows.items()}, [question, *lasting, *self._once]
        if self._once:
            numbers = (v.detach().cpu().contiguous().numpy().tobytes() for v in values.values())
            keys.append(digest(b"vector", self._round, *numbers))

        def act(client: ProtocolClient) -> bytes:
            self._log.check(*keys)
            encoded = self._terms.quantizer.encode(values, client.weight)
            answer = client.mask(inbox, encoded, question)
            self._log.add(*keys)
            return answer

        return self._act(act)

    def _act(self, act: Callable[[ProtocolClient], bytes]) -> bytes:
        """Load the stored client, let it answer and store it again.

        The file is removed first, so that a failure cannot make the client answer twice. A message
        that the client refuses does not change its state.
        """
        with self._exclusive():
            try:
                state = read_file(self._path, MAX_JSON)
            except OSError:
                raise ProtocolError("This node takes part in no session.") from None
            self._path.unlink()
            try:
                client = ProtocolClient.resume(self._terms.terms, state, self._least)
                answer = act(client)
            except ProtocolError:
                self._store(state)
                raise
            if client.stage != "opened":
                self._store(client.state())
            return answer

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Let this client answer one message at a time, in all processes of its node.

        Two at once could both read the state, or the record of what was masked, before one of them
        changes it.
        """
        name = f"masked-{self._client}.lock"
        with ExitStack() as held:
            with check_writable("The lock of a client must be a file", self._home / name):
                self._home.mkdir(parents=True, exist_ok=True)
                held.enter_context(lock_folder(self._home, seconds=LOCK_SECONDS, name=name))
            yield

    def _store(self, state: bytes) -> None:
        with check_writable("The state of a session must be a file", self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, state)
