"""Asks OSV, the public advisory database, about every package that the locks pin.

    python tools/audit.py requirements/*.txt

Exit code 0: asked, and nothing is known; 1: advisories, printed; 3: could not be asked, so that
nothing is known either way.
"""

import json
import re
import sys
import urllib.request
from collections.abc import Iterable
from pathlib import Path

ADDRESS = "https://api.osv.dev/v1/querybatch"
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


def pinned(paths: Iterable[Path]) -> list[tuple[str, str]]:
    """Return names and versions; a build's own suffix (+cpu) is not part of the version."""
    found = {m for path in paths for m in PINNED.findall(path.read_text())}
    return sorted({(name.lower(), version.partition("+")[0]) for name, version in found})


def asked(packages: list[tuple[str, str]], address: str = ADDRESS) -> dict[str, list[str]]:
    """Return the advisories by package."""
    queries = [
        {"package": {"name": name, "ecosystem": "PyPI"}, "version": version}
        for name, version in packages
    ]
    request = urllib.request.Request(
        address,
        json.dumps({"queries": queries}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        results = json.loads(reply.read())["results"]
    names = [f"{name} {version}" for name, version in packages]
    return {
        name: [v["id"] for v in found["vulns"]]
        for name, found in zip(names, results, strict=True)
        if found.get("vulns")
    }


def main(words: list[str]) -> int:
    """Ask, and say what is known."""
    packages = pinned(Path(word) for word in words)
    try:
        found = asked(packages)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(
            f"{len(packages)} pinned packages were NOT checked: {ADDRESS} cannot be asked "
            f"({error}). Run this where it can be reached."
        )
        return 3
    for name, ids in found.items():
        print(f"{name}: {', '.join(ids)}")
    print(f"{len(packages)} pinned packages checked, {len(found)} with advisories.")
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
