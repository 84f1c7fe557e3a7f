"""Each format on tiny files written here, and each real dataset where its files are at hand."""

import json
import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tunefree.core.errors import ArgumentError, DataError
from tunefree.data import ByOwner, describe, femnist, images, load, names
from tunefree.data.sources import SOURCES

FOLDER = Path(os.environ.get("TUNEFREE_DATA") or Path(__file__).parents[4] / "shared" / "data")


def real(name, **options):
    row = next(row for row in describe(FOLDER if FOLDER.is_dir() else None) if row["name"] == name)
    if row["found"] == "missing":
        pytest.skip(f"the files of {name} are not on this machine")
    return load(name, FOLDER if FOLDER.is_dir() else None, **options)


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """No data but what the test itself puts into the folder returned."""
    from tunefree.data import femnist, sources

    monkeypatch.delenv("TUNEFREE_DATA", raising=False)
    for module in (sources, femnist):
        monkeypatch.setattr(module, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path


def test_names_and_table():
    assert names() == (
        "a9a",
        "cifar10",
        "cifar10-subset",
        "cifar100",
        "digits",
        "fashion-mnist",
        "femnist",
        "mnist",
        "mnist-writers",
        "shakespeare",
        "sst2",
        "synthetic",
        "toy",
    )
    table = describe()
    assert [row["name"] for row in table] == list(names())
    assert all(row["licence"] and row["rows"] and row["found"] for row in table)


def test_every_dataset_is_entered_once():
    """Its row of the table names the function that returns it, which has its name and licence."""
    for name in ("digits", "synthetic", "toy"):
        assert load(name).licence == SOURCES[name].licence
        assert load(name).name == name
    assert {"name": "toy", "rows": "2 + 0"}.items() <= describe()[names().index("toy")].items()
    for source in SOURCES.values():
        assert bool(source.files) == bool(source.folders)
        assert not source.files or source.url or source.hint
        assert not source.members or len(source.members) == len(source.files)


def test_unknown_names_and_options():
    with pytest.raises(ArgumentError, match=r"Unknown dataset 'cifar-10'. Did you mean 'cifar10'"):
        load("cifar-10")
    with pytest.raises(ArgumentError, match=r"Unknown option of dataset 'synthetic' 'dimensions'"):
        load("synthetic", dimensions=3)


def test_digits():
    data = load("digits")
    assert data.x.shape == (1438, 1, 8, 8)
    assert data.test[0].shape == (359, 1, 8, 8)
    assert data.x.dtype == torch.float32
    assert (float(data.x.min()), float(data.x.max())) == (0.0, 1.0)
    assert data.y.bincount().min() > 130
    assert data.test[1].bincount().tolist() == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]
    assert "CC BY 4.0" in data.licence


def test_toy():
    fed = load("toy").split(ByOwner())
    assert (fed.clients, fed.classes, fed.x.dtype) == (2, None, torch.float64)
    w = torch.tensor([0.24, 1.0], dtype=torch.float64)
    for i, want in enumerate([(0.24 + 1 - 3) ** 2, (0.24 + 2 - 3) ** 2]):
        x, y = fed.client(i)
        assert float((x @ w - y).square().mean()) == pytest.approx(want, rel=1e-14)
    assert (fed.x @ torch.tensor([3.0, 0.0], dtype=torch.float64)).tolist() == fed.y.tolist()


def test_synthetic():
    data = load("synthetic")
    assert data.x.shape == (600, 1000)
    assert data.x.dtype == data.y.dtype == torch.float64
    assert data.split(ByOwner()).sizes.tolist() == [30] * 20
    assert data.test is None
    wide = load("synthetic", clients=10, samples=2000, dimension=20, seed=1)
    k = torch.arange(1, 21, dtype=torch.float64)
    assert (wide.x.var(0) * k**1.1 - 1).abs().max() < 0.06
    # var y = sum_k Sigma_kk (0.1 + 1), on average over clients
    assert float(wide.y.var()) == pytest.approx(1.1 * float((k**-1.1).sum()), rel=0.1)
    assert torch.equal(load("synthetic").y, data.y)
    assert not torch.equal(load("synthetic", seed=1).y, data.y)
    with pytest.raises(ArgumentError, match=r"synthetic\(samples=...\) must be an int"):
        load("synthetic", samples=0)


