"""A mode that replaces functional dropout and fused attention by versions that vmap can batch.

Models of other libraries call F.dropout and F.scaled_dot_product_attention in their forward pass,
where there is no module to replace. Inside `CounterDropoutMode` such calls become

    dropout:    counter-based masks, as `dropout.CounterDropout` draws them
    attention:  dropout(softmax(q k^T scale + bias)) v, in plain products; 0 where all is masked

which have a batching rule on every device and can be repeated. Calls inside PyTorch's own functions
(F.multi_head_attention_forward) cannot be replaced.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .dropout import CounterDropout

LAYER = 1 << 31  # index of a dropout layer that no module has


class CounterDropoutMode(TorchFunctionMode):
    """Replace F.dropout and F.scaled_dot_product_attention inside this context.

    Args:
        key: Determines the masks (int64, scalar; under vmap one for each client).
    """

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self.key = key
        self.used = False  # whether any call was replaced
        self.drops = 0  # calls so far that drew a mask

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Replace the two functions; call all others."""
        if func is F.dropout:
            return self._dropout(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention:
            return self._attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _dropout(
        self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0:
            return input
        self.used = True
        unit = CounterDropout(p, LAYER)
        unit.key, unit.calls = self.key, self.drops
        self.drops += 1
        out: Tensor = unit(input)
        return input.copy_(out) if inplace else out

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        self.used = True
        if enable_gqa:
            times = query.shape[-3] // key.shape[-3]
            key, value = (t.repeat_interleave(times, dim=-3) for t in (key, value))
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        scores = (query * scale) @ key.transpose(-1, -2)  # (..., queries, keys)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        if attn_mask is None:
            shares = scores.softmax(dim=-1)
        elif attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min)
            shares = scores.softmax(dim=-1).masked_fill(~attn_mask, 0.0)
        else:
            shares = (scores + attn_mask).softmax(dim=-1)
        return self._dropout(shares, dropout_p) @ value
