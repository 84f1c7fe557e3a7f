"""A mode in which vmap batches convolutions, group normalisation and pools efficiently.

vmap turns a convolution with m sets of weights into one convolution with m groups, which libraries
run slowly. Inside `BatchedOpsMode`, every module that calls conv1d or conv2d gets batched matrix
products instead (`gpu.convolution` on a GPU, `cpu.convolution` when compiled for a CPU). Grouped
convolutions stay as they are. Group normalisation (`group_norm`) and, on request, max pools
(`pool`) are replaced by versions that work in the memory order of those convolutions.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..conv2d import ConvGeometry, as_pair, per_axis, plain_windows
from ..cpu import convolution as cpu_convolution
from ..gpu import convolution as gpu_convolution
from . import pool
from .group_norm import group_norm

_CONV_AXES = {torch.conv1d: 1, torch.conv2d: 2}
_GROUP_NORMS = {F.group_norm, torch.group_norm}
_MAX_POOLS = {F.max_pool2d, torch.max_pool2d}

MAX_WINDOW = 9  # pixels of a pool's window that are compared one by one


class BatchedOpsMode(TorchFunctionMode):
    """Replace convolutions, group normalisation and pools by versions made for batched clients.

    Args:
        samples_last: Whether samples are last in memory, as on a CPU; else channels are.
        pools: Whether to replace max pools too; only useful with the compiler.
    """

    def __init__(self, samples_last: bool = False, pools: bool = False) -> None:
        super().__init__()
        self._samples_last, self._pools = samples_last, pools

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace these functions where a version for their arguments exists; call all others."""
        named, found = kwargs or {}, None
        if func in _GROUP_NORMS:
            found = group_norm(*args, **named)
        elif func in _CONV_AXES:
            found = _convolve(self._samples_last, _CONV_AXES[func], *args, **named)
        elif func in _MAX_POOLS and self._pools:
            found = _max_pool(self._samples_last, *args, **named)
        return func(*args, **named) if found is None else found


def _max_pool(samples_last: bool, input: Tensor, *args: Any, **named: Any) -> Tensor | None:
    kernel = plain_windows(input, *args, **named)
    if kernel is None or kernel[0] * kernel[1] > MAX_WINDOW:
        return None
    return pool.max_pool(input, kernel, pool.SAMPLES if samples_last else pool.CHANNELS)


def _convolve(
    samples_last: bool,
    axes: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    stride, dilation = per_axis(stride, axes), per_axis(dilation, axes)
    if isinstance(padding, str):
        padding = _named_padding(padding, weight.shape[2:], dilation)
    if groups != 1 or padding is None or input.ndim != axes + 2:
        return None
    padding = per_axis(padding, axes)
    kind = input.device.type
    if torch.is_autocast_enabled(kind):
        low = torch.get_autocast_dtype(kind)
        input, weight = input.to(low), weight.to(low)
    if axes == 1:  # an image one pixel high
        input, weight = input.unsqueeze(2), weight.unsqueeze(2)
        stride, padding, dilation = (1, *stride), (0, *padding), (1, *dilation)
    geometry: ConvGeometry = (as_pair(stride), as_pair(padding), as_pair(dilation))
    if samples_last:
        b = weight.new_zeros(weight.shape[0]) if bias is None else bias.to(weight.dtype)
        out = cpu_convolution.convolve(input, weight, b, geometry)
    else:
        shift = None if bias is None else bias.to(weight.dtype)
        out = gpu_convolution.convolve(input, weight, shift, geometry)
    return out.squeeze(2) if axes == 1 else out


def _named_padding(
    padding: str, kernel: torch.Size, dilation: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the padding of "valid" or "same"; None if the two sides differ."""
    if padding == "valid":
        return (0,) * len(kernel)
    total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    return None if any(n % 2 for n in total) else tuple(n // 2 for n in total)
