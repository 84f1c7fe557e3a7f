import numpy as np
import pytest
import torch

from tunefree.core.errors import ArgumentError, DataError
from tunefree.data import Federation

X = np.arange(12.0).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])
OWNER = np.array([5, 2, 5, 2, 2, 9])


def test_rows_are_contiguous_per_client_in_the_order_given():
    fed = Federation(X, Y, OWNER)
    assert fed.names == (2, 5, 9)
    assert fed.sizes.tolist() == [3, 2, 1]
    assert fed.starts.tolist() == [0, 3, 5]
    assert fed.x[:, 0].tolist() == [2.0, 6.0, 8.0, 0.0, 4.0, 10.0]
    assert fed.y.tolist() == [1, 0, 1, 0, 2, 2]
    assert fed.owners().tolist() == [0, 0, 0, 1, 1, 2]
    assert (fed.clients, fed.samples, fed.classes) == (3, 6, 3)
    x, y = fed.client(1)
    assert x.tolist() == [[0.0, 1.0], [4.0, 5.0]]
    assert y.tolist() == [0, 2]
    assert fed.label_counts().tolist() == [[1, 2, 0], [1, 0, 1], [0, 0, 1]]


def test_strings_name_clients():
    fed = Federation(X, Y, ["b", "a", "b", "a", "a", "c"])
    assert fed.names == ("a", "b", "c")
    assert Federation(X, Y, np.array(list("bbaaac"), dtype=object)).names == ("a", "b", "c")


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.int64])
def test_dtypes_are_kept(dtype):
    fed = Federation(X.astype(dtype), Y.astype(np.uint8), OWNER)
    assert fed.x.dtype == torch.from_numpy(np.zeros(1, dtype)).dtype
    assert fed.y.dtype == torch.int64


def test_input_is_not_changed_and_read_only_or_reversed_arrays_are_fine():
    x = X.copy()
    x.flags.writeable = False
    fed = Federation(x, Y[::-1], OWNER)
    fed.x += 1
    assert (x == X).all()
    assert Federation(X.astype(">f4"), Y, OWNER).x.dtype == torch.float32


def test_tuples_and_dicts():
    parts = (X, X.astype(np.float32)[:, :1])
    fed = Federation(parts, Y, OWNER, test=(parts, Y))
    assert isinstance(fed.x, tuple)
    assert fed.client(2)[0][1].tolist() == [[10.0]]
    fed = Federation({"ids": Y[:, None], "mask": X > 3}, Y, OWNER)
    assert fed.client(0)[0]["ids"].tolist() == [[1], [0], [1]]
    assert fed.x["mask"].dtype == torch.bool


def test_regression_and_several_targets_have_no_classes():
    assert Federation(X, X[:, 0], OWNER).classes is None
    assert Federation(X, np.stack([Y, Y], 1), OWNER).classes is None
    assert Federation(X, np.stack([Y > 0, Y > 1], 1), OWNER).classes is None


def test_classes_count_the_test_set():
    fed = Federation(X, Y, OWNER, test=(X[:2], [0, 6]), held=(X[:1], [0]))
    assert fed.classes == 7
    assert fed.held is not None
    assert Federation(X, Y, OWNER, classes=10).label_counts().shape == (3, 10)


def test_owners_of_test_rows():
    fed = Federation(X, Y, OWNER, test=(X[:3], Y[:3]), test_owner=[9, 3, 2])
    assert fed.test_owner.tolist() == [2, -1, 0]


def test_of_pairs_and_datasets_agrees_with_arrays():
    class Rows(torch.utils.data.Dataset):
        def __init__(self, rows):
            self.rows = rows

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, i):
            return torch.from_numpy(X[self.rows[i]]), int(Y[self.rows[i]])

    one = torch.utils.data.TensorDataset(torch.from_numpy(X[[0, 2]]), torch.from_numpy(Y[[0, 2]]))
    fed = Federation.of([Rows([1, 3, 4]), one, (X[5:], Y[5:])], test=Rows([0, 1]))
    same = Federation(X, Y, OWNER)
    assert torch.equal(fed.x, same.x)
    assert torch.equal(fed.y, same.y)
    assert torch.equal(fed.sizes, same.sizes)
    assert fed.names == (0, 1, 2)
    assert fed.test[1].tolist() == [0, 1]


def test_of_dict_samples():
    samples = [
        ({"ids": np.array([i, i]), "mask": np.array([True, False])}, i % 2) for i in range(3)
    ]
    fed = Federation.of([samples, samples])
    assert fed.x["ids"].tolist() == [[0, 0], [1, 1], [2, 2]] * 2
    assert fed.y.tolist() == [0, 1, 0] * 2


