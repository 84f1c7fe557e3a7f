r"""Equations of the methods, in LaTeX beside the text of the docstrings they come from.

    expand  \norm{d} -> \lVert d \rVert               for whoever renders it
    reduce  \frac{\lr\,d}{\norm{d}} -> lrd/|d|        to compare with the docstring's "lr d / |d|"

Reduced text has no spaces, grouping, superscript or subscript marks: it distinguishes symbols,
their order and operations, not where a bracket closes.
"""

import re
import tomllib
from pathlib import Path

SHORT = {
    "lr": r"\mathrm{lr}",
    "slr": r"\mathrm{server\_lr}",
    "momentum": r"\mathrm{momentum}",
    "mean": r"\operatorname{mean}",
    "prox": r"\operatorname{prox}",
    "argmin": r"\operatorname{argmin}",
}
WORDS = {
    "leftarrow": "<-", "approx": "~", "le": "<=", "langle": "<", "rangle": ">", "lVert": "|",
    "rVert": "|", "varepsilon": "eps", "varphi": "phi", "nabla": "grad", "sqrt": "sqrt",
    "mathrm": "", "text": "", "operatorname": "", "quad": "",
}  # fmt: skip
PLAIN = {"in", "max", "min", "sum"}
PLAIN |= {"alpha", "beta", "delta", "eta", "mu", "omega", "psi", "rho", "tau", "theta"}


def equations() -> dict[str, list[tuple[str, str]]]:
    """Return the equations of equations.toml by method: the docstring's line and its LaTeX."""
    found = tomllib.loads(Path(__file__).with_name("equations.toml").read_text())
    return {name: [(t, e) for t, e in row["equations"]] for name, row in found.items()}


def expand(latex: str) -> str:
    """Replace the short forms by standard LaTeX."""
    latex = re.sub(r"\\([a-z]+)(?![a-z])", lambda m: SHORT.get(m[1], m[0]), latex)
    while r"\norm{" in latex:
        before, _, rest = latex.partition(r"\norm{")
        inside, after = _braces(rest)
        latex = rf"{before}\lVert {inside} \rVert{after}"
    return latex


def reduce(latex: str) -> str:
    """Return LaTeX as the bare text that `bare` makes of a docstring.

    >>> reduce(r"y \\leftarrow y - \\frac{\\lr\\,d}{\\sqrt{B}}")
    'y<-y-lrd/sqrtB'
    """
    latex = re.sub(r"\\[,;]", " ", expand(latex)).replace(r"\_", "_")
    while found := re.search(r"\\frac\{", latex):
        above, rest = _braces(latex[found.end() :])
        below, after = _braces(rest.removeprefix("{"))
        latex = f"{latex[: found.start()]}({above})/({below}){after}"
    latex = re.sub(r"\\hat\{(\w)\}", r"\1h", latex)
    latex = re.sub(r"\\bar\{(\w)\}", r"\1bar", latex)
    return bare(re.sub(r"\\([A-Za-z]+)", lambda m: _word(m[1]), latex))


def bare(text: str) -> str:
    """Return text without spaces, grouping, superscript and subscript marks."""
    return re.sub(r"[\s(){}^_]", "", text)


def _word(name: str) -> str:
    return name if name in PLAIN else WORDS[name]


def _braces(text: str) -> tuple[str, str]:
    """Split after the brace that closes the one just before the text."""
    depth = 1
    for i, character in enumerate(text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return text[:i], text[i + 1 :]
    raise ValueError(f"A brace is not closed in {text!r}.")
