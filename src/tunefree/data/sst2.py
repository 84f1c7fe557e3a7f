"""SST-2: phrases of film reviews with negative or positive sentiment, as distributed by GLUE."""

from collections import Counter
from pathlib import Path

import torch
from torch import Tensor

from ..core.errors import check_int
from .dataset import Dataset
from .sources import SOURCES, DataFolder, read_files
from .wordpiece import WordPiece, pad_tokens

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
    source = SOURCES["sst2"]
    (train, y), (dev, y_dev) = (parse_phrases(data) for _, data in read_files(source, folder))
    if vocab is not None:
        pieces = WordPiece.read(vocab)
        x, x_dev = (pieces.encode([" ".join(p) for p in part], max_tokens) for part in (train, dev))
        words, note = pieces.pieces, "word pieces of the vocabulary given"
    else:
        counts = Counter(word for phrase in train for word in phrase)
        kept = [word for word, count in counts.items() if count >= min_count]
        words = ("<pad>", "<unk>", *sorted(kept, key=lambda word: (-counts[word], word)))
        x, x_dev = (_encode(part, words, max_tokens) for part in (train, dev))
        note = "words between blanks, no pretrained tokenizer"
    note = f"Tested on GLUE's dev set; {note}."
    test = (x_dev, y_dev)
    return Dataset("sst2", x, y, test, 2, licence=source.licence, note=note, words=words)


def parse_phrases(data: bytes) -> tuple[list[list[str]], Tensor]:
    """Return the words of each phrase and the labels from lines "phrase<tab>label".

    >>> parse_phrases(b"sentence\\tlabel\\nA good film \\t1\\n")
    ([['a', 'good', 'film']], tensor([1]))
    """
    _, *lines = data.decode("utf-8").split("\n")
    pairs = [line.split("\t") for line in lines if line]
    labels = torch.tensor([int(label) for _, label in pairs])
    return [phrase.lower().split() for phrase, _ in pairs], labels


def _encode(phrases: list[list[str]], words: tuple[str, ...], length: int) -> dict[str, Tensor]:
    word_ids = {word: i for i, word in enumerate(words) if i > UNKNOWN}
    ids = [[word_ids.get(word, UNKNOWN) for word in phrase[:length]] for phrase in phrases]
    return pad_tokens(ids, length, PADDING)
