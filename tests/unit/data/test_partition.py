import itertools

import numpy as np
import pytest
import torch

from helpers import count_calls
from tunefree.core.errors import ArgumentError, DataError
from tunefree.data import ByOwner, Dataset, Dirichlet, Iid, RelaySum, Shards, load
from tunefree.data.partition import parse

Y = torch.arange(1000) % 10


def test_iid_is_even_and_shuffled():
    owner = Iid().assign(Y, 7, 0)
    assert sorted(owner.bincount().tolist()) == [142] * 1 + [143] * 6
    assert owner[:20].tolist() != sorted(owner[:20].tolist())


def test_shards_give_each_client_few_labels():
    owner = Shards(2).assign(Y, 50, 0)
    assert owner.bincount().tolist() == [20] * 50
    assert max(len(Y[owner == i].unique()) for i in range(50)) <= 2
    one = Shards(1).assign(torch.tensor([1, 0, 1, 0]), 2, 0)
    assert {tuple(one.tolist())} <= {(0, 1, 0, 1), (1, 0, 1, 0)}


@pytest.mark.parametrize("balanced", [False, True])
def test_dirichlet_skew_follows_alpha(balanced):
    y = torch.arange(20_000) % 10

    def skew(alpha):  # mean over clients of the largest class share
        owner = Dirichlet(alpha, balanced=balanced).assign(y, 20, 0)
        counts = torch.bincount(owner * 10 + y, minlength=200).view(20, 10).double()
        return float((counts.max(1).values / counts.sum(1)).mean())

    values = [skew(alpha) for alpha in (1e-3, 0.1, 1.0, 1e4)]
    assert values == sorted(values, reverse=True)
    assert values[0] > 0.5
    assert values[-1] < 0.12


def test_dirichlet_shares_have_the_right_moments():
    # A share of Dir(alpha) over N clients has mean 1/N and variance (N-1)/(N^2 (N alpha + 1)).
    n, alpha, classes = 10, 0.5, 400
    y = torch.arange(classes).repeat_interleave(1000)
    owner = Dirichlet(alpha).assign(y, n, 1)
    shares = torch.bincount(owner + n * y, minlength=n * classes).view(classes, n) / 1000
    assert abs(float(shares.var()) - (n - 1) / (n**2 * (n * alpha + 1))) < 1.5e-3


@pytest.mark.parametrize("alpha", [1e-300, 1e-6, 1e-3, 1e6])
@pytest.mark.parametrize("balanced", [False, True])
def test_extreme_alphas_end_and_reach_everyone(alpha, balanced):
    owner = Dirichlet(alpha, balanced=balanced, min_samples=7).assign(Y, 100, 0)
    sizes = owner.bincount(minlength=100)
    assert sizes.sum() == 1000
    assert sizes.min() >= 7


def test_repair_takes_from_the_largest():
    # One class and a tiny alpha: everything goes to one client, who then gives to the others.
    owner = Dirichlet(1e-6, min_samples=3).assign(torch.zeros(100, dtype=torch.long), 5, 0)
    assert sorted(owner.bincount().tolist()) == [3, 3, 3, 3, 88]


def test_balanced_clients_get_their_preferred_class_while_it_lasts():
    owner = Dirichlet(1e-6, balanced=True).assign(Y, 10, 0)
    counts = torch.bincount(owner * 10 + Y, minlength=100).view(10, 10)
    assert counts.sum(1).tolist() == [100] * 10
    assert counts.sum(0).tolist() == [100] * 10
    assert counts.max(1).values.double().mean() > 40  # about 16 if labels played no part


@pytest.mark.parametrize(
    ("alpha", "clients", "smallest", "largest"),
    [
        (1.0, 15, (2545, 261), (5185, 403)),
        (1.0, 7, (6201, 808), (10555, 779)),
        (0.1, 15, (2274, 227), (5987, 554)),
        (0.1, 7, (5276, 692), (11688, 1072)),
    ],
)
def test_relaysum_has_the_sizes_of_the_authors_code(alpha, clients, smallest, largest):
    # Mean and deviation over 60 seeds of the code of Vogels et al., ten classes of 6,000 rows.
    y = torch.arange(60_000) % 10
    found = [RelaySum(alpha).assign(y, clients, seed).bincount() for seed in range(60)]
    for pick, (mean, deviation) in ((torch.min, smallest), (torch.max, largest)):
        got = sum(float(pick(sizes)) for sizes in found) / 60
        assert abs(got - mean) < 3 * deviation * (2 / 60) ** 0.5