def test_hold_out_takes_a_share_of_each_client_and_leaves_one():
    x = np.arange(111.0)[:, None]
    owner = np.repeat([0, 1, 2], [100, 10, 1])
    fed = Federation(x, x[:, 0], owner)
    rest, (x_out, y_out) = fed.hold_out(0.3, seed=1)
    assert rest.sizes.tolist() == [70, 7, 1]
    assert rest.starts.tolist() == [0, 70, 77]
    assert sorted(rest.y.tolist() + y_out.tolist()) == list(range(111))
    assert torch.equal(x_out[:, 0], y_out)
    assert ((rest.y < 100).sum(), (y_out < 100).sum()) == (70, 30)
    again = fed.hold_out(0.3, seed=1)[1][1]
    other = fed.hold_out(0.3, seed=2)[1][1]
    assert torch.equal(again, y_out)
    assert not torch.equal(other, y_out)
    assert fed.samples == 111  # unchanged
    assert fed.hold_out(0.99)[0].sizes.tolist() == [1, 1, 1]


def test_to_casts_floats_alone():
    fed = Federation({"a": X, "b": Y}, Y, OWNER, test=({"a": X, "b": Y}, Y)).to(
        "cpu", torch.float32
    )
    assert fed.x["a"].dtype == fed.test[0]["a"].dtype == torch.float32
    assert fed.x["b"].dtype == fed.y.dtype == fed.sizes.dtype == torch.int64
    assert Federation(X, X[:, 0], OWNER).to(dtype=torch.float32).y.dtype == torch.float32


def test_digest_sees_other_data():
    base = Federation(X, Y, OWNER)
    assert base.digest() == Federation(X.copy(), Y, OWNER.astype(np.int32)).digest()
    assert len(base.digest()) == 16
    nudged = X.copy()
    nudged[3, 1] += 1e-9
    others = [
        Federation(nudged, Y, OWNER),
        Federation(X, Y[::-1], OWNER),
        Federation(X, Y, OWNER[::-1]),
        Federation(X, Y, OWNER, test=(X, Y)),
        Federation(X, Y, OWNER, held=(X, Y)),
        Federation(X.astype(np.float32), Y, OWNER),
        Federation((X,), Y, OWNER),
    ]
    assert len({fed.digest() for fed in [base, *others]}) == 8


def test_repr_says_what_it_is():
    fed = Federation(X, Y, OWNER, test=(X, Y), name="mine")
    assert repr(fed) == "Federation('mine', 3 clients, 6 samples, 3 classes, 6 test samples)"


BAD_X = X.copy()
BAD_X[4, 1] = np.nan
INF_Y = X[:, 0].copy()
INF_Y[2] = np.inf

SENTENCES = [
    ({"x": X[:5]}, "Federation(x=...) must have as many rows as y, got 5 and 6."),
    (
        {"x": (X, X[:4])},
        "Federation(x[1]=...) must have as many rows as y, got 4 and 6.",
    ),
    (
        {"x": {"a": X, "b": X[:4]}},
        "Federation(x['b']=...) must have as many rows as y, got 4 and 6.",
    ),
    ({"x": ()}, "Federation(x=...) must hold at least one array, got ()."),
    ({"x": 3.0}, "Federation(x=...) must have one row per sample, got one number."),
    (
        {"x": ["a"] * 6},
        "Federation(x=...) must hold numbers, got an array of <U1; turn text into numbers and give "
        "every sample the same shape.",
    ),
    (
        {"owner": OWNER[:4]},
        "Federation(owner=...) must have one entry per sample, got 4 for 6 samples.",
    ),
    (
        {"owner": OWNER / 2},
        "Federation(owner=...) must be one int or string per sample, got float64 of shape (6,).",
    ),
    (
        {"x": BAD_X},
        "Federation(x=...) must be finite, but row 4 holds NaN; drop or fill such rows first.",
    ),
    (
        {"y": INF_Y},
        "Federation(y=...) must be finite, but row 2 holds Inf; drop or fill such rows first.",
    ),
    (
        {"test": (BAD_X, Y)},
        "Federation: x of test must be finite, but row 4 holds NaN; drop or fill such rows first.",
    ),
    (
        {"x": X[:0], "y": Y[:0], "owner": OWNER[:0]},
        "Federation(y=...) must have at least one row, but has no samples.",
    ),
    (
        {"y": Y - 1, "classes": 2},
        "Federation(y=...) must hold labels in 0..1, but y has -1 in row 0; number the classes "
        "from 0, or give floats for regression.",
    ),
    (
        {"classes": 2},
        "Federation(y=...) must hold labels in 0..1, but y has 2 in row 2; number the classes "
        "from 0, or give floats for regression.",
    ),
    (
        {"test": (X, Y + 3), "classes": 5},
        "Federation(y=...) must hold labels in 0..4, but y of test has 5 in row 2; number the "
        "classes from 0, or give floats for regression.",
    ),
    (
        {"y": X[:, 0], "classes": 2},
        "Federation(classes=2) needs integer labels in one axis, but y is torch.float64 of "
        "shape (6,).",
    ),
    (
        {"clients": 3},
        "Federation(owner=...) must be ints in 0..2 with clients=3, got 5.",
    ),
    (
        {"clients": 3, "owner": list("aabbcc")},
        "Federation(owner=...) must be ints in 0..2 with clients=3, got 'a'.",
    ),
    (
        {"clients": 5, "owner": [0, 1, 2, 4, 4, 4]},
        "Federation(owner=...) must give every client a sample, but client 3 has no samples; lower "
        "clients=5 or give it one.",
    ),
    (
        {"test": (X[:, :1], Y)},
        "Federation: test must have the same arrays and shapes per sample as the training data, "
        "got x (1,), y () and x (2,), y ().",
    ),
    (
        {"held": ((X, X), Y)},
        "Federation: held must have the same arrays and shapes per sample as the training data, "
        "got x[0] (2,), x[1] (2,), y () and x (2,), y ().",
    ),
    (
        {"test": (X, X[:, 0])},
        "Federation: y of test and of the training data must both be integer labels or both "
        "not, got torch.float64 and torch.int64.",
    ),
    ({"test": X[:, :1]}, "Federation(test=...) must be a pair (x, y), got ndarray."),
    (
        {"test_owner": OWNER},
        "Federation(test_owner=...) needs test=(x, y) as well, got test=None.",
    ),
    (
        {"test": (X, Y), "test_owner": list("aabbcc")},
        "Federation(test_owner=...) must use the labels of owner, but one of them holds strings "
        "and the other ints.",
    ),
]


