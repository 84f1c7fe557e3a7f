"""The sum under masks: right with dropouts, refused below the threshold, and nothing else."""

import itertools
import json
import os
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch

from tunefree.core.errors import ArgumentError, DataError
from tunefree.privacy import (
    Channel,
    DealerError,
    ProtocolClient,
    ProtocolError,
    ProtocolServer,
    ProtocolTerms,
    Quantizer,
    SecureMean,
    ThresholdError,
    secure_sum,
    shamir,
)
from tunefree.privacy import protocol_client as client_module
from tunefree.privacy.keys import mask
from tunefree.privacy.messages import (
    DEALT,
    SERVER,
    decode_message,
    decode_rows,
    encode_message,
    encode_roster,
    encode_rows,
)
from tunefree.privacy.protocol_client import bind_question, pairwise_key
from tunefree.server.aggregate import Mean

pytest.importorskip("cryptography", reason="needs tunefree[privacy]")

D = 2000
TERMS = ProtocolTerms(bytes(range(16)), 3, D)
PEOPLE = (2, 3, 5, 8, 13)


def numbers(seed=0, length=D):
    draw = np.random.default_rng(seed)
    return {i: draw.integers(0, 2**64, length, np.uint64).astype("<u8") for i in PEOPLE}


def added(values, left):
    return sum((values[i] for i in left), np.zeros(D, "<u8"))


class Session:
    """A session that was played, with all that the server saw."""

    def __init__(self, values, stop=(), again=lambda m: m, kinds=None):
        self.values, self.server = values, ProtocolServer(TERMS)
        self.members = {i: (kinds or {}).get(i, ProtocolClient)(i, TERMS) for i in values}
        self.seen = {k: {} for k in ("keys", "shares", "masked", "opened")}
        away = {i for kind, i in stop if kind == "keys"}

        def step(kind, act, take):
            away.update(i for when, i in stop if when == kind)
            for i in [i for i in self.members if i not in away]:
                self.members[i] = again(self.members[i])
                self.seen[kind][i] = act(i)
                take(i, self.seen[kind][i])

        s, m = self.server, self.members
        step("keys", lambda i: m[i].advertise(), s.receive_keys)
        self.roster = s.roster()
        step("shares", lambda i: m[i].share(self.roster), s.receive_shares)
        self.states = {i: one.state() for i, one in m.items()}
        self.inboxes = {i: s.inbox(i) for i in self.seen["shares"]}
        step("masked", lambda i: m[i].mask(self.inboxes[i], values[i]), s.receive_masked)
        self.left = s.survivors()
        step("opened", lambda i: m[i].open(self.left), s.receive_opened)

    def again(self, until, but):
        """Return a server that has seen all before a stage, and of that stage all but some."""
        server = ProtocolServer(self.server.terms)
        takes = (
            server.receive_keys,
            server.receive_shares,
            server.receive_masked,
            server.receive_opened,
        )
        closes = (server.roster, lambda: server.inbox(2), server.survivors, None)
        for kind, take, close in zip(self.seen, takes, closes, strict=True):
            for i, message in self.seen[kind].items():
                if kind != until or i not in but:
                    take(i, message)
            if kind == until:
                return server, take
            close()

    def seed(self, i):
        return bytes.fromhex(json.loads(self.states[i])["seed"])


def words(message, length=D):
    return np.frombuffer(message[-8 * length :], "<u8")


def looks_uniform(array):
    """Whether no byte is much more frequent than others: chi-square, 255 degrees of freedom."""
    counts = np.bincount(np.frombuffer(array.tobytes(), np.uint8), minlength=256)
    want = counts.sum() / 256
    return ((counts - want) ** 2 / want).sum() < 255 + 8 * 22.6


def test_looks_uniform_can_tell():
    assert not looks_uniform(np.arange(D).astype("<u8"))


@pytest.mark.parametrize("stop", ["keys", "shares", "masked", "opened"])
@pytest.mark.parametrize("gone", [(3,), (2, 13)])
def test_the_sum_is_that_of_those_whose_numbers_arrived(stop, gone):
    values = numbers()
    total, left = secure_sum(TERMS, values, dict.fromkeys(gone, stop))
    assert left == tuple(i for i in PEOPLE if stop == "opened" or i not in gone)
    assert np.array_equal(total, added(values, left))


