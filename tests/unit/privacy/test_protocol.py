"""The masking protocol as a state machine: valid messages in every wrong order, twice, from another
session, changed, and a server that makes up its lists.

Whatever is delivered to whom: nothing but `ProtocolError` is raised; no member sends two masked
vectors, or opens both secrets of another; no set of opened shares gives both secrets of a member,
nor any secret without a threshold of members; and a sum that is unmasked is the right one.
"""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from tunefree.privacy import ProtocolClient, ProtocolError, ProtocolServer, ProtocolTerms
from tunefree.privacy.messages import (
    DEALT,
    KEYS,
    OPENED,
    SERVER,
    WEIGHT,
    decode_message,
    decode_rows,
    encode_message,
    encode_rows,
)

pytest.importorskip("cryptography", reason="needs tunefree[privacy]")

MEMBERS, LENGTH, THRESHOLD = (1, 2, 4, 7, 9), 6, 3
SESSIONS = tuple(ProtocolTerms(bytes([k]) * 16, THRESHOLD, LENGTH, 64, b"run") for k in (1, 2))
STEPS = ("advertise", "share", "mask", "open")
RECEIVE = {"keys": "receive_keys", "shares": "receive_shares"}
RECEIVE |= {"masked": "receive_masked", "opened": "receive_opened"}
WIDTHS = {"roster": KEYS + WEIGHT.size, "inbox": DEALT, "survivors": 0}

who, session = st.sampled_from(MEMBERS), st.integers(0, 1)


