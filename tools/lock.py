"""Writes requirements/*.txt: what the set-up commands install, with the sha256 of every file.

`make lock` runs it with uv, which asks PyPI for versions within constraints.txt and for the sums of
all their files, on every platform and Python from 3.11. Two things are kept apart: torch's builds
for CPUs alone, which are tried first (pip itself prefers what an index has a sum for), and what
only a build for CUDA needs besides. torch-X.Y.Z.txt is dev.txt with the oldest torch that
pyproject.toml accepts, for `make setup TORCH=X.Y.Z`.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HOME = Path(__file__).parents[1]
OUT = HOME / "requirements"
CUDA = re.compile(r"(cuda|nvidia|triton)[-\w]*==")
# Not on PyPI: download.pytorch.org/whl/cpu has it, with one file for each Python and platform.
CPU = (
    "torch==2.13.0+cpu",
    "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",  # cp311, Linux, x86_64
)
# Flower and dp-accounting hold these back.
HELD = {"attrs": "23.2.0", "packaging": "25.0", "rich": "14.3.4", "typer": "0.20.1"}
# The oldest torch needs an older one of these.
OLDER = {"setuptools": "81.0.0"}
LOCKS = {
    "runtime": ((), {}),
    "dev": (("dev", "plots"), {}),
    "docs": (("dev", "docs"), {}),
    "browser": (("dev", "browser", "plots"), {}),
    "flower": (("dev", "flower", "privacy"), HELD),
}


def compiled(
    source: str, extras: tuple[str, ...], held: dict[str, str], python: str = "3.11"
) -> list[str]:
    """Return what uv finds, one requirement with all its sums each."""
    lines = (HOME / "constraints.txt").read_text().splitlines()
    lines = [line for line in lines if line.partition("==")[0] not in held]
    lines += [f"{name}=={version}" for name, version in held.items()]
    words = ["uv", "pip", "compile", source, "--universal", "--python-version", python]
    words += ["--generate-hashes", "--no-annotate", "--no-header", "--no-config", "--quiet"]
    words += [word for extra in extras for word in ("--extra", extra)]
    with tempfile.TemporaryDirectory() as folder:
        limits, out = Path(folder) / "constraints.txt", Path(folder) / "out.txt"
        limits.write_text("\n".join(lines) + "\n")
        words += ["--constraint", str(limits), "--output-file", str(out)]
        subprocess.run([sys.executable, "-m", *words], cwd=HOME, check=True)
        text = out.read_text()
    return re.split(r"\n(?=\w)", text.strip())


def write(name: str, found: list[str], says: str) -> None:
    """Write a lock."""
    text = "\n".join([f"# {says} Made by `make lock`.", *found])
    (OUT / f"{name}.txt").write_text(text + "\n")


def compile_tools(wanted: list[str]) -> list[str]:
    """Return what uv finds for packages that are not dependencies of this one."""
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder) / "tools.in"
        asked.write_text("\n".join(wanted) + "\n")
        return compiled(str(asked), (), {})


def oldest_torch() -> str:
    """Return the lowest version of torch that pyproject.toml accepts, as "X.Y.Z"."""
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    bounds = [re.fullmatch(r"torch>=([\d.]+)", line) for line in project["dependencies"]]
    (bound,) = (found[1] for found in bounds if found)
    return ".".join([*bound.split("."), "0", "0"][:3])


def main() -> None:
    """Write all locks."""
    OUT.mkdir(exist_ok=True)
    cuda: dict[str, None] = {}
    for name, (extras, held) in LOCKS.items():
        python = "3.11.5" if name == "docs" else "3.11"  # pymdown-extensions
        found = compiled("pyproject.toml", extras, held, python)
        cuda |= dict.fromkeys(one for one in found if CUDA.match(one))
        kept = [one for one in found if not CUDA.match(one)]
        says = f"The package with {', '.join(extras)}" if extras else "What the package needs"
        write(name, kept, f"{says}, but not itself.")
    oldest, extras = oldest_torch(), LOCKS["dev"][0]
    found = compiled("pyproject.toml", extras, {"torch": oldest, **OLDER})
    write(f"torch-{oldest}", found, "As dev.txt, with the oldest torch and its build for CUDA.")
    write("cuda", list(cuda), "What torch's build for CUDA needs besides.")
    fuzz = compile_tools(["atheris==3.0.0"])  # the newest for Python 3.11
    write("fuzz", fuzz, "For `make fuzz`.")
    write("release", compile_tools(["build", "twine", "setuptools"]), "For `make release`.")
    sums = " ".join(f"--hash=sha256:{total}" for total in CPU[1:])
    write("cpu", [f"{CPU[0]} {sums}"], "torch for CPUs alone, where pip is told of a place for it.")


if __name__ == "__main__":
    main()
