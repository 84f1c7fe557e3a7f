"""Networks for text: a bag of words, and character models with recurrent layers."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from ..recurrent import read_sequence
from . import _shapes


class Text(nn.Module):
    """Mean of word embeddings, then one dense layer (fastText; Joulin et al., EACL 2017).

    vocab x width + (width + 1) x classes parameters: 640,130 for SST-2 with the defaults. Takes the
    batch as a dict, {"ids": int64 (B, length), "mask": (B, length)}: tokens whose mask is 0 are
    padding and do not count.

    Args:
        shape: (length,), the tokens of one sample; any length gives the same model.
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
        words = self.embed(_shapes.check_tokens("Text", ids, mask))  # (B, length, width)
        keep = mask.to(words.dtype).unsqueeze(-1)
        mean = (words * keep).sum(dim=1) / keep.sum(dim=1).clamp(min=1)
        logits: Tensor = self.head(mean)
        return logits


class _Characters(nn.Module, ABC):
    """An embedding, recurrent layers, and a dense layer that reads their last output."""

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        vocab: int | None = None,
        embedding: int = 256,
        hidden: int = 256,
        layers: int = 2,
    ) -> None:
        super().__init__()
        self._name = type(self).__name__
        _shapes.sequence_length(self._name, shape)
        _shapes.check_classes(self._name, classes)
        vocab = classes if vocab is None else vocab
        sizes = {"vocab": vocab, "embedding": embedding, "hidden": hidden, "layers": layers}
        _shapes.check_sizes(self._name, **sizes)
        self.embed = nn.Embedding(vocab, embedding)
        self._add_layers(embedding, hidden, layers)
        self.head = nn.Linear(hidden, classes)

    @abstractmethod
    def _add_layers(self, inputs: int, hidden: int, layers: int) -> None:
        """Create the recurrent layers under the network's own name for them."""

    def _read(self, ids: Tensor, layers: nn.LSTM | nn.GRU) -> Tensor:
        u = self.embed(_shapes.check_tokens(self._name, ids))
        logits: Tensor = self.head(read_sequence(layers, u)[:, -1])
        return logits


class Lstm(_Characters):
    """Predict the next character from the ones before it (P1 and P3, Shakespeare).

    Two layers of nn.LSTM (Hochreiter & Schmidhuber 1997, with forget gates). P1's table prints
    1,052,672 parameters for the LSTM. That is exactly two layers of
    4 x 256 x (256 + 256) + 2 x 4 x 256 = 526,336, i.e. both layers read 256 numbers, so the
    embedding is 256 wide: the default here, 1,093,712 parameters in all for 80 characters.
    With LEAF's embedding of 8 the two layers have 798,720 (272,384 + 526,336) and the whole model
    819,920; with one bias vector per layer, 796,672: neither is the printed number.

    Args:
        shape: (length,), the characters of one sample; 80 in LEAF.
        classes: Number of characters to predict, >= 2; 80 in LEAF.
        vocab: Number of characters read, by default `classes`.
        embedding: Width of the embedding; 8 in LEAF.
        hidden: Width of each layer.
        layers: Number of layers.
    """

    def _add_layers(self, inputs: int, hidden: int, layers: int) -> None:
        self.lstm = nn.LSTM(inputs, hidden, layers, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of the next character: int64 (B, length) -> (B, classes)."""
        return self._read(ids, self.lstm)


class Gru(_Characters):
    """Predict the next character as `Lstm` does, with layers of nn.GRU (Cho et al., EMNLP 2014).

    830,544 parameters for 80 characters.

    Args:
        shape: (length,), the characters of one sample.
        classes: Number of characters to predict, >= 2.
        vocab: Number of characters read, by default `classes`.
        embedding: Width of the embedding.
        hidden: Width of each layer.
        layers: Number of layers.
    """

    def _add_layers(self, inputs: int, hidden: int, layers: int) -> None:
        self.gru = nn.GRU(inputs, hidden, layers, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of the next character: int64 (B, length) -> (B, classes)."""
        return self._read(ids, self.gru)