def idx(array):
    return (
        bytes([0, 0, 8, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.astype(np.uint8).tobytes()
    )


def write_mnist(folder, images_train, labels_train):
    folder.mkdir(parents=True, exist_ok=True)
    for part, (x, y) in (
        ("train", (images_train, labels_train)),
        ("t10k", (images_train[:1], labels_train[:1])),
    ):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(x))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(y))


@pytest.fixture
def no_sums(monkeypatch):
    """Let tiny files stand in for MNIST's own."""
    source = replace(SOURCES["mnist"], checksums={}, url="")
    monkeypatch.setitem(SOURCES, "mnist", source)


@pytest.mark.usefixtures("no_sums")
def test_mnist_form(empty):
    pixels = np.arange(3 * 784).reshape(3, 28, 28) % 256
    write_mnist(empty / "MNIST/raw", pixels, np.array([9, 0, 5]))
    data = load("mnist", empty)
    assert data.x.shape == (3, 1, 28, 28)
    assert data.y.tolist() == [9, 0, 5]
    assert len(data.test[1]) == 1
    assert float(data.x[0, 0, 5, 7]) == np.float32(147) / np.float32(255)


@pytest.mark.usefixtures("no_sums")
def test_mnist_labels_must_fit(empty):
    write_mnist(empty / "mnist", np.zeros((3, 28, 28)), np.array([1, 2]))
    with pytest.raises(DataError, match=r"must hold as many images as labels in 0..9, got shapes"):
        load("mnist", empty)
    write_mnist(empty / "mnist", np.zeros((3, 28, 28)), np.array([1, 2, 10]))
    with pytest.raises(DataError, match=r"must hold as many images as labels in 0..9"):
        load("mnist", empty)


def test_idx_sentences():
    with pytest.raises(DataError) as caught:
        images.parse_idx(b"\x1f\x8b\x08\x00", "labels")
    assert str(caught.value) == (
        "labels must be an idx file of unsigned bytes, which starts with 00 00 08, but starts with "
        "1f 8b 08 00; fetch it again."
    )
    with pytest.raises(DataError) as caught:
        images.parse_idx(idx(np.zeros((2, 3)))[:-1], "images")
    assert str(caught.value) == (
        "images must have 18 bytes for its shape (2, 3), but has 17; fetch it again."
    )
    for cut in range(12):
        with pytest.raises(DataError):
            images.parse_idx(idx(np.zeros((2, 3)))[:cut], "images")


def record(labels, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, 3072, dtype=np.uint8)
    return bytes(labels) + pixels.tobytes(), pixels.reshape(3, 32, 32)


def test_cifar10_form(empty):
    folder = empty / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for i in range(1, 6):
        (folder / f"data_batch_{i}.bin").write_bytes(record([i], i)[0] + record([0], 9)[0])
    (folder / "test_batch.bin").write_bytes(record([7], 7)[0])
    data = load("cifar10", empty)
    assert data.x.shape == (10, 3, 32, 32)
    assert data.y.tolist() == [1, 0, 2, 0, 3, 0, 4, 0, 5, 0]
    assert data.test[1].tolist() == [7]
    want = (record([3], 3)[1][2, 4, 5] / 255 - 0.4465) / 0.2616  # third batch, blue
    assert float(data.x[4, 2, 4, 5]) == pytest.approx(want, rel=1e-5)
    (folder / "test_batch.bin").write_bytes(record([7], 7)[0][:-1])
    with pytest.raises(DataError, match=r"must be made of records of 3073 bytes, but has 3072"):
        load("cifar10", empty)
    (folder / "test_batch.bin").write_bytes(record([10], 7)[0])
    with pytest.raises(DataError, match=r"test_batch.bin must hold labels in 0..9, but has 10"):
        load("cifar10", empty)


def test_cifar100_form(empty):
    folder = empty / "cifar-100-binary"
    folder.mkdir()
    (folder / "train.bin").write_bytes(record([19, 99], 0)[0] + record([0, 3], 1)[0])
    (folder / "test.bin").write_bytes(record([1, 50], 2)[0])
    data = load("cifar100", empty)
    assert data.y.tolist() == [99, 3]
    assert data.test[1].tolist() == [50]
    assert (data.x.shape, data.classes) == ((2, 3, 32, 32), 100)