def test_relaysum_skew_follows_alpha():
    y = torch.arange(20_000) % 10

    def skew(alpha):  # mean over clients of the largest class share
        owner = RelaySum(alpha).assign(y, 20, 0)
        counts = torch.bincount(owner * 10 + y, minlength=200).view(20, 10).double()
        return float((counts.max(1).values / counts.sum(1)).mean())

    values = [skew(alpha) for alpha in (1e-3, 0.1, 1.0, 1e4)]
    assert values == sorted(values, reverse=True)
    assert values[0] > 0.5
    assert values[-1] < 0.12


def test_relaysum_says_when_no_split_is_even_enough():
    text = (
        "RelaySum(alpha=0.01) found no split of 1000 rows of 1 classes in which each of 8 clients "
        "has half of the mean; use a larger alpha, fewer clients, or Dirichlet."
    )
    with pytest.raises(DataError) as caught:
        RelaySum(0.01).assign(torch.zeros(1000, dtype=torch.long), 8, 0)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    "partitioner", [Iid(), Dirichlet(0.1), Dirichlet(0.1, balanced=True), Shards(2)]
)
def test_no_loop_over_rows_or_clients(partitioner):
    y, found = torch.arange(60_000) % 10, []
    calls = count_calls(lambda: found.append(partitioner.assign(y, 1000, 0)))
    assert len(found[0].bincount()) == 1000
    assert calls < 3000  # a call a row would be 60,000


def test_by_owner_takes_more_clients_as_a_superset():
    owner = torch.tensor([3, 3, 8, 8, 8, 11, 20, 20])
    assert ByOwner().assign(Y[:8], None, 0, owner).tolist() == [0, 0, 1, 1, 1, 2, 3, 3]
    assert ByOwner(min_samples=2).assign(Y[:8], None, 0, owner).tolist() == [
        0,
        0,
        1,
        1,
        1,
        -1,
        2,
        2,
    ]
    kept = [set(ByOwner().owners(owner, n, 5).tolist()) for n in (1, 2, 3, 4)]
    assert [len(k) for k in kept] == [1, 2, 3, 4]
    assert all(a < b for a, b in itertools.pairwise(kept))


def test_dataset_split_by_owner_keeps_names_and_test_rows():
    data = Dataset(
        name="mine",
        x=torch.arange(4.0)[:, None],
        y=torch.tensor([0, 1, 1, 0]),
        test=(torch.zeros(3, 1), torch.tensor([0, 1, 2])),
        classes=3,
        owner=torch.tensor([1, 0, 1, 2]),
        owners=("a", "b", "c"),
        test_owner=torch.tensor([2, 1, -1]),
    )
    fed = data.split(ByOwner())
    assert fed.names == ("a", "b", "c")
    assert fed.x.flatten().tolist() == [1.0, 0.0, 2.0, 3.0]
    assert fed.test_owner.tolist() == [2, 1, -1]
    assert fed.classes == 3
    fed = data.split(ByOwner(min_samples=2))
    assert (fed.names, fed.samples, fed.test_owner.tolist()) == (("b",), 2, [-1, 0, -1])
    assert data.split(Iid(), clients=2).names == (0, 1)
    assert data.split(Iid(), clients=2).test_owner is None


