"""Dropout whose masks are a function of a key and a position, not of a generator's state.

Srivastava et al., JMLR 2014. With u the random 64 bits of (key, layer, call, position):

    out = x keep / (1 - p),  keep = 1 where u >= p 2^64,  else 0

Differences from nn.Dropout: only the source of the bits. A client's mask therefore does not depend
on the other clients of its chunk, on the device, or on the number of trials of a line search.

Layers are replaced by `with_counter_dropout`. Models of other libraries also call F.dropout and
F.scaled_dot_product_attention in their forward pass, and PyTorch's own layers have dropout inside,
where there is no module to replace. Inside `CounterDropoutMode` such calls become

    dropout:    counter-based masks, as `CounterDropout` draws them
    attention:  dropout(softmax(q k^T scale + bias)) v, in plain products; 0 where all is masked
    nn.MultiheadAttention: its own function, with these two
    nn.LSTM, nn.GRU, nn.RNN: `recurrent.run_layers`, where clients are batched or dropout is on
    masks of transformers: it omits a padding mask that is all ones, and reads its values to know;
                where clients are batched it is told that there is padding, and applies the mask

which have a batching rule on every device and can be repeated.
"""

import copy
import sys
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..core.errors import ArgumentError
from ..core.random import mix, stream
from ..core.types import Inputs, list_tensors
from .recurrent import CELLS, is_batched, is_plain, quiet_weights, run_layers

_FEATURES = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_REFUSED = (nn.AlphaDropout, nn.FeatureAlphaDropout)
_MASKS = ("transformers.masking_utils", "transformers.modeling_attn_mask_utils")


