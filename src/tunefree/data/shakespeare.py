"""Shakespeare by speaking role: predict the character that follows 80 characters.

Caldas et al. 2018, LEAF, arXiv:1812.01097; roles are found as in McMahan et al. 2017. A speech
starts with two blanks, the role's name and a full stop; its other lines are indented by four (in
The Comedy of Errors by none). A play's title is above the line "by William Shakespeare".

Differences from LEAF: sequences start every `stride` characters instead of every one; each role's
text is cut once by time, so no training sequence overlaps a test sequence; the rare characters
outside the 80 of the alphabet, which LEAF maps to index -1, become blanks; a role needs 81
characters and no least number of lines.
"""

import re

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from ..core.errors import check_in_range, check_int
from ..core.types import Array
from .dataset import Dataset
from .sources import SOURCES, DataFolder, read_files

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
LENGTH = 80


def shakespeare(
    folder: DataFolder = None, *, stride: int = 80, test_fraction: float = 0.2
) -> Dataset:
    """Return sequences of 80 character ids and the id that follows, owned by speaking roles.

    Args:
        folder: Folder with `raw_data.txt`.
        stride: Characters between the starts of two sequences of a role. LEAF's 1 gives about 3.4
            million training sequences, over 2 GB; 80 uses each character once as input.
        test_fraction: Fraction of each role's text, at its end, used for testing, in [0, 1).
    """
    check_int("shakespeare", "stride", stride)
    check_in_range("shakespeare", "test_fraction", test_fraction, 0, 1)
    ((_, data),) = read_files(SOURCES["shakespeare"], folder)
    parts: list[tuple[list[Array], list[int]]] = [([], []), ([], [])]  # train, test
    names: list[str] = []
    for name, text in sorted(find_speeches(data.decode("utf-8", "replace")).items()):
        codes = _CODES[np.frombuffer(text.encode("latin-1", "replace"), np.uint8)]
        cut = len(codes) - int(len(codes) * test_fraction)
        cut = cut if cut > LENGTH else len(codes)  # too short to test on
        if cut <= LENGTH:
            continue
        for (windows, owners), piece in zip(parts, (codes[:cut], codes[cut:]), strict=True):
            if len(piece) > LENGTH:
                windows.append(sliding_window_view(piece, LENGTH + 1)[::stride])
                owners.extend([len(names)] * len(windows[-1]))
        names.append(name)
    x, y = _sequences(parts[0][0])
    test = _sequences(parts[1][0]) if parts[1][0] else None
    return Dataset(
        name="shakespeare",
        x=x,
        y=y,
        test=test,
        classes=len(ALPHABET),
        owner=torch.tensor(parts[0][1]),
        owners=tuple(names),
        test_owner=torch.tensor(parts[1][1]) if test else None,
        licence=SOURCES["shakespeare"].licence,
        note=f"Speaking roles as in LEAF, one sequence every {stride} characters.",
        words=tuple(ALPHABET),
    )


def find_speeches(text: str) -> dict[str, str]:
    """Return the text of each role, in order, by "PLAY: ROLE".

    >>> play = "\\n\\nHAMLET\\n\\nby William Shakespeare\\n\\n"
    >>> said = "  GHOST. Mark me.\\n  Ham. I will.\\n    Speak.\\n"
    >>> find_speeches("SONNETS\\n\\nby William Shakespeare\\n" + play + said)
    {'HAMLET: GHOST': 'Mark me.', 'HAMLET: HAM': 'I will. Speak.'}
    """
    lines = text.splitlines()
    said: dict[str, dict[str, list[str]]] = {}
    works, play, role, above, last = 0, "", "", "", ""
    for line in lines:
        above, last = last, line.strip() or last  # the nearest line above that is not empty
        if "by William Shakespeare" in line:
            works, play, role = works + 1, above, ""
            continue
        if works < 2:  # preface and sonnets
            continue
        flat = play == "THE COMEDY OF ERRORS"  # its indentation is lost
        if match := (_FLAT_SPEECH if flat else _SPEECH).match(line):
            role = match.group(1).upper()
            if flat and role.startswith("ACT "):
                role = ""
            else:
                said.setdefault(play, {}).setdefault(role, []).append(match.group(2))
        elif line.startswith("<<"):  # the notice between works
            role = ""
        elif role and (flat or line.startswith("    ")):
            said[play][role].append(line)
    return {
        f"{play}: {role}": re.sub(r"\s+", " ", " ".join(spoken)).strip()
        for play, roles in said.items()
        if len(roles) > 1  # poems have at most one
        for role, spoken in roles.items()
    }


_SPEECH = re.compile(r"  ([a-zA-Z][a-zA-Z ]*)\. (.*)")
_FLAT_SPEECH = re.compile(r"([a-zA-Z][a-zA-Z ]*)\. (.*)")
_CODES = np.full(256, ALPHABET.index(" "), np.uint8)
_CODES[np.frombuffer(ALPHABET.encode(), np.uint8)] = np.arange(len(ALPHABET))


def _sequences(windows: list[Array]) -> tuple[Tensor, Tensor]:
    rows = torch.from_numpy(np.concatenate(windows)).long()
    return rows[:, :LENGTH], rows[:, LENGTH].clone()
