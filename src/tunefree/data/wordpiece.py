"""WordPiece: words cut into the pieces of a given vocabulary, as BERT's uncased models take them.

Devlin et al., NAACL 2019, arXiv:1810.04805; Wu et al. 2016, arXiv:1609.08144, section 4.1.

    text   -> words: lower case, without accents; punctuation and Chinese signs stand alone
    word   -> pieces: the longest that the vocabulary has, again and again; "##" begins all but
              the first; [UNK] if one cannot be found
    sample =  [CLS] pieces [SEP] [PAD] ...

Differences from the published tokenizer: special tokens inside a text are text.
"""

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.errors import DataError, check_int

PAD, UNKNOWN, FIRST, LAST = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
LONGEST = 100  # characters of a word; longer ones are unknown
_CHINESE = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case, without accents, punctuation by itself.

    >>> split_words("It's a Café!")
    ['it', "'", 's', 'a', 'cafe', '!']
    """
    out = []
    for sign in unicodedata.normalize("NFD", text.lower()):
        kind = unicodedata.category(sign)
        if sign in " \t\n\r" or kind == "Zs":
            out.append(" ")
        elif kind in ("Mn", "Cc", "Cf") or sign == "\ufffd":
            continue
        elif kind.startswith("P") or (sign.isascii() and not sign.isalnum()) or _chinese(sign):
            out.append(f" {sign} ")
        else:
            out.append(sign)
    return "".join(out).split()


def _chinese(sign: str) -> bool:
    return any(low <= ord(sign) <= high for low, high in _CHINESE)


class WordPiece:
    """A vocabulary of pieces, and the cutting of texts into them.

    Args:
        pieces: The vocabulary; a piece's place is its id.

    >>> cut = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "film", "##s", "!"])
    >>> cut.split("Films!")
    ['film', '##s', '!']
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = tuple(pieces)
        self._number = {piece: i for i, piece in enumerate(self.pieces)}
        missing = [p for p in (PAD, UNKNOWN, FIRST, LAST) if p not in self._number]
        if missing:
            raise DataError(
                f"A WordPiece vocabulary must hold {', '.join(missing)}; use the vocab.txt of an "
                "uncased BERT."
            )
        self._cut = lru_cache(maxsize=1 << 16)(self._chunk)  # texts repeat their words

    @classmethod
    def read(cls, path: str | Path) -> "WordPiece":
        """Return the vocabulary of a file with one piece a line, `vocab.txt` by custom."""
        try:
            lines = Path(path).read_text(encoding="utf-8").split("\n")
        except (OSError, ValueError) as error:  # not UTF-8, or no name of a file
            raise DataError(f"{path} must be a vocabulary in UTF-8 ({error}).") from error
        return cls([line.rstrip("\r") for line in (lines if lines[-1] else lines[:-1])])

    def split(self, text: str) -> list[str]:
        """Return the pieces of a text."""
        return [piece for chunk in text.split(" ") for piece in self._cut(chunk)]

    def encode(self, texts: Sequence[str], length: int) -> dict[str, Tensor]:
        """Return `ids` and `mask`, (n, length) each; longer texts are cut before [SEP].

        Args:
            texts: What to encode.
            length: Tokens a sample, with [CLS] and [SEP], >= 2.
        """
        check_int("WordPiece.encode", "length", length, 2)
        ids = np.full((len(texts), length), self._number[PAD], np.int64)
        mask = np.zeros((len(texts), length), bool)
        for row, kept, text in zip(ids, mask, texts, strict=True):
            found = [FIRST, *self.split(text)[: length - 2], LAST]
            row[: len(found)] = [self._number[piece] for piece in found]
            kept[: len(found)] = True
        return {"ids": torch.from_numpy(ids), "mask": torch.from_numpy(mask)}

    def _chunk(self, text: str) -> tuple[str, ...]:
        return tuple(piece for word in split_words(text) for piece in self._pieces(word))

    def _pieces(self, word: str) -> tuple[str, ...]:
        if len(word) > LONGEST:
            return (UNKNOWN,)
        out: list[str] = []
        start = 0
        while start < len(word):
            before = "##" if start else ""
            for end in range(len(word), start, -1):
                if before + word[start:end] in self._number:
                    break
            else:
                return (UNKNOWN,)
            out.append(before + word[start:end])
            start = end
        return tuple(out)