class CounterDropout(nn.Module):
    """Dropout with counter-based masks; the identity in evaluation mode.

    The buffer `key` (int64, scalar, not saved) determines the mask: pass a new one per seed, round,
    client and step through torch.func.functional_call. Under vmap it is one scalar per client. A
    layer that is called several times in a forward pass draws a new mask in each call.

    Args:
        p: Probability of dropping a unit, in [0, 1].
        layer: Index of this layer in its model; layers with the same key draw different masks.
        features: Whether to drop whole channels (the second axis) instead of single units.
    """

    key: Tensor

    def __init__(self, p: float, layer: int = 0, features: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ArgumentError(f"CounterDropout(p=...) must be between 0 and 1, got {p!r}.")
        self.p, self.layer, self.features = float(p), layer, features
        self.calls = 0  # in this forward pass; a hook of `with_counter_dropout` resets it
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with dropped units set to zero and the others scaled by 1 / (1 - p)."""
        if not self.training or self.p == 0:
            return x
        call, self.calls = self.calls, self.calls + 1
        if self.p == 1:
            return torch.zeros_like(x)
        shape = x.shape
        if self.features:
            shape = torch.Size([*x.shape[:2], *(1 for _ in x.shape[2:])])
        position = torch.arange(shape.numel(), device=x.device).reshape(shape)
        draws = stream(mix(self.key ^ (self.layer + (call << 32))), position)
        keep = draws >= int(self.p * 2**64) - 2**63  # draws are signed: the lowest is -2^63
        exact = torch.promote_types(x.dtype, torch.float32)
        return (x * (keep.to(exact) / (1 - self.p))).to(x.dtype)

    def extra_repr(self) -> str:
        """Return the arguments, for printing."""
        return f"p={self.p}, layer={self.layer}, features={self.features}"


class NoDropout(nn.Identity):
    """Dropout with p = 0; some models read the `p` of their layers."""

    p = 0.0


def with_counter_dropout(module: nn.Module) -> tuple[nn.Module, list[str]]:
    """Return a copy with counter-based dropout, and the names of its key buffers.

    Every nn.Dropout, Dropout1d, Dropout2d and Dropout3d with p > 0 is replaced by a
    `CounterDropout`, with p = 0 by the identity. Channel-wise dropout expects the batch on the
    first axis and the channels on the second. The given model is not changed.

    >>> net, keys = with_counter_dropout(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)))
    >>> keys
    ['1.key']
    """
    module = copy.deepcopy(module)
    done: dict[nn.Module, nn.Module] = {}
    for path, layer in module.named_modules():
        if isinstance(layer, _REFUSED):
            place = f"layer {path!r}" if path else "the model itself"
            raise ArgumentError(
                f"Cannot train this model: {place} is a {type(layer).__name__}, which has no "
                "counter-based form; use nn.Dropout."
            )
        if isinstance(layer, (nn.Dropout, *_FEATURES)):
            drop = CounterDropout(layer.p, len(done), isinstance(layer, _FEATURES))
            done[layer] = (drop if layer.p > 0 else NoDropout()).train(layer.training)
    if module in done:
        module = done[module]
    for parent in list(module.modules()):
        for name, child in parent._modules.items():
            if child in done:
                parent._modules[name] = done[child]
    layers = {
        name: layer for name, layer in module.named_modules() if isinstance(layer, CounterDropout)
    }
    if layers:
        module.register_forward_pre_hook(_reset_calls)
    return module, [f"{name}.key" if name else "key" for name in layers]


def _reset_calls(module: nn.Module, args: Any) -> None:
    for layer in module.modules():
        if isinstance(layer, CounterDropout):
            layer.calls = 0


def draws_random_numbers(module: nn.Module, inputs: Inputs) -> bool:
    """Return whether a forward pass in training mode draws from PyTorch's own generator.

    Runs of such a model (nn.RReLU, torch.rand) could not be repeated. Neither the model nor the
    generator is changed.

    >>> draws_random_numbers(nn.Dropout(0.5), torch.ones(2, 3))
    True
    >>> draws_random_numbers(with_counter_dropout(nn.Dropout(0.5))[0], torch.ones(2, 3))
    False
    """
    trial = copy.deepcopy(module).train()
    gpus = sorted({t.device.index for t in list_tensors(inputs) if t.device.type == "cuda"})
    with torch.random.fork_rng(devices=gpus), torch.no_grad():
        before = _generators(gpus)
        if isinstance(inputs, Tensor):
            trial(inputs)
        elif isinstance(inputs, dict):
            trial(**inputs)
        else:
            trial(*inputs)
        return any(not torch.equal(a, b) for a, b in zip(before, _generators(gpus), strict=True))


def _generators(gpus: list[int]) -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(gpu) for gpu in gpus)]


class CounterDropoutMode(TorchFunctionMode):
    """Replace dropout, attention and recurrent layers inside this context.

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
        """Replace these functions; call all others."""
        if func is F.dropout:
            return self._dropout(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention:
            return self._attention(*args, **(kwargs or {}))
        if func is F.multi_head_attention_forward:
            return self._multi_head(*args, **(kwargs or {}))
        if func in CELLS and is_plain(*args):
            return self._recurrent(func, *args)
        if func is Tensor.__bool__ and sys._getframe(1).f_globals.get("__name__") in _MASKS:
            self.used = True
            return False if is_batched() else bool(args[0])
        return func(*args, **(kwargs or {}))

    def _multi_head(self, *args: Any, **kwargs: Any) -> Any:
        """Call PyTorch's own function with the dropout and attention of this mode."""
        names = {"dropout": self._dropout, "scaled_dot_product_attention": self._attention}
        names["has_torch_function"] = lambda tensors: False  # which would come back here
        code = F.multi_head_attention_forward.__code__
        defaults = F.multi_head_attention_forward.__defaults__
        return FunctionType(code, vars(F) | names, argdefs=defaults)(*args, **kwargs)

    def _recurrent(self, func: Callable[..., Any], *args: Any) -> Any:
        dropout, train = args[5:7]
        self.used = True
        if not (train and dropout) and not is_batched():  # faster as it is
            with quiet_weights(args[0].device):
                return func(*args)
        return run_layers(CELLS[func], self._dropout, *args)

    def _dropout(
        self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0:
            return input
        self.used = True
        unit = CounterDropout(p, layer=1 << 31)  # an index that no module has
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
        elif is_causal:  # every query sees the first key
            shares = scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min).softmax(dim=-1)
        elif attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min)
            shares = scores.softmax(dim=-1).masked_fill(~attn_mask, 0.0)
        else:
            shares = (scores + attn_mask).softmax(dim=-1)
        return self._dropout(shares, dropout_p) @ value