def test_own_partitioner():
    class Halves:
        def assign(self, y, clients, seed, owner):
            return (torch.arange(len(y)) >= len(y) // 2).long()

    assert load("toy").split(Halves()).sizes.tolist() == [1, 1]
    with pytest.raises(ArgumentError, match=r"split\(partitioner=...\) must have a method assign"):
        load("toy").split("iid")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: Dirichlet(0.0),
            "Dirichlet(alpha=...) must be a finite number > 0, got 0.0.",
        ),
        (
            lambda: Dirichlet(float("nan")),
            "Dirichlet(alpha=...) must be a finite number > 0, got nan.",
        ),
        (
            lambda: Dirichlet(1.0, min_samples=0),
            "Dirichlet(min_samples=...) must be an int >= 1, got 0.",
        ),
        (lambda: RelaySum(0.0), "RelaySum(alpha=...) must be a finite number > 0, got 0.0."),
        (lambda: RelaySum(1.0, 0), "RelaySum(group=...) must be an int >= 1, got 0."),
        (lambda: Shards(0), "Shards(k=...) must be an int >= 1, got 0."),
        (
            lambda: ByOwner(min_samples=0),
            "ByOwner(min_samples=...) must be an int >= 1, got 0.",
        ),
        (
            lambda: Iid().assign(Y, 0, 0),
            "split(clients=...) must be an int >= 1, got 0.",
        ),
        (
            lambda: Iid().assign(Y, None, 0),
            "Iid needs the number of clients; give split(..., clients=...).",
        ),
        (
            lambda: parse("dirichlet"),
            "The split 'dirichlet' lacks alpha; write dirichlet:alpha=…",
        ),
        (lambda: parse("shards:x"), "shards: k must be an int."),
        (lambda: parse("iid:3"), "iid: '3' is one value too many; it takes none."),
        (
            lambda: parse("dirichlet:-1"),
            "Dirichlet(alpha=...) must be a finite number > 0, got -1.0.",
        ),
        (
            lambda: parse("dirchlet:1"),
            "Unknown split 'dirchlet'. Did you mean 'dirichlet'? Known: dirichlet, iid, owner, "
            "relaysum, shards.",
        ),
    ],
)
def test_bad_arguments(call, sentence):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: Dirichlet(1.0, min_samples=11).assign(Y, 100, 0),
            "Dirichlet cannot give 100 clients at least 11 of 1000 rows each; use at most 90 "
            "clients.",
        ),
        (
            lambda: Iid().assign(Y, 1001, 0),
            "Iid cannot give 1001 clients at least 1 of 1000 rows each; use at most 1000 clients.",
        ),
        (
            lambda: Shards(2).assign(Y, 501, 0),
            "Shards(k=2) with clients=501 needs at least 1002 rows, but there are 1000; use fewer "
            "shards or clients.",
        ),
        (
            lambda: Dirichlet(1.0).assign(Y.double(), 2, 0),
            "Dirichlet needs class labels, integers in one axis, but y is torch.float64 of "
            "shape (1000,); use Iid or ByOwner.",
        ),
        (
            lambda: ByOwner().assign(Y, None, 0),
            "ByOwner() needs a dataset that knows the owner of each row; use Iid, Dirichlet or "
            "Shards for this one.",
        ),
        (
            lambda: ByOwner().assign(Y, 11, 0, Y),
            "ByOwner(min_samples=1) with clients=11 must take between 1 and 10 clients, as 10 "
            "owners have that many rows.",
        ),
        (
            lambda: ByOwner(min_samples=101).assign(Y, None, 0, Y),
            "ByOwner(min_samples=101) with clients=None must take between 1 and 0 clients, as 0 "
            "owners have that many rows.",
        ),
        (
            lambda: load("digits").split(ByOwner()),
            "ByOwner() cannot split 'digits', which has no natural owners; use Iid, Dirichlet or "
            "Shards.",
        ),
    ],
)
def test_impossible_requests(call, sentence):
    with pytest.raises(DataError) as caught:
        call()
    assert str(caught.value) == sentence


def test_large_and_negative_seeds_work():
    for seed in (-1, 2**63 - 1, np.int64(3)):
        assert len(Dirichlet(0.5).assign(Y, 5, int(seed)).unique()) == 5


def test_texts():
    texts = ("dirichlet:0.1:balanced", "iid", "shards:2", "owner")
    splits = [Dirichlet(0.1, balanced=True), Iid(), Shards(2), ByOwner()]
    assert [parse(text) for text in texts] == splits
