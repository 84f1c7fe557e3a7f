"""The problem: a module and a loss as a function of one flat parameter vector.

    value(x; batch) = sum_j mask_j loss_j(x) / sum_j mask_j

Only parameters with `requires_grad` are in the vector; frozen ones and buffers are constants.
"""

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.nn.utils.stateless import _reparametrize_module

from ..core.errors import ArgumentError, check_known, convert_errors
from ..core.layout import Layout
from ..core.types import Inputs, Vector, list_tensors, map_inputs
from .dropout import CounterDropoutMode, draws_random_numbers, with_counter_dropout
from .norms import refuse_batchnorm
from .recurrent import quiet_weights
from .scaling import fold_scaling, fold_targets, restore_targets, standardise

Loss = Callable[[Tensor, Tensor], Tensor]
Precision = Literal["auto", "fp32", "tf32", "bf16"]
WEIGHT = "sample_weight"  # name of the samples' weights in a dict batch


IGNORED = -100  # target of a position of a sequence that does not count, as in torch


def _mse(output: Tensor, target: Tensor) -> Tensor:
    return (_like(output, target) - target.to(output.dtype)).square()


def _bce(output: Tensor, target: Tensor) -> Tensor:
    wanted = target.to(output.dtype)
    return nn.functional.binary_cross_entropy_with_logits(
        _like(output, target), wanted, reduction="none"
    )


def _cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    if class_axis(output, target) is output:
        each = nn.functional.cross_entropy(output, target, reduction="none")
    else:  # as rows: other axes would be copied to put the classes, which may be many, before them
        flat = output.flatten(0, -2), target.flatten()
        each = nn.functional.cross_entropy(*flat, reduction="none").reshape(target.shape)
    if target.ndim == 1:
        return each
    counts = (target != IGNORED).flatten(1).sum(1).clamp(min=1)
    return each.flatten(1).sum(1) / counts


LOSSES: dict[str, Loss] = {"cross_entropy": _cross_entropy, "bce": _bce, "mse": _mse}


def _like(output: Tensor, target: Tensor) -> Tensor:
    if output.shape != target.shape and output.numel() == target.numel():
        return output.reshape(target.shape)  # (B, 1) against (B,)
    return output


def class_axis(output: Tensor, target: Tensor) -> Tensor:
    """Return scores with the classes in axis 1, as torch has them: (B, V, L) from (B, L, V).

    >>> class_axis(torch.zeros(2, 5, 7), torch.zeros(2, 5)).shape
    torch.Size([2, 7, 5])
    """
    is_last = output.ndim == target.ndim + 1 > 2 and output.shape[:-1] == target.shape
    return output.movedim(-1, 1) if is_last else output


def guess_loss(output: Tensor, target: Tensor) -> str:
    """Return the name of the loss for a model's outputs and the targets of all samples.

    Raises:
        ArgumentError: If several losses are possible; it names them.
    """
    one_each = output.shape[1:].numel() == target.shape[1:].numel()
    is_binary = bool(((target == 0) | (target == 1)).all())
    if target.is_floating_point():
        if is_binary and one_each and float(target.max()) > float(target.min()):
            raise ArgumentError(
                "The targets are floats that are all 0 or 1, so say what they mean: loss='bce' if "
                "they are classes or labels, loss='mse' if they are numbers."
            )
        return "mse"
    if not one_each:
        return "cross_entropy"
    if is_binary:
        return "bce"
    many, high = tuple(target.shape[1:]), int(target.max())
    raise ArgumentError(
        f"The targets are integers and the model returns one number for each of them, so give "
        f"loss='mse' if they are numbers; for classes in 0..{high}, give the last layer "
        f"{high + 1} outputs" + (f" for each of the {many} targets." if many else ".")
    )


def extract_logits(output: Any) -> Any:
    """Return the `logits` of a model's output, if it is an object or dict with them, or the output.

    >>> extract_logits({"logits": torch.ones(1), "loss": None})
    tensor([1.])
    """
    if isinstance(output, Tensor):
        return output
    named = isinstance(output, Mapping)
    logits = output.get("logits") if named else getattr(output, "logits", None)
    return output if logits is None else logits


def are_labels(target: Tensor) -> bool:
    """Return whether targets are class labels rather than real numbers."""
    return not target.is_floating_point() and target.dtype != torch.bool


