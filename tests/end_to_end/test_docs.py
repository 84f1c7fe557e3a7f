"""The code of the documentation runs, and the reference names what there is."""

import inspect
import re
import shlex
from pathlib import Path

import pytest
import torch

import tunefree as tf
from tunefree.cli import app
from tunefree.clients import (
    ClientPart,
    Direction,
    LocalPhases,
    LocalProblem,
    LocalResult,
    Plan,
    Round,
    Step,
    StepContext,
)
from tunefree.server import Output, Server
from tunefree.wire import Wire

PAGE = (Path(__file__).parents[2] / "docs" / "own-parts.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)


def test_the_blocks_do_what_they_say(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "own_parts"}
    for block in BLOCKS:
        exec(compile(block, "own-parts.md", "exec"), names)
    said = [line.split("# ", 1)[1] for b in BLOCKS for line in b.splitlines() if "print(" in line]
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(said) == 4
    accuracy, *sentences = zip(printed, said, strict=True)
    assert float(accuracy[0]) == pytest.approx(float(accuracy[1]), abs=0.03)
    for line, start in sentences:
        assert line.startswith(start.rstrip("… "))
    assert names["run"].status == "finished"
    assert not list(tmp_path.iterdir())
    names["test_contract"](tf.testing.check_history)


def own(cls):
    return {n: v for n, v in vars(cls).items() if not n.startswith("_")}


def hooks(cls):
    for name, value in own(cls).items():
        if inspect.isfunction(value):
            yield f"`{name}({', '.join(list(inspect.signature(value).parameters)[1:])})`"


PARTS = (ClientPart, Direction, Step, Server, Output, Wire)
HOOKS = {f"{cls.__name__}.{hook}": hook for cls in PARTS for hook in hooks(cls)}


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_is_in_the_reference(name):
    assert re.search(rf"^\| \**{re.escape(HOOKS[name])}\** \|", PAGE, re.M)


def test_no_hook_is_in_the_reference_that_does_not_exist():
    found = re.findall(r"^\| \**(`\w+\([\w, ]*\)`)\** \|", PAGE, re.M)
    assert len(found) == len(HOOKS)
    assert set(found) == set(HOOKS.values())


@pytest.mark.parametrize("cls", [*PARTS, Plan, Round, StepContext, LocalPhases])
def test_every_declaration_and_field_is_in_the_reference(cls):
    names = set(inspect.get_annotations(cls)) | set(own(cls))
    functions = {n for n, v in own(cls).items() if inspect.isfunction(v)}
    for name in names - functions:
        assert re.search(rf"`[^`]*\b{name}\b[^`]*`", PAGE), name


@pytest.mark.parametrize("cls", [LocalProblem, LocalResult])
def test_every_field_of_a_record_is_in_the_reference(cls):
    for name in inspect.get_annotations(cls):
        assert re.search(rf'[`"]{name}["`]', PAGE), name


def test_every_check_is_in_the_reference():
    found = re.findall(r"^\| `(check_\w+)` \|", PAGE, re.M)
    assert found == [check.__name__ for check in tf.testing.ALL]


README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_readme_runs(capsys, tmp_path, monkeypatch):
    """With a file of patients: two numbers, a text, the diagnosis, and the hospital."""
    monkeypatch.chdir(tmp_path)
    draw = torch.Generator().manual_seed(0)
    lines = ["age,pressure,sex,diagnosis,hospital"]
    for i in range(300):
        age, pressure = (torch.randn(2, generator=draw) + 0.1 * (i % 6)).tolist()
        sick = "sick" if age + pressure > 0.5 else "healthy"
        lines.append(f"{age:.3f},{pressure:.3f},{'mf'[i % 2]},{sick},hospital {i % 6}")
    (tmp_path / "patients.csv").write_text("\n".join(lines))
    names = {"__name__": "readme"}
    first, second = re.findall(r"^```python\n(.*?)^```", README, re.S | re.M)
    assert len([line for line in first.splitlines() if line and "import" not in line]) == 5
    exec(compile(first, "README.md", "exec"), names)
    assert names["run"].summary["test_accuracy"] > 0.9
    assert (tmp_path / "model.safetensors").is_file()
    assert set(names["run"].predict(names["table"])) == {"sick", "healthy"}
    assert "rounds=20)" in second
    short = second.replace("rounds=20)", "rounds=4)")  # 14 runs: as it is but for their length
    exec(compile(short, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert r"\toprule" in printed
    assert r"mine & " in printed


def test_the_commands_of_the_readme_are_known():
    (block,) = re.findall(r"^```sh\n(.*?)^```", README, re.S | re.M)
    for line in block.splitlines():
        words = shlex.split(line.partition("#")[0])[1:]
        command, *_ = app.parse_args(words, exit_on_error=False, print_error=False)
        assert command.__module__.startswith("tunefree.cli.")


def test_the_numbers_of_the_readme_are_those_of_the_pages():
    folder = Path(__file__).parents[2] / "docs"
    catalogue, speed = ((folder / name).read_text() for name in ("catalogue.md", "speed.md"))
    assert f"{len(tf.methods.names())} methods" in README
    for method, mean in re.findall(r"`(\w+)`\s\.(\d{3})", README):
        assert f"| {method} | 0.{mean} ± " in catalogue
    assert len(re.findall(r"`(\w+)`\s\.(\d{3})", README)) == 4
    ours, plain = re.search(
        r"take ([\d.]+) ms per step of\nthe whole.* takes ([\d.]+) ms", README
    ).groups()
    assert re.search(rf"^\| mlp \|.* {ours} \([^|]*\| {plain} \(", speed, re.M)
    ours, plain = re.search(r"take ([\d.]+) ms \(plain loop ([\d.]+) ms", README).groups()
    row = re.search(rf"^\| cnn-pfl \|.*compiled \| ([\d.]+) .* {plain} \|", speed, re.M)
    assert f"{float(row[1]):.1f}" == ours


def test_pages_that_name_secure_aggregation_say_that_it_is_unaudited():
    home = Path(__file__).parents[2]
    pages = [*home.glob("*.md"), *home.glob("docs/**/*.md")]
    pages += [*home.glob("examples/**/*.md"), *home.glob("src/tunefree/flower/files/**/*.txt")]
    named = re.compile(r"`Secure|tf\.privacy\.Secure|[Ss]ecure aggregation|under masks")
    found = {str(page.relative_to(home)) for page in pages if named.search(page.read_text())}
    assert {"SECURITY.md", "docs/how-to/privacy.md", "docs/how-to/federation.md"} <= found
    for page in found:
        text = (home / page).read_text()
        assert "experimental" in text, page
        assert "unaudited" in text, page
    about = [tf.privacy.__doc__, tf.privacy.Secure.__doc__, tf.fit.__doc__]
    assert all("experimental" in text and "audited" in text for text in about)
