"""GPT-2: a causal transformer that predicts the next token, with attention in plain operations."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import ArgumentError, check_in_range
from . import _shapes


class Conv1D(nn.Module):
    """A dense layer whose weight is stored as (inputs, outputs), as in GPT-2's checkpoints."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.nx, self.nf = inputs, outputs
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return x W + b."""
        return nn.functional.linear(x, self.weight.t(), self.bias)


class _Attention(nn.Module):
    """Multi-head self-attention, where each token sees itself and the tokens before it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = Conv1D(width, 3 * width)
        self.c_proj = Conv1D(width, width)
        self.attn_dropout, self.resid_dropout = nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        b, t, width = x.shape
        q, k, v = (
            part.reshape(b, t, self.heads, -1).transpose(1, 2)  # (B, heads, t, width / heads)
            for part in self.c_attn(x).split(width, dim=2)
        )
        scores = (q * (width // self.heads) ** -0.5) @ k.transpose(-1, -2) + bias
        mixed = self.attn_dropout(scores.softmax(dim=-1)) @ v
        out: Tensor = self.resid_dropout(self.c_proj(mixed.transpose(1, 2).reshape(b, t, width)))
        return out


class _Mlp(nn.Module):
    """Two dense layers with GELU in its tanh approximation."""

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(width, hidden), Conv1D(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        inner = nn.functional.gelu(self.c_fc(x), approximate="tanh")
        out: Tensor = self.dropout(self.c_proj(inner))
        return out


class _Block(nn.Module):
    """One pre-norm layer: attention, then two dense layers."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = _Attention(width, heads, dropout)
        self.mlp = _Mlp(width, hidden, dropout)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x), bias)
        x = x + self.mlp(self.ln_2(x))
        return x


class _Decoder(nn.Module):
    """Embeddings of token and position, layers, a last normalisation: (B, length, width)."""

    def __init__(
        self, vocab: int, width: int, positions: int, blocks: list[_Block], dropout: float
    ) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(positions, width)
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList(blocks)
        self.ln_f = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        t = ids.shape[1]
        x = self.drop(self.wte(ids) + self.wpe.weight[:t])
        hidden = torch.finfo(x.dtype).min  # score of a later token
        bias = torch.full((t, t), hidden, dtype=x.dtype, device=x.device).triu(1)
        for block in self.h:
            x = block(x, bias)
        out: Tensor = self.ln_f(x)
        return out


class Gpt(nn.Module):
    """GPT-2 (Radford et al. 2019), randomly initialised; predicts the next token at every position.

    124,439,808 parameters with the defaults and 50,257 classes, as GPT-2 small. The classes are the
    tokens, 0 .. classes-1: batches are int64 (B, length), outputs (B, length, classes), and targets
    the following tokens (B, length), -100 where a position does not count. Names and shapes of the
    parameters are those of published checkpoints (`transformer.h.0.attn.c_attn.weight`, stored as
    inputs x outputs, ...; `lm_head.weight` is `transformer.wte.weight`), so that `load_state_dict`
    takes them.

    Args:
        shape: (length,), the tokens of one sample, at most `positions`; any such length gives the
            same model.
        width: Features per token.
        layers: Number of layers.
        heads: Attention heads; must divide `width`.
        hidden: Width between the two dense layers of each layer; None is 4 x width.
        positions: Maximum number of tokens of a sample.
        dropout: Probability of dropping a unit, in [0, 1).
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        width: int = 768,
        layers: int = 12,
        heads: int = 12,
        hidden: int | None = None,
        positions: int = 1024,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        hidden = 4 * width if hidden is None else hidden
        sizes = {"width": width, "layers": layers, "heads": heads, "hidden": hidden}
        _shapes.check_sizes("Gpt", **sizes, positions=positions)
        check_in_range("Gpt", "dropout", dropout, 0, 1)
        if width % heads:
            raise ArgumentError(f"Gpt(heads=...) must divide the width {width}, got {heads!r}.")
        if _shapes.sequence_length("Gpt", shape) > positions:
            least = f"at least the samples' length {shape[0]}"
            raise ArgumentError(f"Gpt(positions=...) must be {least}, got {positions!r}.")
        vocab = _shapes.check_classes("Gpt", classes)
        blocks = [_Block(width, heads, hidden, dropout) for _ in range(layers)]
        self.transformer = _Decoder(vocab, width, positions, blocks, dropout)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.apply(_initialise)
        for name, weight in self.named_parameters():
            if name.endswith("c_proj.weight"):  # two of them add to the residual in every layer
                nn.init.normal_(weight, std=0.02 / (2 * layers) ** 0.5)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits: (B, length) -> (B, length, classes)."""
        logits: Tensor = self.lm_head(self.transformer(_shapes.check_tokens("Gpt", ids)))
        return logits

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load parameters, also from the published files.

        Those have no prefix `transformer.` and no `lm_head.weight`, and hold causal masks
        (`attn.bias`, `attn.masked_bias`), which are left out.
        """
        named = {n.removeprefix("transformer."): v for n, v in state_dict.items()}
        masks = (".attn.bias", ".attn.masked_bias")
        found = {
            n if n.startswith("lm_head.") else f"transformer.{n}": v
            for n, v in named.items()
            if not n.endswith(masks)
        }
        if "wte.weight" in named:
            found.setdefault("lm_head.weight", named["wte.weight"])
        return super().load_state_dict(found, strict, assign)


def _initialise(module: nn.Module) -> None:
    """Draw weights from N(0, 0.02^2), as GPT-2 does; biases are zero already."""
    if isinstance(module, nn.Linear | nn.Embedding | Conv1D):
        nn.init.normal_(module.weight, std=0.02)
