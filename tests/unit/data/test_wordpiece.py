from dataclasses import replace

import pytest
import torch

from tunefree.core.errors import ArgumentError, DataError
from tunefree.data import load
from tunefree.data.sources import SOURCES
from tunefree.data.wordpiece import WordPiece, split_words

PIECES = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", "##a", "##ff"]
PIECES += ["want", "##want", "##ed", "wa", "runn", "##ing", ",", "film", "a", "good", "##s", "!"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A good  Film", ["a", "good", "film"]),
        (
            "it's n't `` well-made ''",
            ["it", "'", "s", "n", "'", "t", *"``", "well", "-", "made", *"''"],
        ),
        ("Ça, Müller\tÉCLAIR\n", ["ca", ",", "muller", "eclair"]),
        ("3.5$ ~x_y", [*"3.5$~x_y"]),
        ("«oui» — non…", ["«", "oui", "»", "—", "non", "…"]),
        ("a\u200bb\x00c\ufffdd\u00a0e", ["abcd", "e"]),
        ("ab字cd電", ["ab", "字", "cd", "電"]),
        ("", []),
    ],
)
def test_words(text, words):
    assert split_words(text) == words


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("UNwanted,running", ["un", "##want", "##ed", ",", "runn", "##ing"]),  # of BERT's own tests
        ("unaffable", ["un", "##aff", "##able"]),  # the longest, not ##a ##ff
        ("unwantedX running", ["[UNK]", "runn", "##ing"]),
        ("want wa", ["want", "wa"]),
        ("s ##s", ["[UNK]", "[UNK]", "[UNK]", "[UNK]"]),  # neither begins a word
        ("a" * 101, ["[UNK]"]),
        ("a [SEP]", ["a", "[UNK]", "[UNK]", "[UNK]"]),
    ],
)
def test_pieces(text, pieces):
    assert WordPiece(PIECES).split(text) == pieces


def test_samples_are_framed_cut_and_padded():
    x = WordPiece(PIECES).encode(["Good films!", "a", "a a a a a a"], 6)
    assert x["ids"].tolist() == [
        [3, 19, 17, 20, 21, 4],
        [3, 18, 4, 0, 0, 0],
        [3, 18, 18, 18, 18, 4],
    ]
    assert x["mask"].sum(1).tolist() == [6, 3, 6]
    assert x["ids"].dtype == torch.int64
    with pytest.raises(ArgumentError, match=r"WordPiece.encode\(length=...\) must be .* >= 2"):
        WordPiece(PIECES).encode(["a"], 1)


def test_vocabularies_in_files(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    assert WordPiece.read(path).pieces == tuple(PIECES)
    path.write_text("[PAD]\na\n")
    with pytest.raises(DataError, match=r"must hold \[UNK\], \[CLS\], \[SEP\]; use the vocab.txt"):
        WordPiece.read(path)
    with pytest.raises(DataError, match=r"none.txt must be a vocabulary in UTF-8"):
        WordPiece.read(tmp_path / "none.txt")


def test_sst2_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setitem(SOURCES, "sst2", replace(SOURCES["sst2"], checksums={}))
    (tmp_path / "SST-2").mkdir()
    (tmp_path / "SST-2/train.tsv").write_text("sentence\tlabel\nA good , film \t1\nunwanted\t0\n")
    (tmp_path / "SST-2/dev.tsv").write_text("sentence\tlabel\ndull films !\t0\n")
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES))
    data = load("sst2", tmp_path, max_tokens=6, vocab=tmp_path / "vocab.txt")
    assert data.x["ids"].tolist() == [[3, 18, 19, 16, 17, 4], [3, 5, 11, 12, 4, 0]]
    assert data.x["mask"].tolist() == [[True] * 6, [True] * 5 + [False]]
    assert data.test[0]["ids"].tolist() == [[3, 2, 17, 20, 21, 4]]
    assert (data.y.tolist(), data.test[1].tolist()) == ([1, 0], [0])
    assert data.words == tuple(PIECES)
