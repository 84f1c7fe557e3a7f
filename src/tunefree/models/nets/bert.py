"""BERT: a transformer encoder for text, with attention in plain operations."""

import torch
from torch import Tensor, nn

from ...core.errors import ArgumentError, check_in_range
from . import _shapes


class _Attention(nn.Module):
    """Multi-head self-attention over the tokens that are not masked; drops attention weights."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        b, t, width = x.shape
        q, k, v = (
            part(x).reshape(b, t, self.heads, -1).transpose(1, 2)  # (B, heads, t, width / heads)
            for part in (self.query, self.key, self.value)
        )
        scores = (q * (width // self.heads) ** -0.5) @ k.transpose(-1, -2) + bias
        mixed: Tensor = self.dropout(scores.softmax(dim=-1)) @ v
        return mixed.transpose(1, 2).reshape(b, t, width)


class _Output(nn.Module):
    """Dense layer, dropout, residual connection, normalisation: norm(skip + dropout(dense(x)))."""

    def __init__(self, inside: int, width: int, dropout: float) -> None:
        super().__init__()
        self.dense = nn.Linear(inside, width)
        self.LayerNorm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        out: Tensor = self.LayerNorm(skip + self.dropout(self.dense(x)))
        return out


class _Layer(nn.Module):
    """One post-norm layer: attention, then two dense layers with GELU."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        attention, output = _Attention(width, heads, dropout), _Output(width, width, dropout)
        self.attention = nn.ModuleDict({"self": attention, "output": output})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, hidden)})
        self.output = _Output(hidden, width, dropout)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = self.attention["output"](self.attention["self"](x, bias), x)
        inner = nn.functional.gelu(self.intermediate["dense"](x))
        out: Tensor = self.output(inner, x)
        return out


class _Embeddings(nn.Module):
    """Sum of the embeddings of word, position and segment, normalised: (B, length, width)."""

    def __init__(self, vocab: int, width: int, positions: int, types: int, dropout: float) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab, width)
        self.position_embeddings = nn.Embedding(positions, width)
        self.token_type_embeddings = nn.Embedding(types, width)
        self.LayerNorm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Tensor) -> Tensor:
        place = self.position_embeddings.weight[: ids.shape[1]]
        x = self.word_embeddings(ids) + place + self.token_type_embeddings.weight[0]
        out: Tensor = self.dropout(self.LayerNorm(x))
        return out


class _Encoder(nn.Module):
    """Embeddings, layers, and a pooler that reads the first token: (B, width)."""

    def __init__(self, embeddings: _Embeddings, layers: list[_Layer], width: int) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(layers)})
        self.pooler = nn.ModuleDict({"dense": nn.Linear(width, width)})

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embeddings(ids)
        bias = torch.zeros_like(mask, dtype=x.dtype)
        bias = bias.masked_fill(mask == 0, torch.finfo(x.dtype).min)[:, None, None, :]
        for layer in self.encoder["layer"].children():
            x = layer(x, bias)
        return torch.tanh(self.pooler["dense"](x[:, 0]))


class Bert(nn.Module):
    """BERT for classification (Devlin et al., NAACL 2019, arXiv:1810.04805), randomly initialised.

    109,483,778 parameters with the defaults and two classes, as BERT base with 30,522 word pieces.
    Takes the batch as `Text` does: {"ids": int64 (B, length), "mask": (B, length)}; tokens whose
    mask is 0 are padding. The classifier reads the first token ([CLS] if the data has it). All
    tokens belong to one segment. Names and shapes of the parameters are those of published
    checkpoints (`bert.encoder.layer.0.attention.self.query.weight`, ...), so that
    `load_state_dict` takes them. Attention is plain products and a softmax, as in `ViT`.

    Args:
        shape: (length,), the tokens of one sample, at most `positions`; any such length gives the
            same model.
        vocab: Number of tokens; ids are 0 .. vocab-1.
        width: Features per token.
        layers: Number of layers.
        heads: Attention heads; must divide `width`.
        hidden: Width between the two dense layers of each layer.
        positions: Maximum number of tokens of a sample.
        types: Number of segment types; only the first is used.
        dropout: Probability of dropping a unit, in [0, 1).
        freeze_embeddings: Whether the embeddings are neither trained nor sent; 85,646,594 of the
            parameters are left then.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        vocab: int = 30_522,
        width: int = 768,
        layers: int = 12,
        heads: int = 12,
        hidden: int = 3072,
        positions: int = 512,
        types: int = 2,
        dropout: float = 0.1,
        freeze_embeddings: bool = False,
    ) -> None:
        super().__init__()
        sizes = {"vocab": vocab, "width": width, "layers": layers, "heads": heads}
        sizes |= {"hidden": hidden, "positions": positions, "types": types}
        _shapes.check_sizes("Bert", **sizes)
        check_in_range("Bert", "dropout", dropout, 0, 1)
        if width % heads:
            raise ArgumentError(f"Bert(heads=...) must divide the width {width}, got {heads!r}.")
        if _shapes.sequence_length("Bert", shape) > positions:
            least = f"at least the samples' length {shape[0]}"
            raise ArgumentError(f"Bert(positions=...) must be {least}, got {positions!r}.")
        embeddings = _Embeddings(vocab, width, positions, types, dropout)
        embeddings.requires_grad_(not freeze_embeddings)
        stack = [_Layer(width, heads, hidden, dropout) for _ in range(layers)]
        self.bert = _Encoder(embeddings, stack, width)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(width, _shapes.check_classes("Bert", classes))
        self.apply(_initialise)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the logits: (B, length) twice -> (B, classes)."""
        first = self.bert(_shapes.check_tokens("Bert", ids, mask), mask)
        logits: Tensor = self.classifier(self.dropout(first))
        return logits


def _initialise(module: nn.Module) -> None:
    """Draw weights from N(0, 0.02^2), as BERT does; set biases to zero."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