def test_dropouts_at_every_stage_at_once():
    terms = ProtocolTerms(bytes(16), 6, D)
    values = dict(zip(range(10), [*numbers().values(), *numbers(1).values()], strict=True))
    away = {0: "keys", 4: "shares", 9: "masked", 5: "opened"}
    total, left = secure_sum(terms, values, away)
    assert left == (1, 2, 3, 5, 6, 7, 8)
    assert np.array_equal(total, added(values, left))


@pytest.mark.parametrize("stop", ["keys", "shares", "masked", "opened"])
def test_below_the_threshold_nothing_is_opened(stop):
    with pytest.raises(ThresholdError, match="it takes 3"):
        secure_sum(TERMS, numbers(), dict.fromkeys((2, 3, 5), stop))


def test_a_threshold_must_be_above_half():
    with pytest.raises(ProtocolError, match="not above half of 5"):
        secure_sum(ProtocolTerms(bytes(16), 2, D), numbers())


def test_a_client_may_insist_on_more_company():
    session = Session(numbers(), stop=[("keys", 2), ("keys", 3)])
    shy = ProtocolClient.resume(TERMS, session.states[5], least=4)
    with pytest.raises(ThresholdError, match="hides among 4, not 3"):
        shy.mask(session.inboxes[5], session.values[5])


def test_members_go_on_in_another_process():
    values = numbers()
    session = Session(
        values, stop=[("masked", 5)], again=lambda m: ProtocolClient.resume(TERMS, m.state())
    )
    assert np.array_equal(session.server.unmask_sum(), added(values, (2, 3, 8, 13)))
    for bad in (b"", b"{}", session.states[2][:-9], session.states[2].replace(b"shared", b"x")):
        with pytest.raises(ProtocolError, match="not the state"):
            ProtocolClient.resume(TERMS, bad)


def test_what_the_server_sees_of_one_client_is_noise():
    """Also once every seed is opened, and for each group of clients but all of them."""
    values = {i: np.zeros(D, "<u8") for i in PEOPLE}
    session = Session(values)
    assert not session.server.unmask_sum().any()
    bare = {i: words(m) - mask(session.seed(i), D, 64) for i, m in session.seen["masked"].items()}
    assert not added(bare, PEOPLE).any()
    for i in PEOPLE:
        assert looks_uniform(words(session.seen["masked"][i]))
        assert looks_uniform(bare[i])
        assert looks_uniform(added(bare, [v for v in PEOPLE if v != i]))
    assert looks_uniform(bare[2] + bare[3])


def test_one_other_mask_changes_every_number():
    session = Session(numbers())
    whole = words(session.seen["masked"][5])
    body = session.inboxes[5][25:]  # without its last sender
    less = session.inboxes[5][:25] + struct.pack("<I", 3) + body[4 : -4 - DEALT]
    one = ProtocolClient.resume(TERMS, session.states[5])
    assert (words(one.mask(less, session.values[5])) != whole).all()


def test_nothing_of_a_client_is_in_what_crosses_or_is_kept():
    values = numbers()
    session = Session(values, stop=[("masked", 8)])
    crossed = b"".join(m for kind in session.seen.values() for m in kind.values())
    crossed += session.roster + session.left + b"".join(session.inboxes.values())
    for i in PEOPLE:
        assert values[i].tobytes()[:64] not in crossed
        assert session.seed(i) not in crossed
    session.server.unmask_sum()
    arrays = [v for v in vars(session.server).values() if isinstance(v, np.ndarray)]
    assert len(arrays) == 1  # the sum
    for message in session.seen["masked"].values():
        assert all(message[25:89] not in a.tobytes() for a in arrays)
    for i, message in session.seen["opened"].items():
        kinds = [message[29 + j * 71 + 4 : 29 + j * 71 + 5] for j in range(5)]
        assert kinds == [b"k" if v == 8 else b"s" for v in PEOPLE], i  # one secret of each