def write_leaf(path, users):
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    path.write_text(json.dumps(content))


def test_femnist_form(empty):
    image = [0.5] * 784
    write_leaf(empty / "femnist/train/b.json", {"w2": ([image], [61])})
    write_leaf(empty / "femnist/train/a.json", {"w9": ([image, [1] * 784], [0, 1])})
    write_leaf(empty / "femnist/test/a.json", {"w9": ([image], [5]), "w3": ([image], [6])})
    data = load("femnist", empty)
    assert data.x.shape == (3, 1, 28, 28)
    assert (data.owners, data.owner.tolist()) == (("w2", "w9"), [1, 1, 0])
    assert data.test_owner.tolist() == [1, -1]
    assert data.y.tolist() == [0, 1, 61]
    assert data.split(ByOwner()).names == ("w2", "w9")


@pytest.mark.parametrize(
    ("users", "sentence"),
    [
        (
            {"w": ([[0.5] * 783], [1])},
            r"as many images of 784 numbers as labels, got shape \(1, 783",
        ),
        ({"w": ([[0.5] * 784], [1, 2])}, r"got shape \(1, 784\) for 2 labels"),
        ({"w": ([[0.5] * 784], [62])}, r"labels in 0..61 and pixels in \[0, 1\]"),
        ({"w": ([[255] * 784], [6])}, r"labels in 0..61 and pixels in \[0, 1\]"),
        ({"w": ([[0.5] * 784, [1]], [6, 6])}, r"must have images of 784 numbers"),
        ({"w": ([], [])}, r"got shape \(0,\) for 0 labels"),
        ({}, r"must hold at least one user"),
    ],
)
def test_femnist_is_checked(empty, users, sentence):
    for part in ("train", "test"):
        write_leaf(empty / "femnist" / part / "a.json", users)
    with pytest.raises(DataError, match=sentence):
        load("femnist", empty)


def test_femnist_missing_or_not_json(empty):
    with pytest.raises(DataError, match=r"run LEAF's data/femnist/preprocess.sh and put"):
        load("femnist", empty)
    for part in ("train", "test"):
        (empty / part).mkdir()
        (empty / part / "a.json").write_text('{"users": ["w"]}')
    with pytest.raises(DataError, match=r"must be a LEAF json file with 'users' and 'user_data'"):
        load("femnist", empty)
    (empty / "train/a.json").write_text('{"users": ["w"')
    with pytest.raises(DataError, match=r"must be a LEAF json file"):
        femnist.femnist(empty)


def test_sst2_words(empty, monkeypatch):
    monkeypatch.setitem(SOURCES, "sst2", replace(SOURCES["sst2"], checksums={}))
    (empty / "SST-2").mkdir()
    (empty / "SST-2/train.tsv").write_text("sentence\tlabel\nA good good film \t1\nbad film\t0\n")
    (empty / "SST-2/dev.tsv").write_text("sentence\tlabel\na dull film\t0\n")
    data = load("sst2", empty, max_tokens=3)
    assert data.words == ("<pad>", "<unk>", "film", "good", "a", "bad")
    assert data.x["ids"].tolist() == [[4, 3, 3], [5, 2, 0]]
    assert data.x["mask"].tolist() == [[True] * 3, [True, True, False]]
    assert data.test[0]["ids"].tolist() == [[4, 1, 2]]
    assert load("sst2", empty, min_count=2).words == ("<pad>", "<unk>", "film", "good")
    with pytest.raises(ArgumentError, match=r"sst2\(max_tokens=...\) must be an int >= 1"):
        load("sst2", empty, max_tokens=0)


def write_plays(folder, monkeypatch, lines):
    source = replace(SOURCES["shakespeare"], checksums={})
    monkeypatch.setitem(SOURCES, "shakespeare", source)
    head = (
        "SONNETS\n\nby William Shakespeare\n\n  NOT. a role\n\nPLAY\n\nby William Shakespeare\n\n"
    )
    (folder / "raw_data.txt").write_text(head + lines)


