"""Sessions: what a member and a server kept, what a node is told, what a server is opened.

The keys of a session are new in each process.
"""

import copy
import json
import re
from random import Random

import numpy as np
import torch

import tunefree as tf
from trust.fuzz.mutate import FLOATS, NUMBERS, edited, odd_json
from trust.fuzz.target import Target, chosen, kept_head, kept_length, room, target
from tunefree.flower import serve
from tunefree.flower.memory import MemoryStore
from tunefree.flower.secagg_client import SecAggTerms, probe_shapes, training_shapes
from tunefree.privacy import ProtocolClient, ProtocolServer, ProtocolTerms, Secure
from tunefree.training.folder import RunFolder

TERMS = ProtocolTerms(bytes(16), 2, 3)
VALUES = np.arange(3, dtype="<u8")
X = torch.zeros(4)
METHODS = (tf.methods.get("fedexp"), tf.methods.get("scaffold"))


VALUE = re.compile(rb'"[0-9a-f]{2,}"|-?[0-9][0-9.e+-]*')


def odd_values(data: bytes, random: Random) -> bytes:
    """Change a number, or bytes that keep their number; or anything."""
    places = list(VALUE.finditer(data))
    if not places or random.random() < 0.5:
        return odd_json(data, random)
    place = random.choice(places)
    was = place[0]
    new = str(random.choice((*NUMBERS, *FLOATS[:7], 3, 32, 64))).encode()
    if was.startswith(b'"'):
        new = b'"%b"' % kept_length(bytes.fromhex(was[1:-1].decode()), random).hex().encode()
    return data[: place.start()] + new + data[place.end() :]


class Session:
    """Three members; the third sends no numbers."""

    def __init__(self) -> None:
        self.server, members = ProtocolServer(TERMS), [ProtocolClient(i, TERMS) for i in range(3)]
        first = members[0]
        self.states = [first.state()]  # of one member, at each stage
        for i, member in enumerate(members):
            self.server.receive_keys(i, member.advertise())
        self.roster = self.server.roster()
        self.states.append(first.state())
        for i, member in enumerate(members):
            self.server.receive_shares(i, member.share(self.roster))
        self.inbox = self.server.inbox(0)
        self.states.append(first.state())
        for i, member in enumerate(members[:2]):
            self.server.receive_masked(i, member.mask(self.server.inbox(i), VALUES))
        self.survivors = self.server.survivors()
        self.states.append(first.state())
        self.opened = [member.open(self.survivors) for member in members[:2]]
        self.states.append(first.state())


@target("bytes member", needs="cryptography")
def _member() -> Target:
    told = Session()
    steps = {
        "new": lambda member: member.advertise(),
        "advertised": lambda member: member.share(told.roster),
        "shared": lambda member: member.mask(told.inbox, VALUES),
        "masked": lambda member: member.open(told.survivors),
        "opened": lambda member: None,
    }

    def read(data: bytes) -> None:
        member = ProtocolClient.resume(TERMS, data)
        steps[member.stage](member)

    return Target(read, told.states, odd_values)


@target("message deal")
def _deal() -> Target:
    made = [SecAggTerms.create(Secure(), 5, training_shapes(m, X, False)) for m in METHODS]
    for what in ("grad", "loss"):
        made.append(SecAggTerms.create(Secure(bits=32), 5, probe_shapes(len(X), what, 2), what))

    def read(data: bytes) -> None:
        method = METHODS[(data[0] if data else 0) % len(METHODS)]
        deal = SecAggTerms.from_text(data[1:].decode("utf-8", "replace"), method, X, False)
        rows = {c.name: torch.zeros(c.shape) for c in deal.quantizer.channels}
        assert deal.quantizer.encode(rows).shape == (deal.terms.length,)

    return Target(read, chosen([deal.to_text().encode() for deal in made]), kept_head(odd_values))


@target("bytes nodes")
def _nodes() -> Target:
    path = room() / "nodes" / "nodes.json"
    path.parent.mkdir()

    def read(data: bytes) -> None:
        path.write_bytes(data)
        known = serve._read_known(RunFolder(path.parent), 3)
        assert known is not None
        run, sizes, _ = known
        assert torch.tensor(sizes).min() > 0
        MemoryStore(path.parent, run, 0)

    made = {"run": "0123456789abcdef" * 2, "sizes": [5, 7, 1], "columns": 0}
    return Target(read, [json.dumps(made).encode()], odd_values)


@target("message opened", needs="cryptography")
def _opened() -> Target:
    told = Session()

    def read(data: bytes) -> None:
        server, at = copy.deepcopy(told.server), (data[0] if data else 0) % 2
        server.receive_opened(1 - at, told.opened[1 - at])
        server.receive_opened(at, data[1:])
        assert (server.unmask_sum() == 2 * VALUES).all()

    def change(data: bytes, random: Random) -> bytes:
        kind = random.random()
        if kind < 0.5:
            return data[:25] + kept_length(data[25:], random)
        if kind < 0.8:
            at = 29 + random.randrange(3) * 71  # whose part: number, what, share
            return data[: at + 5] + edited(data[at + 5 : at + 71], random)[:66] + data[at + 71 :]
        return edited(data, random)

    return Target(read, chosen(told.opened), kept_head(change))