@pytest.mark.parametrize(("change", "sentence"), SENTENCES)
def test_bad_input_is_refused_in_one_sentence(change, sentence):
    arguments = {"x": X, "y": Y, "owner": OWNER} | change
    with pytest.raises(DataError) as caught:
        Federation(**arguments)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ([], "Federation.of(parts=...) must hold at least one client, got none."),
        (
            [(X, Y), (X[:0], Y[:0])],
            "Federation: y of client 1 must have at least one row, but has no samples.",
        ),
        (
            [(X, Y), []],
            "Federation.of: client 1 has no samples; leave it out or give it one.",
        ),
        (
            [(X, Y), (X[:, :1], Y)],
            "Federation: client 1 must have the same arrays and shapes per sample as client 0, got "
            "x (1,), y () and x (2,), y ().",
        ),
        (
            [iter(())],
            "Federation.of: client 0 must be a pair (x, y), a table, a Dataset or a DataLoader, "
            "got tuple_iterator.",
        ),
        (
            [[1.0, 2.0, 3.0]],
            "Federation.of: client 0 must return a pair (x, y) for every sample, or a dict whose "
            "targets are named 'label' or given by y=..., got float.",
        ),
    ],
)
def test_of_refuses(parts, sentence):
    with pytest.raises(DataError) as caught:
        Federation.of(parts)
    assert str(caught.value) == sentence


def test_of_refuses_samples_of_different_shapes():
    samples = [(np.zeros(2), 0), (np.zeros(3), 0), (np.zeros(2), 1)]
    with pytest.raises(DataError, match=r"client 0 must return samples of one form and shape"):
        Federation.of([samples])


def test_bad_calls():
    fed = Federation(X, X[:, 0], OWNER)
    with pytest.raises(ArgumentError, match=r"Federation.client\(i=...\) must be in 0..2, got 3"):
        fed.client(3)
    with pytest.raises(
        ArgumentError, match=r"hold_out\(fraction=...\) must be a number between 0 and 1"
    ):
        fed.hold_out(1.0)
    with pytest.raises(DataError, match=r"takes no sample from any of the 3 clients"):
        fed.hold_out(0.01)
    with pytest.raises(DataError, match=r"label_counts\(\) needs class labels"):
        fed.label_counts()
    with pytest.raises(ArgumentError, match=r"clients=...\) must be an int >= 1, got 0"):
        Federation(X, Y, OWNER, clients=0)
    with pytest.raises(ArgumentError, match=r"classes=...\) must be an int >= 1, got 0"):
        Federation(X, Y, OWNER, classes=0)


def test_a_picture_of_who_has_what():
    x, y = torch.zeros(10, 2), torch.tensor([0, 1, 1, 2, 2, 2, 0, 0, 0, 0])
    fed = Federation(x, y, owner=[0, 0, 0, 1, 1, 1, 2, 2, 2, 2])
    assert fed.picture() == {
        "clients": [0, 1, 2], "sizes": [3, 3, 4], "labels": [[1, 2, 0], [0, 0, 3], [4, 0, 0]],
    }  # fmt: skip
    assert fed.picture(2)["clients"] == [0, 2]
    assert fed.picture(1)["clients"] == [0]
    assert "labels" not in Federation(x, y.float(), owner=[0] * 10).picture()
