"""Draw the start page's picture from real runs: `python tools/docs/picture.py` (a minute or two).

Test accuracy over rounds on the embedded digits: `auto` beside FedAvg at five learning rates, mean
and range over three seeds. Every run ships the averaged output, FedAvg's too.
"""

from pathlib import Path

import torch

import tunefree as tf

OUT = Path(__file__).parents[2] / "docs" / "assets" / "digits.svg"
ROUNDS, SEEDS, CLIENTS, COHORT = 60, 3, 20, 10
RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
BLUES = ("#b3cde3", "#8aaed0", "#6090bd", "#3b73a8", "#1a5490")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 400, 56, 150, 34, 62


def curve(method: tf.Method, seed: int) -> list[float]:
    """Return the test accuracy after each round."""
    fed = tf.load("digits").split(tf.Dirichlet(0.3), clients=CLIENTS, seed=seed)
    net = tf.models.build("mlp", shape=(1, 8, 8), classes=10, seed=seed)
    run = tf.fit(net, fed, method, rounds=ROUNDS, cohort=COHORT, seed=seed, device="cpu")
    found = [row["test_accuracy"] for row in run.history]
    return found + [float("nan")] * (ROUNDS - len(found))  # a run that diverged ends there


def curves(method: tf.Method) -> torch.Tensor:
    """Return (seeds, rounds)."""
    return torch.tensor([curve(method, seed) for seed in range(SEEDS)])


def draw(lines: dict[str, tuple[torch.Tensor, str, float]]) -> str:
    """Return the picture as SVG; each line is its curves, colour and width."""

    def at(t: int, value: float) -> str:
        x = LEFT + (WIDTH - LEFT - RIGHT) * t / ROUNDS
        y = TOP + (HEIGHT - TOP - BOTTOM) * (1 - value)
        return f"{x:.1f},{y:.1f}"

    style = "font: 13px sans-serif; fill: #444"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" style="{style}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#fff"/>',
        f'<text x="{LEFT}" y="20" font-weight="bold">Test accuracy on digits, over rounds</text>',
    ]
    for value in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        left, level = map(float, at(0, value).split(","))
        out.append(f'<path d="M{at(0, value)}L{at(ROUNDS, value)}" stroke="#e5e5e5"/>')
        out.append(f'<text x="{left - 8}" y="{level + 4}" text-anchor="end">{value}</text>')
    for t in range(0, ROUNDS + 1, 10):
        place, level = map(float, at(t, 0).split(","))
        out.append(f'<text x="{place}" y="{level + 18}" text-anchor="middle">{t}</text>')
    ends = []
    for name, (values, colour, width) in lines.items():
        low, high, mean = values.amin(0).tolist(), values.amax(0).tolist(), values.mean(0).tolist()
        band = [at(t + 1, v) for t, v in enumerate(high)]
        band += [at(t + 1, v) for t, v in reversed(list(enumerate(low)))]
        points = [at(t + 1, v) for t, v in enumerate(mean)]
        out.append(f'<path d="M{"L".join(band)}Z" fill="{colour}" opacity="0.13"/>')
        line = f'fill="none" stroke="{colour}" stroke-width="{width}"'
        out.append(f'<path d="M{"L".join(points)}" {line}/>')
        ends.append((float(points[-1].split(",")[1]), f"{name}: {mean[-1]:.3f}", colour, width))
    below = 0.0
    for y, text, colour, width in sorted(ends):
        below = max(y + 4, below + 16)
        weight = "bold" if width > 2 else "normal"
        spot = f'x="{WIDTH - RIGHT + 8}" y="{below:.1f}"'
        out.append(f'<text {spot} style="fill: {colour}" font-weight="{weight}">{text}</text>')
    note = f"Rounds. {CLIENTS} clients by Dirichlet 0.3, {COHORT} a round, 20 steps of batch 50; "
    note += f"mean and range of {SEEDS} seeds."
    out.append(f'<text x="{LEFT}" y="{HEIGHT - 14}">{note}</text></svg>')
    return "\n".join(out) + "\n"


def main() -> None:
    """Run everything and write the picture."""
    lines = {}
    for rate, colour in zip(RATES, BLUES, strict=True):
        method = tf.methods.get("fedavg", lr=rate, output="averaged")
        lines[f"FedAvg {rate:g}"] = (curves(method), colour, 1.5)
    lines["auto"] = (curves(tf.methods.get("auto")), "#c2410c", 3.0)
    OUT.write_text(draw(lines))


if __name__ == "__main__":
    main()
