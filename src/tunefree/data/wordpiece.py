"""WordPiece tokenization with a given vocabulary, as BERT's uncased models use it.

Devlin et al., NAACL 2019, arXiv:1810.04805; Wu et al. 2016, arXiv:1609.08144, section 4.1.

    text   -> words: lower case, without accents; each punctuation mark and each Chinese character
              is a word of its own
    word   -> pieces: the longest prefix in the vocabulary, repeatedly; all but the first start
              with "##"; [UNK] if none is found
    sample =  [CLS] pieces [SEP] [PAD] ...

Differences from the published tokenizer: special tokens inside a text are treated as text.
"""

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.errors import DataError, check_int
from ..core.files import MAX_JSON, read_file

PAD, UNKNOWN, FIRST, LAST = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
MAX_WORD = 100  # characters; longer words are unknown
_CHINESE = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


def split_words(text: str) -> list[str]:
    """Return the lower-case words of a text without accents; punctuation marks are separate words.

    >>> split_words("It's a Café!")
    ['it', "'", 's', 'a', 'cafe', '!']
    """
    out = []
    for char in unicodedata.normalize("NFD", text.lower()):
        kind = unicodedata.category(char)
        if char in " \t\n\r" or kind == "Zs":
            out.append(" ")
        elif kind in ("Mn", "Cc", "Cf") or char == "\ufffd":
            continue
        elif kind.startswith("P") or (char.isascii() and not char.isalnum()) or _is_chinese(char):
            out.append(f" {char} ")
        else:
            out.append(char)
    return "".join(out).split()


def pad_tokens(rows: Sequence[Sequence[int]], length: int, padding: int) -> dict[str, Tensor]:
    """Return `ids` and `mask`, (n, length) each, of rows of at most `length` token ids."""
    ids = np.full((len(rows), length), padding, np.int64)
    mask = np.zeros(ids.shape, bool)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = True
    return {"ids": torch.from_numpy(ids), "mask": torch.from_numpy(mask)}


def _is_chinese(char: str) -> bool:
    return any(low <= ord(char) <= high for low, high in _CHINESE)


class WordPiece:
    """A tokenizer that splits texts into the pieces of a vocabulary.

    Args:
        pieces: The vocabulary; the index of a piece is its id.

    >>> tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "film", "##s", "!"])
    >>> tokenizer.split("Films!")
    ['film', '##s', '!']
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = tuple(pieces)
        self._ids = {piece: i for i, piece in enumerate(self.pieces)}
        missing = [p for p in (PAD, UNKNOWN, FIRST, LAST) if p not in self._ids]
        if missing:
            raise DataError(
                f"A WordPiece vocabulary must hold {', '.join(missing)}; use the vocab.txt of an "
                "uncased BERT."
            )
        self._split_chunk = lru_cache(maxsize=1 << 16)(self._split_uncached)  # chunks repeat

    @classmethod
    def read(cls, path: str | Path) -> "WordPiece":
        """Return the tokenizer of a vocabulary file, usually `vocab.txt`: one piece per line."""
        try:
            lines = read_file(path, MAX_JSON, follow=True).decode().split("\n")
        except (OSError, ValueError) as error:  # not UTF-8, or not a file name
            raise DataError(f"{path} must be a vocabulary in UTF-8 ({error}).") from error
        return cls([line.rstrip("\r") for line in (lines if lines[-1] else lines[:-1])])

    def split(self, text: str) -> list[str]:
        """Return the pieces of a text."""
        return [piece for chunk in text.split(" ") for piece in self._split_chunk(chunk)]

    def encode(self, texts: Sequence[str], length: int) -> dict[str, Tensor]:
        """Return `ids` and `mask`, (n, length) each; longer texts are truncated before [SEP]."""
        check_int("WordPiece.encode", "length", length, 2)
        rows = ([FIRST, *self.split(text)[: length - 2], LAST] for text in texts)
        ids = [[self._ids[piece] for piece in row] for row in rows]
        return pad_tokens(ids, length, self._ids[PAD])

    def _split_uncached(self, text: str) -> tuple[str, ...]:
        return tuple(piece for word in split_words(text) for piece in self._split_word(word))

    def _split_word(self, word: str) -> tuple[str, ...]:
        if len(word) > MAX_WORD:
            return (UNKNOWN,)
        out: list[str] = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(len(word), start, -1):
                if prefix + word[start:end] in self._ids:
                    break
            else:
                return (UNKNOWN,)
            out.append(prefix + word[start:end])
            start = end
        return tuple(out)