def test_late_numbers_stay_masked():
    session = Session(numbers(), stop=[("masked", 3)])
    late = session.members[3].mask(session.inboxes[3], session.values[3])
    with pytest.raises(ProtocolError, match="out of turn"):
        session.server.receive_masked(3, late)
    place = {v: x for x, v in enumerate(PEOPLE, start=1)}
    some = {place[v]: part for v, part in list(session.server._opened[3].items())[:3]}
    key, peeled = shamir.join(some), words(late)  # as a curious server would
    for v in (2, 5, 8, 13):
        binding = bind_question(session.server._binding, b"")
        part = mask(pairwise_key(key, session.server._keys[v][32:], binding), D, 64)
        peeled = peeled - part if v > 3 else peeled + part
    assert (peeled != session.values[3]).all()
    assert np.array_equal(peeled - mask(session.seed(3), D, 64), session.values[3])


def test_a_member_answers_each_question_once():
    session = Session(numbers())
    one = session.members[2]
    for ask in (
        one.advertise,
        lambda: one.share(session.roster),
        lambda: one.mask(session.inboxes[2], session.values[2]),
        lambda: one.open(session.left),
    ):
        with pytest.raises(ProtocolError, match="is 'opened'"):
            ask()
    with pytest.raises(ProtocolError, match="before"):
        session.server.receive_opened(2, session.seen["opened"][2])


def test_survivors_that_would_open_too_much_are_refused():
    session = Session(numbers(), stop=[("opened", 2), ("shares", 13)])
    head, one = session.left[:25], session.members[2]

    def listed(*who):
        return head + struct.pack(f"<{len(who) + 1}I", len(who), *who)

    for wrong, said in (
        (listed(2, 3), "2 members are left"),
        (listed(3, 5, 8), "is left out"),
        (listed(2, 3, 5, 13), "did not share"),
        (listed(2, 3, 3, 5), "ascend"),
    ):
        with pytest.raises(ProtocolError, match=said):
            one.open(wrong)
    assert one.open(session.left)


@pytest.mark.parametrize("kind", ["keys", "shares", "masked", "opened"])
def test_malformed_messages_are_refused(kind):
    session = Session(numbers())
    server, take = session.again(kind, but={5})
    whole = session.seen[kind][5]
    other = whole[:5] + b"x" + whole[6:]
    list_at = {"shares": 25 + 32 + 64, "opened": 25}.get(kind, 0)
    huge = whole[:list_at] + b"\xff" * 4 + whole[list_at + 4 :]
    for wrong in (b"", whole[:24], whole[:-1], whole + b"x", other, b"X" + whole[1:], huge):
        with pytest.raises(ProtocolError):
            take(5, wrong)
    with pytest.raises(ProtocolError, match="is from 5, not from 2"):
        take(2, whole)
    take(5, whole)  # what was refused left no trace
    with pytest.raises(ProtocolError, match="before"):
        take(5, whole)
    if kind == "opened":
        assert np.array_equal(server.unmask_sum(), added(session.values, PEOPLE))


def test_messages_out_of_turn_are_refused():
    session = Session(numbers())
    server = ProtocolServer(TERMS)
    for take, kind in (
        (server.receive_shares, "shares"),
        (server.receive_masked, "masked"),
        (server.receive_opened, "opened"),
    ):
        with pytest.raises(ProtocolError, match="out of turn"):
            take(5, session.seen[kind][5])


@pytest.mark.parametrize("kind", ["roster", "inbox", "survivors"])
def test_malformed_messages_of_a_server_are_refused(kind):
    session = Session(numbers(), stop=[("opened", 2)])
    whole = {"roster": session.roster, "inbox": session.inboxes[2], "survivors": session.left}[kind]
    huge = whole[:25] + b"\xff\xff\xff\xff" + whole[29:]
    foreign = whole[:29] + b"\xfe\xff\xff\xff" + whole[33:]
    for wrong in (b"", whole[:20], whole[:-1], whole + b"x", whole[:5] + b"x" * 16, huge, foreign):
        member = ProtocolClient(2, TERMS)
        member.advertise()
        if kind == "inbox":
            member = ProtocolClient.resume(TERMS, session.states[2])
        elif kind == "survivors":
            member = session.members[2]
        ask = {
            "roster": member.share,
            "inbox": lambda m, member=member: member.mask(m, session.values[2]),
            "survivors": member.open,
        }[kind]
        with pytest.raises(ProtocolError):
            ask(wrong)


