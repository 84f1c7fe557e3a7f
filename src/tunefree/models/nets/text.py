"""Networks for text: a bag of words, and a character model.

The LSTM is written in plain operations, so that vmap can batch it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


class Lstm(nn.Module):
    """Predict the next character from the ones before it (P1 and P3, Shakespeare).

    Hochreiter & Schmidhuber 1997, with forget gates, in nn.LSTM's convention (gates in the order
    i, f, g, o; two bias vectors per layer; the same parameter names):

        a      = W_ih u + b_ih + W_hh h + b_hh            (4 hidden)
        c'     = sigmoid(a_f) c + sigmoid(a_i) tanh(a_g)
        h'     = sigmoid(a_o) tanh(c')

    P1's table prints 1,052,672 parameters for the LSTM. That is exactly two layers of
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
        _shapes.sequence_length("Lstm", shape)
        _shapes.check_classes("Lstm", classes)
        vocab = classes if vocab is None else vocab
        _shapes.check_sizes("Lstm", vocab=vocab, embedding=embedding, hidden=hidden, layers=layers)
        self.hidden, self.layers = hidden, layers
        self.embed = nn.Embedding(vocab, embedding)
        self.lstm = nn.Module()  # holds the parameters under nn.LSTM's names
        for k in range(layers):
            inputs = embedding if k == 0 else hidden
            for name, size in (
                (f"weight_ih_l{k}", (4 * hidden, inputs)),
                (f"weight_hh_l{k}", (4 * hidden, hidden)),
                (f"bias_ih_l{k}", (4 * hidden,)),
                (f"bias_hh_l{k}", (4 * hidden,)),
            ):
                weight = torch.empty(size).uniform_(-(hidden**-0.5), hidden**-0.5)
                self.lstm.register_parameter(name, nn.Parameter(weight))
        self.head = nn.Linear(hidden, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of the next character: int64 (B, length) -> (B, classes)."""
        u = self.embed(_shapes.check_tokens("Lstm", ids)).movedim(1, 0)  # (length, B, embedding)
        for k in range(self.layers):
            u = self._layer(u, k)
        logits: Tensor = self.head(u[-1])
        return logits

    def _layer(self, u: Tensor, k: int) -> Tensor:
        """Return one layer's outputs: (length, B, inputs) -> (length, B, hidden)."""
        w_ih, w_hh, b_ih, b_hh = (
            getattr(self.lstm, f"{name}_l{k}")
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        read = F.linear(u, w_ih, b_ih + b_hh)  # all times at once
        h = c = torch.zeros_like(read[0, :, : self.hidden])
        out = []
        for now in read.unbind(0):
            i, f, g, o = (now + F.linear(h, w_hh)).chunk(4, dim=-1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            out.append(h)
        return torch.stack(out)
