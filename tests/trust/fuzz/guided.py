"""The same readers under atheris, which keeps inputs that reach new code, and changes those.

`make fuzz`, or `python -m trust.fuzz.guided NAME --runs N` from tests/, with atheris on the path.
One reader each process; without a name all of them, one after the other.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

PARTS = ("data", "wire", "folder", "run", "command", "words", "report", "study", "reproduce")
PARTS += ("engines.flower", "privacy", "errors", "penalties", "robust", "faults")


def fuzz(name: str, runs: int) -> None:
    """Fuzz one reader; the process ends here."""
    import atheris

    with atheris.instrument_imports(include=[f"tunefree.{part}" for part in PARTS]):
        from trust.fuzz import targets
    from trust.fuzz.target import judged

    target = targets.MAKERS[name]()
    corpus = Path(tempfile.mkdtemp(prefix="corpus-"))
    for number, seed in enumerate(target.seeds):
        (corpus / str(number)).write_bytes(seed)

    def change(data: bytes, most: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() < 0.3:
            return atheris.Mutate(data, most)
        return target.change(data or target.seeds[0], random)[:most]

    words = [f"-runs={runs}", "-timeout=10", "-rss_limit_mb=3000", "-max_len=8192", "-verbosity=1"]
    words += [f"-artifact_prefix={corpus}/found-", "-print_final_stats=1", str(corpus)]
    atheris.Setup([sys.argv[0], *words], lambda data: judged(target, data), custom_mutator=change)
    atheris.Fuzz()


def main() -> int:
    """Fuzz the reader named, or each of them in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?")
    parser.add_argument("--runs", type=int, default=100_000)
    asked = parser.parse_args()
    if asked.name is not None:
        fuzz(asked.name, asked.runs)
        return 0
    from trust.fuzz import targets
    from trust.fuzz.target import missing

    wrong = 0
    for name in targets.MAKERS:
        if missing(name):
            print(f"{name}: needs {missing(name)}", flush=True)
            continue
        words = [sys.executable, "-m", "trust.fuzz.guided", name, "--runs", str(asked.runs)]
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", check=False, timeout=7200
        )
        lines = [line for line in done.stderr.splitlines() if "stat::" in line or "DONE" in line]
        print(f"{name}: {'ok' if done.returncode == 0 else 'WRONG'} {' '.join(lines)}", flush=True)
        if done.returncode:
            wrong += 1
            print(done.stderr[-3000:], flush=True)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