@pytest.mark.parametrize("stop", [[], [("masked", 2)]])
@pytest.mark.parametrize("change", [1, 2**300])
def test_wrong_shares_are_noticed(stop, change):
    """Also those that give another secret which could be one: they would spoil the sum."""
    session = Session(numbers(), stop=[*stop, ("opened", 13)])
    said = bytearray(session.members[13].open(session.left))
    place = [1, 3, 5] if not stop else [2, 3, 5]  # of the three that are joined, with 13 fifth
    at = slice(25 + 4 + 5, 25 + 4 + 5 + 66)  # 13's share of 2's secret
    factor = shamir.lagrange_factors(tuple(place))[5]
    share = int.from_bytes(said[at], "big") + change * pow(factor, -1, shamir.P)
    said[at] = (share % shamir.P).to_bytes(66, "big")
    server = session.again("opened", but={i for i in PEOPLE if PEOPLE.index(i) + 1 not in place})[0]
    server.receive_opened(13, bytes(said))
    with pytest.raises(ProtocolError, match="of member 2"):
        server.unmask_sum()


class Dealer(ProtocolClient):
    """Deals shares that are changed for some holders; `commits` to what it deals, or to the right
    ones."""

    holders, commits = (3,), False

    def share(self, roster):
        whole, real = shamir.split, client_module.commit_shares

        def split(secret, holders, threshold):
            parts, places = whole(secret, holders, threshold), sorted(PEOPLE)
            self.right = [*getattr(self, "right", []), list(parts)]
            for v in self.holders:
                parts[places.index(v)] = bytes(1) + os.urandom(65)
            return parts

        def commit(binding, owner, holder, text):
            at = sorted(PEOPLE).index(holder)
            right = b"".join(parts[at] for parts in self.right)
            return real(binding, owner, holder, text if self.commits else right)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shamir, "split", split)
            patch.setattr(client_module, "commit_shares", commit)
            return super().share(roster)


def dealt(holders, commits, stop=()):
    """A session in which member 5 deals wrong shares to some."""
    kind = type("Kind", (Dealer,), {"holders": holders, "commits": commits})
    return Session(numbers(), stop, kinds={5: kind})


@pytest.mark.parametrize(
    ("holders", "commits", "stop"),
    [
        *itertools.product([(2,), (13,)], [False, True], [[], [("masked", 5)]]),
        *itertools.product([(2, 13), (3, 8)], [False], [[]]),
    ],
)
def test_a_few_wrong_shares_cost_nothing(holders, commits, stop):
    """Three of five are needed; the others take the place of those that are wrong."""
    session = dealt(holders, commits, stop)
    left = [i for i in PEOPLE if not stop or i != 5]
    assert np.array_equal(session.server.unmask_sum(), added(session.values, left))


@pytest.mark.parametrize("commits", [False, True])
def test_a_member_that_deals_no_secret_is_named(commits):
    with pytest.raises(DealerError, match="member 5 dealt are wrong") as caught:
        dealt((2, 3, 8), commits).server.unmask_sum()
    assert caught.value.member == 5


@pytest.mark.parametrize("stop", [[], [("masked", 2)]])
def test_one_wrong_bit_in_one_opened_share(stop):
    session = Session(numbers(), stop=[*stop, ("opened", 13)])
    said = bytearray(session.members[13].open(session.left))
    said[25 + 4 + 5 + 40] ^= 1  # in 13's share of 2's secret
    session.server.receive_opened(13, bytes(said))
    left = [i for i in PEOPLE if ("masked", i) not in stop]
    assert np.array_equal(session.server.unmask_sum(), added(session.values, left))


def rostered(weights, terms=TERMS, clients=PEOPLE):
    """Members that advertised, and the roster with these weights."""
    members = {i: ProtocolClient(i, terms) for i in clients}
    server = ProtocolServer(terms, weights)
    for i, member in members.items():
        server.receive_keys(i, member.advertise())
    return members, server


def test_others_of_no_weight_do_not_hide_a_member():
    """A server that tells everybody else a weight of 1e-30 would read one member's vector."""
    members, server = rostered({i: 1.0 if i == 5 else 1e-30 for i in PEOPLE})
    with pytest.raises(ThresholdError, match="hides among 3, not 1"):
        members[5].share(server.roster())
    members[2].share(server.roster())  # whose numbers are hidden