def test_shakespeare_sequences(empty, monkeypatch):
    text = "".join(chr(97 + i % 26) for i in range(300))
    speech = f"  ANN. {text[:100]}\n    {text[100:]}\nEnter BOB\n  Bob. Short~.\n"
    write_plays(empty, monkeypatch, speech)
    said = text[:100] + " " + text[100:]
    data = load("shakespeare", empty, stride=7, test_fraction=0.4)
    assert data.owners == ("PLAY: ANN",)  # BOB says too little
    assert len(data.words) == data.classes == 80
    cut = 301 - 120
    assert len(data.y) == len(range(0, cut - 80, 7))
    assert len(data.test[1]) == len(range(0, 120 - 80, 7))
    for k in (0, 3):
        assert "".join(data.words[i] for i in data.x[k]) == said[7 * k : 7 * k + 80]
        assert data.words[data.y[k]] == said[7 * k + 80]
    assert "".join(data.words[i] for i in data.test[0][0]) == said[cut : cut + 80]
    assert data.test_owner.tolist() == [0] * len(data.test[1])
    assert load("shakespeare", empty, test_fraction=0).test is None


def test_shakespeare_sentences(empty, monkeypatch):
    write_plays(empty, monkeypatch, "  ANN. Short.\n  BOB. Short.\n")
    with pytest.raises(ArgumentError, match=r"stride=...\) must be an int >= 1, got 0"):
        load("shakespeare", empty, stride=0)
    with pytest.raises(ArgumentError, match=r"test_fraction=...\) must be a number in \[0, 1\)"):
        load("shakespeare", empty, test_fraction=1)


def test_real_fashion_mnist():
    data = real("fashion-mnist")
    assert data.x.shape == (60_000, 1, 28, 28)
    assert data.y.bincount().tolist() == [6000] * 10
    assert data.test[1].bincount().tolist() == [1000] * 10
    assert (float(data.x.min()), float(data.x.max())) == (0.0, 1.0)


def test_real_mnist_writers():
    data = real("mnist-writers")
    assert data.x.shape == (23_409, 1, 28, 28)
    counts = data.y.bincount()
    assert (len(counts), int(counts.min()), int(counts.max())) == (10, 2161, 2575)
    assert data.test[1].bincount().tolist() == [200] * 10
    fed = data.split(ByOwner())
    assert (fed.clients, int(fed.sizes.min()), int(fed.sizes.max())) == (200, 100, 130)
    assert fed.test_owner is None
    assert data.split(ByOwner(), clients=20).clients == 20


def test_real_cifar10_subset():
    data = real("cifar10-subset")
    assert data.x.shape == (5000, 3, 32, 32)
    assert data.y.bincount().tolist() == [500] * 10
    assert data.test[1].bincount().tolist() == [100] * 10
    assert data.x.mean((0, 2, 3)).abs().max() < 0.05  # normalised by the whole set's mean
    assert (data.x.std((0, 2, 3)) - 1).abs().max() < 0.05


def test_real_a9a():
    data = real("a9a")
    assert data.x.shape == (32_561, 123)
    assert data.y.bincount().tolist() == [24_720, 7_841]
    assert data.test[1].bincount().tolist() == [12_435, 3_846]
    assert set(data.x.unique().tolist()) == {0.0, 1.0}


def test_real_sst2():
    data = real("sst2")
    assert data.x["ids"].shape == data.x["mask"].shape == (67_349, 64)
    assert data.y.bincount().tolist() == [29_780, 37_569]
    assert data.test[1].bincount().tolist() == [428, 444]
    assert int(data.x["ids"].max()) == len(data.words) - 1
    assert bool(data.x["mask"].any(1).all())


def test_real_shakespeare():
    data = real("shakespeare")
    assert len(data.owners) == 1145
    assert len({name.split(": ")[0] for name in data.owners}) == 36
    assert data.x.shape == (len(data.y), 80)
    assert 40_000 < len(data.y) < 45_000
    assert int(data.x.max()) < 80
    assert data.split(ByOwner(min_samples=3), clients=100).clients == 100


def test_a_dataset_prints_on_one_line():
    expected = "Dataset('digits', 1438 samples, 10 classes, 359 test samples)"
    assert repr(load("digits")) == expected
