"""The checks of `make release`; RELEASING.md lists all steps.

    python tools/release.py ready          before the build: version, changelog, citation, git
    python tools/release.py built DIST     what is in the source distribution and in the wheel
    python tools/release.py installed ENV  the wheel in a clean environment: version, a short run

Each prints what is wrong and exits with status 1, or prints one line.
"""

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from email.parser import HeaderParser
from pathlib import Path

HOME = Path(__file__).parents[1]
VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
SECTION = re.compile(r"^## \[([^\]]+)\](?: - (\S+))?$", re.M)
DATE = re.compile(r"\d{4}-\d\d-\d\d")


def git(*words: str) -> str:
    """Return what a git command prints about this repository."""
    done = subprocess.run(("git", *words), cwd=HOME, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def read_version() -> str:
    """Return the version, which src/tunefree/version.py alone states."""
    text = (HOME / "src/tunefree/version.py").read_text()
    found = re.search(r'^__version__ = "(.*)"$', text, re.M)
    return found[1] if found else ""


def check_texts(version: str, changelog: str, citation: str) -> list[str]:
    """Return what is wrong with the version, the changelog or CITATION.cff."""
    wrong = []
    if not VERSION.fullmatch(version):
        wrong.append(f"src/tunefree/version.py: {version!r} is not X.Y.Z, with aN, bN or rcN")
    sections = SECTION.findall(changelog)
    first, date = sections[0] if sections else ("", "")
    if first != version:
        wrong.append(f"CHANGELOG.md: the first section is [{first}], not [{version}]")
    elif not DATE.fullmatch(date):
        wrong.append(f"CHANGELOG.md: the section [{version}] has no date: '## [{version}] - Y-M-D'")
    stated = {"version": version} | ({"date-released": date} if DATE.fullmatch(date) else {})
    for key, value in stated.items():
        found = re.search(rf"^{key}: *[\"']?([^\"'\n]*)", citation, re.M)
        if (found[1] if found else None) != value:
            wrong.append(f"CITATION.cff: {key} is not {value}")
    return wrong


def check_git(version: str) -> list[str]:
    """Return what is wrong with the state of the repository."""
    wrong = []
    if changed := git("status", "--porcelain"):
        wrong.append(f"git: there are changes that are not committed:\n{changed}")
    tag = f"v{version}"
    if git("tag", "--list", tag) and git("rev-parse", f"{tag}^{{}}") != git("rev-parse", "HEAD"):
        wrong.append(f"git: the tag {tag} exists and is another commit")
    return wrong


def check_ready() -> list[str]:
    """Return what has to be done before a release can be built."""
    texts = [(HOME / name).read_text() for name in ("CHANGELOG.md", "CITATION.cff")]
    return check_texts(read_version(), *texts) + check_git(read_version())


def check_names(wheel: set[str], source: set[str], tracked: set[str], version: str) -> list[str]:
    """Return what is missing from the distributions, and what should not be in the wheel.

    Args:
        wheel: Files of the wheel.
        source: Files of the source distribution, without its top folder.
        tracked: Files of the repository.
        version: The version, which is part of the wheel's metadata folder's name.
    """
    package = {name for name in tracked if name.startswith("src/tunefree/")}
    expected = {name.removeprefix("src/") for name in package}
    extra = {n for n in wheel - expected if not n.startswith(f"tunefree-{version}.dist-info/")}
    wrong = [f"wheel: {name} is missing" for name in sorted(expected - wheel)]
    wrong += [f"wheel: {name} is not a file of the repository" for name in sorted(extra)]
    needed = {*package, "pyproject.toml", "README.md", "LICENSE"}
    return wrong + [f"sdist: {name} is missing" for name in sorted(needed - source)]


def check_built(folder: str) -> list[str]:
    """Return what is wrong with the distributions in a folder."""
    version = read_version()
    built = sorted(path.name for path in Path(folder).iterdir())
    expected = [f"tunefree-{version}-py3-none-any.whl", f"tunefree-{version}.tar.gz"]
    if built != expected:
        return [f"{folder}: there should be {expected}, not {built}"]
    with zipfile.ZipFile(Path(folder) / built[0]) as archive:
        wheel = {name for name in archive.namelist() if not name.endswith("/")}
        text = archive.read(f"tunefree-{version}.dist-info/METADATA").decode()
    with tarfile.open(Path(folder) / built[1]) as archive:
        source = {name.partition("/")[2] for name in archive.getnames()}
    wrong = check_names(wheel, source, set(git("ls-files").splitlines()), version)
    metadata = HeaderParser().parsestr(text)
    for key in ("Summary", "License-Expression", "Requires-Python", "Description-Content-Type"):
        if not metadata[key]:
            wrong.append(f"wheel: its metadata have no {key}")
    if metadata["Version"] != version:
        wrong.append(f"wheel: its version is {metadata['Version']}, not {version}")
    return wrong


def check_installed(environment: str) -> list[str]:
    """Return what is wrong with the package that an environment has installed."""
    room = Path(environment).absolute()
    wrong = []
    with tempfile.TemporaryDirectory() as folder:

        def call(*words: str) -> str:
            done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode:
                wrong.append(f"{' '.join(words)}: exit status {done.returncode}\n{done.stderr}")
            return done.stdout.strip()

        where = call(f"{room}/bin/python", "-c", "import tunefree; print(tunefree.__file__)")
        if not Path(where).is_relative_to(room):
            wrong.append(f"tunefree was imported from {where}, not from {room}")
        said = call(f"{room}/bin/tunefree", "--version")
        if said != read_version():
            wrong.append(f"tunefree --version prints {said!r}, not {read_version()!r}")
        print(call(f"{room}/bin/tunefree", "run", "--rounds", "2"))
    return wrong


def main(words: list[str]) -> int:
    """Do one of the checks; return the exit status."""
    checks: dict[str, Callable[..., list[str]]]
    checks = {"ready": check_ready, "built": check_built, "installed": check_installed}
    wrong = checks[words[0]](*words[1:])
    print("\n".join(wrong) if wrong else f"tunefree {read_version()} is {words[0]}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