class Protocol(RuleBasedStateMachine):
    """Five members and two servers; the adversary carries the messages."""

    messages = Bundle("messages")  # (kind, session, sender, bytes)

    def __init__(self):
        super().__init__()
        draw = np.random.default_rng(0)
        self.values = {
            (k, i): draw.integers(0, 2**64, LENGTH, np.uint64).astype("<u8")
            for k in (0, 1)
            for i in MEMBERS
        }
        self.members = {
            (k, i): ProtocolClient(i, terms) for k, terms in enumerate(SESSIONS) for i in MEMBERS
        }
        self.servers = [ProtocolServer(terms) for terms in SESSIONS]
        self.masked = defaultdict(list)
        self.opened = defaultdict(dict)  # of (session, owner, secret), the shares by holder
        self.chosen = {}  # which secret a holder opened of an owner
        self.sums = 0

    def note(self, kind, k, i, message):
        """Record what a member said, and check that it says it once."""
        if kind == "masked":
            assert not self.masked[k, i], "two masked vectors"
            self.masked[k, i].append(message)
        if kind == "opened":
            body = decode_message("opened", SESSIONS[k], i, message)
            for owner, part in decode_rows("opened", body, OPENED, 99).items():
                assert self.chosen.setdefault((k, i, owner), part[:1]) == part[:1], "both secrets"
                self.opened[k, owner, part[:1]][i] = part[1:]
        return kind, k, i, message

    def say(self, kind, k, i, act):
        try:
            return self.note(kind, k, i, act())
        except ProtocolError:
            return multiple()

    @rule(target=messages, k=session, i=who)
    def advertise(self, k, i):
        return self.say("keys", k, i, self.members[k, i].advertise)

    @rule(target=messages, k=session, i=who, step=st.sampled_from(STEPS[1:]), message=messages)
    def tell(self, k, i, step, message):
        """Give a member any message that was ever sent, of any kind, to any of its steps."""
        member, data = self.members[k, i], message[3]
        acts = {
            "share": lambda: member.share(data),
            "mask": lambda: member.mask(data, self.values[k, i]),
            "open": lambda: member.open(data),
        }
        kinds = dict(zip(STEPS, ("keys", "shares", "masked", "opened"), strict=True))
        return self.say(kinds[step], k, i, acts[step])

    @rule(k=session, message=messages, claimed=st.none() | who)
    def deliver(self, k, message, claimed):
        """Give a server any message, perhaps in another member's name."""
        kind, _, sender, data = message
        for name in {kind, *RECEIVE} & RECEIVE.keys():
            try:
                getattr(self.servers[k], RECEIVE[name])(claimed or sender, data)
            except ProtocolError:
                continue

    @rule(target=messages, k=session, what=st.sampled_from(("roster", "survivors")))
    def close(self, k, what):
        """Let a server close a step."""
        try:
            return what, k, SERVER, getattr(self.servers[k], what)()
        except ProtocolError:
            return multiple()

    @rule(target=messages, k=session, i=who)
    def inbox(self, k, i):
        try:
            return "inbox", k, SERVER, self.servers[k].inbox(i)
        except ProtocolError:
            return multiple()

    @rule(target=messages, message=messages, at=st.integers(0, 999), bit=st.integers(0, 7))
    def change(self, message, at, bit):
        """Change one bit; the sender's own record stays as it is."""
        kind, k, sender, data = message
        data = bytearray(data)
        data[at % len(data)] ^= 1 << bit
        return kind, k, sender, bytes(data)

    @rule(target=messages, message=messages, keep=st.sets(who, min_size=1))
    def shorten(self, message, keep):
        """A server's list with some of its members only."""
        kind, k, sender, data = message
        if sender != SERVER:
            return multiple()
        try:
            body = decode_message(kind, SESSIONS[k], SERVER, data)
            rows = decode_rows(kind, body, WIDTHS[kind], 99)
        except ProtocolError:
            return multiple()
        few = encode_rows((u, row) for u, row in rows.items() if u in keep)
        return kind, k, SERVER, encode_message(kind, SESSIONS[k], SERVER, few)

    @rule(target=messages, k=session, left=st.sets(who, min_size=1))
    def invent(self, k, left):
        """A list of survivors that the server makes up."""
        rows = encode_rows((u, b"") for u in left)
        return "survivors", k, SERVER, encode_message("survivors", SESSIONS[k], SERVER, rows)

    @rule(k=session, i=who, change=st.sampled_from([{}, {"threshold": 4}, {"context": b"other"}]))
    def restart(self, k, i, change):
        """A member continues in another process, perhaps told other terms."""
        state = self.members[k, i].state()
        try:
            found = ProtocolClient.resume(replace(SESSIONS[k], **change), state)
        except ProtocolError:
            assert change
            return
        assert not change
        self.members[k, i] = found

    @rule(k=session)
    def whole(self, k):
        """Play the rest of a session as it should be, with those who still can."""
        server = self.servers[k]

        def step(kind, act, receive):
            for i in MEMBERS:
                try:
                    message = act(i)
                except ProtocolError:
                    continue
                self.note(kind, k, i, message)
                try:
                    receive(i, message)
                except ProtocolError:
                    continue

        own = {i: self.members[k, i] for i in MEMBERS}
        step("keys", lambda i: own[i].advertise(), server.receive_keys)
        step("shares", lambda i: own[i].share(server.roster()), server.receive_shares)
        step(
            "masked",
            lambda i: own[i].mask(server.inbox(i), self.values[k, i]),
            server.receive_masked,
        )
        step("opened", lambda i: own[i].open(server.survivors()), server.receive_opened)
        self.unmask(k)

    @rule(k=session)
    def unmask(self, k):
        server = self.servers[k]
        try:
            total = server.unmask_sum()
        except ProtocolError:
            return
        honest = [self.masked[k, i] for i in server.survivor_ids]
        if all(honest) and self.is_untouched(k):
            want = sum((self.values[k, i] for i in server.survivor_ids), np.zeros(LENGTH, "<u8"))
            assert np.array_equal(total, want)
            self.sums += 1

    def is_untouched(self, k):
        """Whether what the server added is what members sent, who all saw its own lists."""
        server = self.servers[k]
        sent = (self.masked[k, i][0][-8 * LENGTH :] for i in server.survivor_ids)
        added = sum((np.frombuffer(data, "<u8") for data in sent), np.zeros(LENGTH, "<u8"))
        same = all(self.members[k, i]._binding == server._binding for i in server.survivor_ids)
        full = all(
            self.members[k, i]._inbox.keys() == server._sealed.keys() - {i}
            for i in server.survivor_ids
        )
        return np.array_equal(added, server._sum) and same and full

    @invariant()
    def no_one_is_unmasked(self):
        for k in (0, 1):
            for owner in MEMBERS:
                seeds, keys = (self.opened[k, owner, what] for what in (b"s", b"k"))
                assert min(len(seeds), len(keys)) < THRESHOLD, "both secrets of a member"
                assert not seeds.keys() & keys.keys()


TestProtocol = Protocol.TestCase
TestProtocol.settings = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


class TestLong(Protocol.TestCase):
    """The same, for hours."""

    settings = settings(TestProtocol.settings, max_examples=20_000, stateful_step_count=120)


TestLong = pytest.mark.trust(TestLong)


def test_an_honest_session_is_summed():
    """The machine can come to a sum at all."""
    machine = Protocol()
    machine.whole(0)
    assert machine.sums == 1
    machine.whole(0)
    machine.no_one_is_unmasked()
    assert all(len(sent) == 1 for key, sent in machine.masked.items() if key[0] == 0)
