"""SST-2: phrases of film reviews with negative or positive sentiment, as distributed by GLUE."""

from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.errors import DataError, check_int
from .dataset import Dataset
from .sources import DataFolder, DatasetFile, DatasetSource, read_files
from .wordpiece import WordPiece

SST2 = DatasetSource(
    name="sst2",
    folders=("SST-2", "sst2"),
    url="https://dl.fbaipublicfiles.com/glue/data/SST-2.zip",
    archive="SST-2.zip",
    files=(
        DatasetFile(
            "train.tsv",
            {
                "": "sha256:48eac26399f8456935f81dd9e3a745c1430adb6c62e233ccfe22db4a0d15d1d1",
                ".xz": "sha256:d9ce70a15cd9544d2a035fa9639d404314f0c7d95fa4a737ae6c2b62162fd402",
            },
            member="SST-2/train.tsv",
        ),
        DatasetFile(
            "dev.tsv",
            {
                "": "sha256:54a9c12c77e402fc14d6a66a506f24d999f596b0176eb777c972cccc2f9cc4b0",
                ".xz": "sha256:10259db6f6ebc89c4872544e51d2406e30362b6a231e535f30e801a1ce7ef072",
            },
            member="SST-2/dev.tsv",
        ),
    ),
)
LICENCE = "No explicit licence, research use; Socher et al. 2013, Wang et al. 2019 (GLUE)."
PADDING, UNKNOWN = 0, 1


def sst2(
    folder: DataFolder = None,
    *,
    max_tokens: int = 64,
    min_count: int = 1,
    vocab: str | Path | None = None,
) -> Dataset:
    """Return 67,349 training and 872 test phrases as token ids with a mask.

    The test set is GLUE's dev set. Tokens are lower-case words separated by blanks. The vocabulary
    is that of the training phrases, most frequent first; id 0 is padding and id 1 an unknown word.
    With `vocab`, phrases are tokenized into its word pieces, between [CLS] and [SEP].

    Args:
        folder: Where `SST-2/train.tsv` and `SST-2/dev.tsv` are kept.
        max_tokens: Length L of `ids` and `mask`, (n, L); longer phrases are truncated.
        min_count: Words with fewer occurrences in the training phrases become id 1.
        vocab: The `vocab.txt` of an uncased BERT, for a model that was trained with it.
    """
    for name, value in (("max_tokens", max_tokens), ("min_count", min_count)):
        check_int("sst2", name, value)
    (train, y), (dev, y_dev) = (
        parse_phrases(data, file) for file, data in read_files(SST2, folder)
    )
    if vocab is not None:
        pieces = WordPiece.read(vocab)
        x, x_dev = (pieces.encode([" ".join(p) for p in part], max_tokens) for part in (train, dev))
        note = "Tested on GLUE's dev set; word pieces of the vocabulary given."
        return Dataset(
            "sst2", x, y, (x_dev, y_dev), 2, licence=LICENCE, note=note, words=pieces.pieces
        )
    counts = Counter(word for phrase in train for word in phrase)
    kept = sorted((w for w, c in counts.items() if c >= min_count), key=lambda w: (-counts[w], w))
    words = ("<pad>", "<unk>", *kept)
    word_ids = {word: i for i, word in enumerate(words) if i > UNKNOWN}
    return Dataset(
        name="sst2",
        x=_encode(train, word_ids, max_tokens),
        y=y,
        test=(_encode(dev, word_ids, max_tokens), y_dev),
        classes=2,
        licence=LICENCE,
        note="Tested on GLUE's dev set; words between blanks, no pretrained tokenizer.",
        words=words,
    )


def parse_phrases(data: bytes, file: str) -> tuple[list[list[str]], Tensor]:
    """Return the words of each phrase and the labels from lines "phrase<tab>label".

    >>> parse_phrases(b"sentence\\tlabel\\nA good film \\t1\\n", "demo")
    ([['a', 'good', 'film']], tensor([1]))
    """
    try:
        head, *lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{file} must be UTF-8 text ({error}).") from error
    if head.rstrip("\r").split("\t") != ["sentence", "label"]:
        raise DataError(
            f"{file} must start with the heading 'sentence<tab>label', got {head[:40]!r}."
        )
    phrases, labels = [], []
    for i, line in enumerate(lines):
        if not line:
            continue
        phrase, _, label = line.rstrip("\r").rpartition("\t")
        if label not in ("0", "1") or not phrase.strip():
            raise DataError(
                f"{file} must hold lines 'phrase<tab>0' or 'phrase<tab>1', but line {i + 2} is not."
            )
        phrases.append(phrase.lower().split())
        labels.append(int(label))
    if not phrases:
        raise DataError(f"{file} must hold at least one phrase, got none.")
    return phrases, torch.tensor(labels)


def _encode(phrases: list[list[str]], word_ids: dict[str, int], length: int) -> dict[str, Tensor]:
    ids = np.full((len(phrases), length), PADDING, np.int64)
    for row, phrase in zip(ids, phrases, strict=True):
        found = [word_ids.get(word, UNKNOWN) for word in phrase[:length]]
        row[: len(found)] = found
    tokens = torch.from_numpy(ids)
    return {"ids": tokens, "mask": tokens != PADDING}
