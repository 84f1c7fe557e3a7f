"""What a study is told: methods in words, labels as folders, seeds."""

import pytest

import tunefree as tf
from tunefree.study import candidates


def test_methods_in_words():
    found = candidates.parse_candidate("fedavg:lr=0.3:wire=ef+topk:0.05:weights=samples")
    assert (found.name, found.texts) == (
        "fedavg",
        ("lr=0.3", "wire=ef+topk:0.05", "weights=samples"),
    )
    assert found.method == tf.methods.get("fedavg", lr=0.3, wire="ef+topk:0.05", weights="samples")
    assert not found.is_tuned
    tuned = candidates.parse_candidate("fedprox:mu=0.5:tuned")
    assert (tuned.is_tuned, tuned.settings) == (True, {"mu": 0.5})


BAD = {
    "fedagv": "Unknown method 'fedagv'. Did you mean 'fedavg'?",
    "fedavg:lrr=1": "Unknown argument of fedavg 'lrr'. Did you mean 'lr'?",
    "fedavg:lr=x": "--set lr=x must be a number.",
    "fedavg:lr=-1": "must be a finite number > 0, got -1.0",
    "fedavg:nonsense": "Unknown method 'fedavg:nonsense'",
}


@pytest.mark.parametrize("word", BAD)
def test_bad_words(word):
    with pytest.raises(tf.TunefreeError) as error:
        candidates.parse_candidates([word])
    assert BAD[word] in str(error.value)


def test_labels_are_told_apart():
    for given in (["auto", "auto"], {"A": "auto", "a": "fedavg"}):
        with pytest.raises(tf.TunefreeError, match="must tell its methods apart"):
            candidates.parse_candidates(given)
    for given in ("auto", [], {}, None, [3]):
        with pytest.raises(tf.TunefreeError, match=r"compare\(methods=...\) must"):
            candidates.parse_candidates(given)
    assert [e.label for e in candidates.parse_candidates(["auto", tf.methods.get("fedavg")])] == [
        "auto",
        "fedavg",
    ]


LABELS = [
    "fedavg", "fedavg:lr=0.1", "fedavg,lr=0.1", "a/b", "a-b", "a b", "..", ".", "../x", "", "~",
    "é", "tuning", "a" * 300, "a" * 299 + "b", "<script>", "x\ny", "-rf", "con|x", "a.",
]  # fmt: skip


def test_folders_are_safe_and_different(tmp_path):
    places = [candidates.folder_name(label) for label in LABELS]
    assert len({p.lower() for p in places}) == len(LABELS)
    assert places[:2] == ["fedavg", "fedavg,lr=0.1"]
    assert "tuning" not in places
    for place in places:
        (tmp_path / place).mkdir()
        assert (tmp_path / place).parent.resolve() == tmp_path.resolve()
        assert place not in (".", "..")
        assert len(place) < 100
        assert place.isascii()
        assert not place.startswith(("-", "."))


def test_seeds():
    assert candidates.make_seeds(3) == [0, 1, 2]
    assert candidates.make_seeds([5, 2]) == [5, 2]
    assert candidates.parse_seeds("3") == 3
    assert candidates.parse_seeds("0, 4,7") == [0, 4, 7]
    assert candidates.parse_seeds("4,") == [4]
    for bad in (0, -1, 1.5, True, [], [1, 1], [-1], "3"):
        with pytest.raises(tf.TunefreeError, match=r"compare\(seeds=...\) must be"):
            candidates.make_seeds(bad)
    with pytest.raises(tf.TunefreeError, match="--seeds must be"):
        candidates.parse_seeds("many")
