"""Suite gpu: works of the size that a GPU is used for, in TF32 and in bfloat16.

Every client takes part in every round of 40 steps. The plain loop is slow here, so that few of its
rounds are played; its recurrent layers are cuDNN's. With PyTorch and NumPy alone:

    PYTHONPATH=src python -uc "import benchmarks; benchmarks.measure('gpu', say=print)"
"""

from dataclasses import dataclass, replace
from typing import Any, get_args

from tunefree.core.device import find_device
from tunefree.core.errors import ArgumentError, check_int, unknown_name
from tunefree.models.problem import Precision

from .text import format_bytes, format_number, format_range
from .timing import Say, measure_beside, silent
from .workload import Workload

STEPS = 40
WARM = 3
BERT_SMALL = {"width": 512, "layers": 4, "heads": 8, "hidden": 2048}  # Turc et al., 1908.08962


def _work(
    net: str, shape: tuple[int, ...], classes: int, clients: int, batch: int, **args: Any
) -> Workload:
    return Workload(
        net=net,
        shape=shape,
        classes=classes,
        clients=clients,
        batch=batch,
        steps=STEPS,
        args=args,
    )


WORKS = {
    "mlp": _work("mlp", (1, 28, 28), 10, 100, 32, hidden=(200, 200)),
    "cnn-pfl": _work("cnn-pfl", (3, 32, 32), 10, 50, 10),
    "cnn-p1": _work("cnn-p1", (1, 28, 28), 62, 100, 20),
    "resnet18": _work("resnet18", (3, 32, 32), 10, 20, 50),
    "lstm": _work("lstm", (80,), 80, 50, 20),
    "gru": _work("gru", (80,), 80, 50, 20),
    "vit": _work("vit", (3, 32, 32), 10, 50, 20),
    "bert-small": _work("bert", (64,), 2, 50, 20, **BERT_SMALL),
}
TARGETS = {  # milliseconds per cohort-step
    ("mlp", "tf32"): 0.40,
    ("cnn-pfl", "tf32"): 2.0,
    ("cnn-p1", "tf32"): 4.2,
    ("resnet18", "tf32"): 43.0,
    ("lstm", "tf32"): 8.0,
    ("cnn-pfl", "bf16"): 1.1,
    ("cnn-p1", "bf16"): 2.3,
    ("resnet18", "bf16"): 22.0,
}


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """Settings of the suite.

    Args:
        models: mlp (784-200-200-10, 100 clients, batch 32), cnn-pfl (50, 10), cnn-p1 (100, 20),
            resnet18 (20, 50), lstm and gru (80 characters, 50, 20), vit (50, 20), bert-small
            (64 tokens, 50, 20); all by default.
        precisions: tf32 and bf16 on a GPU, elsewhere auto; also fp32.
        clients: Clients of the cohort, in place of each work's own number.
        batch: Samples per local step, likewise.
        steps: Local steps per round.
        repeats: Rounds of ours that are measured.
        plain_repeats: Rounds of the plain loop that are measured; 0 leaves it out.
        eager: Leave out compilation.
        device: auto, cuda, cpu, ...
    """

    models: tuple[str, ...] = tuple(WORKS)
    precisions: tuple[Precision, ...] = ()
    clients: int | None = None
    batch: int | None = None
    steps: int = STEPS
    repeats: int = 10
    plain_repeats: int = 2
    eager: bool = False
    device: str = "auto"

    def __post_init__(self) -> None:
        if not self.models:
            raise ArgumentError("Gpu(models=...) must name at least one network, got none.")
        for name in self.models:
            if name not in WORKS:
                raise unknown_name("model", name, WORKS)
        for name in self.precisions:
            if name not in get_args(Precision):
                raise unknown_name("precision", name, get_args(Precision))
        for name in ("clients", "batch"):
            if getattr(self, name) is not None:
                check_int("Gpu", name, getattr(self, name))
        for name in ("steps", "repeats"):
            check_int("Gpu", name, getattr(self, name))
        check_int("Gpu", "plain_repeats", self.plain_repeats, 0)
        if self.plain_repeats > self.repeats:
            raise ArgumentError(
                f"Gpu(plain_repeats=...) must be at most repeats, {self.repeats}, got "
                f"{self.plain_repeats}."
            )


def measure(settings: Gpu, say: Say = silent) -> list[dict[str, Any]]:
    """Return one row per work and precision."""
    device = find_device(settings.device)
    asked: tuple[Precision, ...] = ("tf32", "bf16") if device.type == "cuda" else ("auto",)
    rows = []
    for name in settings.models:
        known = WORKS[name]
        work = replace(
            known,
            clients=settings.clients or known.clients,
            batch=settings.batch or known.batch,
            steps=settings.steps,
        )
        same = (work.clients, work.batch) == (known.clients, known.batch)
        for precision in settings.precisions or asked:
            say(f"{name}, {precision}: set-up and rounds, beside the plain loop")
            row = measure_beside(
                work,
                device,
                warm=WARM,
                repeats=settings.repeats,
                plain_repeats=settings.plain_repeats,
                compile=not settings.eager,
                precision=precision,
            )
            row["model"] = name
            target = TARGETS.get((name, row["precision"])) if same else None
            row["target_ms"] = target if device.type == "cuda" else None
            say(f"{name}, {row['precision']}: {format_number(row['ours_ms'])} ms")
            rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Format the rows for a table, by heading."""
    return [
        {
            "model": row["model"],
            "clients x batch": f"{row['clients']} x {row['batch']}",
            "precision": row["precision"],
            "engine": str(row["engine"]),
            "ours, ms": format_range(row, "ours_ms"),
            "target": format_number(row["target_ms"]),
            "plain loop, ms": format_range(row, "plain_ms"),
            "ratio": format_range(row, "ratio", "x"),
            "memory": format_bytes(row["memory"]),
            "set-up": f"{row['setup_s']:.1f} s",
        }
        for row in rows
    ]