def test_a_weight_comes_with_the_roster():
    member = ProtocolClient(5, TERMS)
    member.advertise()
    with pytest.raises(ProtocolError, match="is 'advertised' and has no weight yet"):
        assert member.weight


@pytest.mark.parametrize("weight", [0.0, -1.0, 1.5, float("nan"), float("inf")])
def test_weights_must_be_shares(weight):
    members, server = rostered({i: weight if i == 3 else 1.0 for i in PEOPLE})
    with pytest.raises(ProtocolError, match="weights of a roster"):
        members[5].share(server.roster())


def test_the_heavy_ones_may_not_be_left_out_afterwards():
    """The others have a tenth of the weight of 5 or more when it shares, but not in the sum."""
    terms = ProtocolTerms(bytes(16), 3, D)
    members, server = rostered({2: 1.0, 3: 1.0, 5: 1.0, 8: 0.01, 13: 0.01}, terms)
    for i, member in members.items():
        server.receive_shares(i, member.share(server.roster()))
    inbox = server.inbox(5)
    rows = decode_rows("inbox", decode_message("inbox", terms, SERVER, inbox), DEALT, 9)
    few = encode_message("inbox", terms, SERVER, encode_rows((v, rows[v]) for v in (2, 8, 13)))
    with pytest.raises(ThresholdError, match="hides among 3, not 2"):
        members[5].mask(few, numbers()[5])
    members[5].mask(inbox, numbers()[5])
    left = encode_message("survivors", terms, SERVER, encode_rows((v, b"") for v in (2, 5, 8, 13)))
    with pytest.raises(ThresholdError, match="hides among 3, not 2"):
        members[5].open(left)


@pytest.mark.parametrize("change", [{"threshold": 4}, {"context": b"x"}, {"length": 9}])
def test_terms_cannot_change_after_shares_were_dealt(change):
    """A server could otherwise lower the threshold when it asks for the shares."""
    session = Session(numbers())
    with pytest.raises(ProtocolError, match="terms of the session have changed"):
        ProtocolClient.resume(replace(TERMS, **change), session.states[5])
    with pytest.raises(ProtocolError, match="not the state"):
        ProtocolClient.resume(TERMS, session.states[5].replace(b'"weights"', b'"wights"'))


@pytest.mark.parametrize("what", ["weights", "question"])
def test_masks_do_not_cancel_if_members_were_told_different_things(what):
    """Other weights in its roster, or another model to train, for one member of five."""
    values = {i: np.zeros(D, "<u8") for i in PEOPLE}
    members, server = rostered(None)
    other = dict.fromkeys(PEOPLE, 1.0) | ({2: 0.5} if what == "weights" else {})
    lie = encode_message("roster", TERMS, SERVER, encode_roster(server._keys, other))
    for i, member in members.items():
        server.receive_shares(i, member.share(lie if i == 5 else server.roster()))
    for i, member in members.items():
        question = b"x" if i == 5 and what == "question" else b""
        server.receive_masked(i, member.mask(server.inbox(i), values[i], question))
    left = server.survivors()
    for i, member in members.items():
        server.receive_opened(i, member.open(left))
    if what == "weights":  # nobody else can read its shares, nor it theirs
        with pytest.raises(ProtocolError, match="member 5"):
            server.unmask_sum()
        assert 5 not in server._opened
    else:
        assert looks_uniform(server.unmask_sum())


@pytest.mark.parametrize("bits", [32, 64])
def test_a_total_beyond_the_bounds_of_all_is_refused(bits):
    """With 64 bits a client could otherwise add 4,096 times the bound of one."""
    quantizer = Quantizer((Channel("delta", (3,), 1.0),), 5, bits)
    honest = {i: quantizer.encode({"delta": torch.ones(3)}) for i in range(4)}
    step = quantizer.step(quantizer.channels[0])

    def total(sent):
        values = honest | {4: np.full(3, round(sent / step), np.int64).astype(f"<u{bits // 8}")}
        return secure_sum(ProtocolTerms(bytes(16), 4, 3, bits), values)[0]

    assert quantizer.decode(total(1.0), 5.0)["delta"].tolist() == [5.0] * 3
    assert quantizer.decode(total(-9.0), 5.0)["delta"].tolist() == [-5.0] * 3  # what remains
    wild = 4096.0 if bits == 64 else 2.0
    for sent, weight in ((1.01, 5.0), (-9.01, 5.0), (wild, 5.0), (1.0, 4.9)):
        with pytest.raises(DataError, match=r"beyond the sum of bounds .* wrong numbers"):
            quantizer.decode(total(sent), weight)


