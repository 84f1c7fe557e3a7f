"""Bag-of-words text classifier."""

from torch import Tensor, nn

from ...core.errors import ArgumentError
from . import _shapes


class Text(nn.Module):
    """Mean of word embeddings, then one dense layer (fastText; Joulin et al., EACL 2017).

    vocab x width + (width + 1) x classes parameters: 640,130 for SST-2 with the defaults. Takes the
    batch as a dict, {"ids": int64 (B, length), "mask": (B, length)}: tokens whose mask is 0 are
    padding and do not count.

    Args:
        shape: (length,), the tokens of one sample; any length gives the same model.
        classes: Number of classes, >= 2.
        vocab: Number of tokens; ids are 0 .. vocab-1.
        width: Width of the embedding.
    """

    def __init__(
        self, shape: tuple[int, ...], classes: int, vocab: int = 10_000, width: int = 64
    ) -> None:
        super().__init__()
        _shapes.sequence_length("Text", shape)
        _shapes.check_sizes("Text", vocab=vocab, width=width)
        self.embed = nn.Embedding(vocab, width)
        self.head = nn.Linear(width, _shapes.check_classes("Text", classes))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the logits: (B, length) twice -> (B, classes)."""
        if mask.shape != ids.shape:
            raise ArgumentError(
                f"Text takes a mask of the ids' shape {tuple(ids.shape)!r}, "
                f"got {tuple(mask.shape)!r}."
            )
        words = self.embed(_shapes.check_tokens("Text", ids))  # (B, length, width)
        keep = mask.to(words.dtype).unsqueeze(-1)
        mean = (words * keep).sum(dim=1) / keep.sum(dim=1).clamp(min=1)
        logits: Tensor = self.head(mean)
        return logits