class Problem:
    """A model and a loss as functions of a flat vector.

    Args:
        module: Any module; it is copied, not changed. It returns a tensor, or an object or dict
            with a tensor `logits`, as Hugging Face's models do.
        loss: A name ("cross_entropy", "bce", "mse"), f(output, target) -> loss of each sample, or
            "auto", for which `check` takes one by the outputs and targets.
        dtype: torch.float32 or torch.float64.
        device: Where the constants live.
        precision: Precision of products. "fp32": that of the dtype. "tf32": 10 bits of mantissa
            inside matrix products and convolutions, on a GPU. "bf16": activations and products
            in bfloat16. Parameters, gradients and the rules' computations keep the dtype. "auto"
            is "tf32" on a GPU, else "fp32".
    """

    def __init__(
        self,
        module: nn.Module,
        loss: str | Loss = "cross_entropy",
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        precision: Precision = "auto",
    ) -> None:
        if not isinstance(module, nn.Module):
            raise ArgumentError(
                f"fit(model=...) must be a torch.nn.Module or a tf.Run, got {module!r}."
            )
        if dtype not in (torch.float32, torch.float64):
            wanted = "torch.float32 or torch.float64"
            raise ArgumentError(f"fit(dtype=...) must be {wanted}, got {dtype}.")
        refuse_batchnorm(module)
        self.set_loss(loss)
        self.weighted = False  # whether batches end with the weights of their samples
        self.casts = False  # whether integer inputs become floats; set by `check`
        self.dtype, self.device = dtype, torch.device(device)
        self.precision = _precision(precision, dtype, self.device)
        self.scaling: Tensor | None = None  # mean and scale of each column of the inputs (2, d)
        self.target_scaling: Tensor | None = None  # mean and common scale of the targets
        self.original, self._title = copy.deepcopy(module), f"The model {type(module).__name__}"
        twin, self._key_names = with_counter_dropout(module)
        self._is_fixed = False  # whether the module has the parameters of `fixed`
        self._functional = False  # whether forward calls what the mode replaces; set by `check`
        self._module = twin.to(device=self.device, dtype=dtype).train()
        trainable = {n: p for n, p in self._module.named_parameters() if p.requires_grad}
        if not trainable:
            raise ArgumentError(
                f"{self._title} has no parameter with requires_grad, so there is nothing to train."
            )
        self.layout = Layout(tuple(trainable), tuple(tuple(p.shape) for p in trainable.values()))
        self.parameters = sum(p.numel() for p in self._module.parameters())  # frozen ones too
        self.start: Vector = self.layout.join([p.detach() for p in trainable.values()])
        if not bool(torch.isfinite(self.start).all()):
            raise ArgumentError("fit(model=...) must start from finite parameters, got NaN or Inf.")

    def takes_target_scaling(self, columns: int, targets: int) -> bool:
        """Return whether targets can be standardised: squares, and a last layer to fold into."""
        if self.loss is not _mse:
            return False
        scaling = torch.tensor([[1.0], [2.0]]).expand(2, targets)
        try:
            return fold_targets(self.original, scaling, columns) is not None
        except Exception:  # a module that takes no such table by itself
            return False

    def set_loss(self, loss: str | Loss) -> None:
        """Set the loss, by its name or as a function."""
        if not callable(loss):
            check_known("loss", loss, (*LOSSES, "auto"))
        self.loss = loss if callable(loss) else LOSSES.get(loss, _cross_entropy)
        self.loss_name = loss if isinstance(loss, str) else getattr(loss, "__name__", "custom")

    @property
    def has_dropout(self) -> bool:
        """Whether a forward pass in training mode uses dropout, and hence needs a key."""
        return bool(self._key_names) or self._functional

    def activation_bytes(self, inputs: Inputs, target: Tensor, mask: Tensor, key: Tensor) -> int:
        """Return the bytes that one client's forward pass saves for its backward pass.

        Parameters do not count, whether they are trained or frozen.
        """
        point = [p.detach().requires_grad_() for p in self.layout.split(self.start)]
        held = (self.start, *self._module.parameters(), *self._module.buffers())
        own, sizes = {t.untyped_storage().data_ptr() for t in held}, {}

        def pack(t: Tensor) -> Tensor:
            if t.untyped_storage().data_ptr() not in own:
                sizes[t.data_ptr()] = t.nbytes
            return t

        with torch.enable_grad(), saved_tensors_hooks(pack, lambda t: t):
            loss = self.value(point, inputs, target, mask, key)  # alive, so addresses are unique
        del loss
        return sum(sizes.values())

    @contextmanager
    def precision_context(self) -> Iterator[None]:
        """Set PyTorch's global TF32 flags to this problem's precision, and restore them."""
        if self.device.type != "cuda":
            yield
            return
        places: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
        before = [place.allow_tf32 for place in places]
        try:
            for place in places:
                place.allow_tf32 = self.precision != "fp32"
            yield
        finally:
            for place, was in zip(places, before, strict=True):
                place.allow_tf32 = was

    @contextmanager
    def fixed(self, params: Sequence[Tensor]) -> Iterator[None]:
        """Evaluate at these parameters in every `value`: setting them in each call takes longer."""
        named = dict(zip(self.layout.names, params, strict=True))
        with _reparametrize_module(self._module, named, tie_weights=True):
            self._is_fixed = True
            try:
                yield
            finally:
                self._is_fixed = False

    def _call(self, params: Sequence[Tensor], inputs: Inputs, extra: dict[str, Tensor]) -> Tensor:
        named = extra
        if not self._is_fixed:
            named = dict(zip(self.layout.names, params, strict=True)) | extra
        if self.scaling is not None:
            assert isinstance(inputs, Tensor)
            inputs = standardise(inputs, self.scaling)
        args = inputs if isinstance(inputs, tuple) else (inputs,)
        args, kwargs = ((), dict(inputs)) if isinstance(inputs, dict) else (args, {})
        if named:
            output = functional_call(self._module, named, args, kwargs)
        else:
            output = self._module(*args, **kwargs)
        return extract_logits(output)  # type: ignore[no-any-return]

    def value(
        self, params: Sequence[Tensor], inputs: Inputs, target: Tensor, mask: Tensor, key: Tensor
    ) -> Tensor:
        """Return one client's training loss, the mean over the samples that are not padding."""
        extra = dict.fromkeys(self._key_names, key)
        inputs, factor = self._split_weight(inputs)
        with CounterDropoutMode(key) if self._functional else nullcontext():
            if self.precision == "bf16":
                with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False):
                    output = self._call(params, inputs, extra).to(self.dtype)
            else:
                output = self._call(params, inputs, extra)
        each = self.sample_losses(output, self._standard_target(target))
        weight = mask.to(each.dtype)
        if factor is not None:
            each = each * factor.to(each.dtype)
        return (each * weight).sum() / weight.sum()

    def _split_weight(self, inputs: Inputs) -> tuple[Inputs, Tensor | None]:
        """Return the inputs, and the weights of the samples if they come with them."""
        if not self.weighted:
            return inputs, None
        if isinstance(inputs, dict):
            return {n: t for n, t in inputs.items() if n != WEIGHT}, inputs[WEIGHT]
        return (inputs[:-1] if len(inputs) > 2 else inputs[0]), inputs[-1]

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        self._module.eval()
        try:
            with self.precision_context(), quiet_weights(self.device):
                yield
        finally:
            self._module.train()

    def outputs(self, x: Vector, inputs: Inputs) -> Tensor:
        """Return the model's outputs in evaluation mode, in the units of the targets."""
        with torch.no_grad(), self._evaluating():
            output = self._call(self.layout.split(x), inputs, {})
        if self.target_scaling is None:
            return output
        return restore_targets(output, self.target_scaling)

    def _standard_target(self, target: Tensor) -> Tensor:
        if self.target_scaling is None:
            return target
        return standardise(target, self.target_scaling.reshape(2, *target.shape[1:]))

    @property
    def loss_unit(self) -> float:
        """The loss in the targets' own units, over that in training."""
        return 1.0 if self.target_scaling is None else float(self.target_scaling[1, 0]) ** 2

    def gradient(self, x: Vector, inputs: Inputs, target: Tensor, weight: Tensor) -> Vector:
        """Return the gradient of the weighted sum of losses, in evaluation mode."""
        point = x.detach().requires_grad_()
        inputs, factor = self._split_weight(inputs)
        weight = weight if factor is None else weight * factor.to(weight.dtype)
        with self._evaluating():
            output = self._call(self.layout.split(point), inputs, {})
            each = self.sample_losses(output, self._standard_target(target))
            (grad,) = torch.autograd.grad((each * weight).sum(), [point])
        return grad

    def sample_losses(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each sample: (B,)."""
        each = self.loss(output, target)  # (B,) or (B, ...)
        return each.flatten(1).mean(1) if each.ndim > 1 else each

    def is_classification(self, output: Tensor, target: Tensor) -> bool:
        """Return whether outputs are scores of classes, so that accuracy is defined."""
        scores = (
            output.ndim == target.ndim + 1 and output.shape[1:].numel() > target.shape[1:].numel()
        )
        return are_labels(target) and scores and self.loss is not _mse

    @property
    def has_logits(self) -> bool:
        """Whether the outputs are scores whose softmax or sigmoid are probabilities."""
        return self.loss in (_cross_entropy, _bce)

    def accuracy(self, output: Tensor, target: Tensor) -> Tensor | None:
        """Return the share of correct classes or labels of each sample (B,), None if undefined."""
        if self.loss is _bce:
            right = (_like(output, target) > 0) == (target > 0.5)
            return right.to(torch.float64).reshape(len(target), -1).mean(1)
        if not self.is_classification(output, target):
            return None
        right = (class_axis(output, target).argmax(1) == target).to(torch.float64)
        right = right.reshape(len(target), -1)
        if target.ndim == 1:
            return right.mean(1)
        return right.sum(1) / (target != IGNORED).reshape(len(target), -1).sum(1).clamp(min=1)

    def prepare(self, inputs: Inputs) -> Inputs:
        """Move a batch to the device, and its floating-point tensors to the problem's dtype."""

        def move(t: Tensor) -> Tensor:
            is_float = t.is_floating_point() or self.casts
            return t.to(self.device, self.dtype if is_float else None)

        return map_inputs(move, inputs)

    def frozen_digest(self) -> str:
        """Return a short digest of the frozen parameters and the buffers."""
        total = hashlib.sha256()
        for name, value in self.original.state_dict(keep_vars=True).items():
            if not value.requires_grad:  # also not a trained one under a second name
                total.update(name.encode())
                total.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return total.hexdigest()[:16]

    def module_at(self, x: Vector) -> nn.Module:
        """Return a copy of the user's module with parameters `x`, in evaluation mode.

        It takes raw inputs and returns raw targets: where these are standardised, `fold_scaling`
        and `fold_targets` say where that goes.
        """
        module = copy.deepcopy(self.original).to(self.dtype)
        named = dict(module.named_parameters())
        parts = self.layout.split(x.detach().to("cpu"))
        with torch.no_grad():
            for name, part in zip(self.layout.names, parts, strict=True):
                named[name].copy_(part)
        if self.scaling is None:
            return module.eval()
        if self.target_scaling is not None:
            folded = fold_targets(module, self.target_scaling, self.scaling.shape[1])
            if folded is None:  # not as `takes_target_scaling` found it
                why = "must end in a linear layer with a bias, as the model of the run does"
                raise ArgumentError(f"{self._title} {why}.")
            module = folded
        return fold_scaling(module, self.scaling, extract_logits)

    def check(
        self, inputs: Inputs, target: Tensor, highest: int | None, every: Tensor | None = None
    ) -> None:
        """Run a few samples through model and loss, and raise an error that explains what fails.

        The loss "auto" is replaced by one that fits, and integer inputs are cast from now on if the
        model takes only floats.

        Args:
            inputs: Inputs of a few samples.
            target: Their targets.
            highest: The largest label of the dataset, None if targets are real numbers.
            every: The targets of all samples, by which the loss is chosen.
        """
        shapes = ", ".join(str(tuple(t.shape[1:])) for t in list_tensors(inputs))
        if isinstance(inputs, dict):
            shapes += ", each entry of a dict as a keyword of forward"
        trial = CounterDropoutMode(torch.zeros((), dtype=torch.int64, device=self.device))
        message = f"{self._title} does not accept samples of shape {shapes}"
        with convert_errors(message, ArgumentError), trial:
            try:
                output = self._call(self.layout.split(self.start), inputs, {})
            except (RuntimeError, TypeError) as error:  # a layer that takes no integers, or worse
                floats = map_inputs(lambda t: t.to(self.dtype), inputs)
                if all(t.is_floating_point() for t in list_tensors(inputs)):
                    raise
                try:
                    output = self._call(self.layout.split(self.start), floats, {})
                except Exception as other:  # of images, which are no ids
                    is_image = all(t.dtype == torch.uint8 for t in list_tensors(inputs))
                    raise (other if is_image else error) from None
                inputs, self.casts = floats, True
        if not isinstance(output, Tensor) or output.shape[:1] != target.shape[:1]:
            got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ArgumentError(
                f"{self._title} must return one tensor with a row per sample, or an object or dict "
                f"whose `logits` are one, got {got} for {target.shape[0]} samples."
            )
        self._functional = trial.used
        self._check_draws(trial, inputs)
        if self.loss_name == "auto":
            self.set_loss(guess_loss(output, target if every is None else every))
        if self.loss is _cross_entropy:
            self._check_classes(output, target, highest)
        if self.loss in (_mse, _bce) and output.numel() != target.numel():
            raise ArgumentError(
                f"fit(loss={self.loss_name!r}) compares numbers one by one, but the model returns "
                f"{tuple(output.shape[1:])} per sample and the targets have "
                f"{tuple(target.shape[1:])}; give the last layer as many outputs as targets."
            )
        given = f"outputs of shape {tuple(output.shape)} ({output.dtype}) with targets of shape "
        given += f"{tuple(target.shape)} ({target.dtype})"
        with convert_errors(f"The loss {self.loss_name} does not accept {given}", ArgumentError):
            each = self.loss(output, target)
        if not isinstance(each, Tensor) or each.shape[:1] != target.shape[:1]:
            got = tuple(each.shape) if isinstance(each, Tensor) else type(each).__name__
            raise ArgumentError(
                f"fit(loss=...) must return one loss per sample, so {target.shape[0]} rows, got "
                f"{got}; use reduction='none'."
            )

    def count_outputs(self, inputs: Inputs) -> int | None:
        """Return the number of outputs per sample, None if the model does not accept the inputs."""
        for batch in (inputs, map_inputs(lambda t: t.to(self.dtype), inputs)):
            try:
                return int(self.outputs(self.start, batch).shape[1:].numel())
            except Exception:  # `check` says what is wrong
                continue
        return None

    def _check_draws(self, trial: CounterDropoutMode, inputs: Inputs) -> None:
        with trial:
            drawn = draws_random_numbers(self._module, inputs)
        if drawn:
            raise ArgumentError(
                f"{self._title} draws random numbers by itself in forward, so runs could not be "
                "repeated; use nn.Dropout or F.dropout, whose masks we draw."
            )
        before = trial.drops
        with trial:
            self.outputs(self.start, inputs)
        if trial.drops > before:
            remedy = "pass training=self.training to F.dropout"
            raise ArgumentError(f"{self._title} drops units in evaluation mode too; {remedy}.")

    def _check_classes(self, output: Tensor, target: Tensor, highest: int | None) -> None:
        if highest is None:
            raise ArgumentError(
                "fit(loss='cross_entropy') needs whole-number labels, got targets of dtype "
                f"{target.dtype}; use loss='mse' for regression, loss='bce' for targets 0 and 1."
            )
        if target.ndim > 1 and output.ndim != target.ndim + 1:
            shapes = f"{tuple(output.shape[1:])} per sample and the targets have "
            shapes += f"{tuple(target.shape[1:])}"
            raise ArgumentError(
                "fit(loss='cross_entropy') needs a score of each class for each target, but the "
                f"model returns {shapes}; give classes in one axis, such as y[:, 0]."
            )
        if target.ndim > 1 and output.shape[:-1] == target.shape == output[:, 0].shape:
            raise ArgumentError(
                f"The model returns {tuple(output.shape[1:])} per sample for targets of "
                f"{tuple(target.shape[1:])}, so either axis may hold the classes; give loss=... a "
                "function that says which."
            )
        if output.ndim < 2 or class_axis(output, target).shape[1] <= highest:
            raise ArgumentError(
                f"The model returns outputs of shape {tuple(output.shape[1:])} per sample, but "
                f"labels go up to {highest}; give the last layer {highest + 1} outputs."
            )


def _precision(given: Precision, dtype: torch.dtype, device: torch.device) -> str:
    check_known("precision", given, get_args(Precision))
    if given == "auto":
        return "tf32" if device.type == "cuda" and dtype == torch.float32 else "fp32"
    if given != "fp32" and dtype != torch.float32:
        raise ArgumentError(
            f"Engine(precision={given!r}) cannot be combined with fit(dtype={dtype}): lower "
            "precision goes with torch.float32; leave one of them out."
        )
    if given == "tf32" and device.type != "cuda":
        raise ArgumentError(
            f"Engine(precision='tf32') needs a GPU, got the device {str(device)!r}; leave it out."
        )
    return given