def test_keys_of_another_in_the_roster_are_refused():
    member = ProtocolClient(2, TERMS)
    member.advertise()
    with pytest.raises(ProtocolError, match="not the keys that member 2 sent"):
        member.share(Session(numbers()).roster)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("away", [{}, {0: "keys"}, {1: "shares"}, {2: "masked"}, {3: "opened"}])
def test_the_masked_mean_is_the_plain_mean_up_to_the_grid(away, bits):
    torch.manual_seed(0)
    p = torch.tensor([0.1, 0.2, 0.3, 0.05, 0.15], dtype=torch.float64)
    rows = {"delta": torch.randn(5, 30).double(), "delta_sq": torch.rand(5).double()}
    secure = SecureMean(0.8, bound={"delta": 8.0, "delta_sq": 1.0}, bits=bits, dropouts=away)
    secure.add(p[:2], {n: v[:2] for n, v in rows.items()})
    secure.add(p[2:], {n: v[2:] for n, v in rows.items()})
    found = secure.result()
    left = [i for i in range(5) if away.get(i, "opened") == "opened"]
    plain = Mean(float(p[left].sum()))
    plain.add(p[left], {n: v[left] for n, v in rows.items()})
    for channel in (Channel("delta", (30,), 8.0), Channel("delta_sq", (), 1.0)):
        step = Quantizer((channel,), 5, bits).step(channel)
        gap = (found[channel.name] - plain.result()[channel.name]).abs().max()
        bound = len(left) * step * p[left].max() / p[left].sum()
        assert 0 < gap <= bound + 1e-15
    assert found["delta"].dtype == torch.float64


def test_a_sum_of_one_is_refused():
    mean = SecureMean(1.0)
    mean.add(torch.ones(1), {"delta": torch.ones(1, 3)})
    with pytest.raises(ArgumentError, match="at least 2"):
        mean.result()


# Points of low order on Curve25519 and its twist (RFC 7748, section 6.1: the agreed secret is 0).
LOW_ORDER = [
    bytes(32),
    bytes([1]) + bytes(31),
    (2**255 - 19 - 1).to_bytes(32, "little"),
    (2**255 - 19).to_bytes(32, "little"),
    (2**255 - 19 + 1).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
]


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("low", LOW_ORDER, ids=range(len(LOW_ORDER)))
def test_keys_that_agree_with_nobody_are_refused(low, half):
    """In a roster they would stop every member, so that one client could end the run."""
    server, members = ProtocolServer(TERMS), {i: ProtocolClient(i, TERMS) for i in PEOPLE}
    for i in PEOPLE[1:]:
        server.receive_keys(i, members[i].advertise())
    said = bytearray(members[2].advertise())
    at = len(said) - 64 + 32 * half
    said[at : at + 32] = low
    with pytest.raises(ProtocolError, match="cannot be used for key agreement"):
        server.receive_keys(2, bytes(said))
    roster = server.roster()
    for i in PEOPLE[1:]:
        server.receive_shares(i, members[i].share(roster))


def test_one_member_cannot_have_another_blamed():
    """If all have to open, one that leaves out a share, and one that dealt it wrong, look alike."""
    terms, values = replace(TERMS, threshold=5), numbers()
    server, members = ProtocolServer(terms), {i: ProtocolClient(i, terms) for i in PEOPLE}
    for i, one in members.items():
        server.receive_keys(i, one.advertise())
    roster = server.roster()
    for i, one in members.items():
        server.receive_shares(i, one.share(roster))
    for i, one in members.items():
        server.receive_masked(i, one.mask(server.inbox(i), values[i]))
    left = server.survivors()
    for i, one in members.items():
        said = one.open(left)
        if i == 13:  # changes its share of 2's seed
            said = bytearray(said)
            said[25 + 4 + 5 + 20] ^= 1
        server.receive_opened(i, bytes(said))
    with pytest.raises(ThresholdError, match="4 right shares of member 2"):
        server.unmask_sum()
