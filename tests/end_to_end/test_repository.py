"""Files for those who join: workflow, hooks, templates, citation, coverage and release checks."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import tunefree as tf

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import coverage_by_layer  # noqa: E402
import release  # noqa: E402


def read(name):
    return yaml.safe_load((ROOT / name).read_text())


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_workflow_calls_the_two_commands_of_the_readme_on_oldest_and_newest():
    jobs = read(".github/workflows/test.yml")["jobs"]
    commands = [step["run"] for step in jobs["test"]["steps"] if "run" in step]
    readme = re.findall(r"^    (make \w+) ", (ROOT / "README.md").read_text(), re.M)
    assert commands == readme == ["make run", "make test"]
    assert [s["run"] for s in jobs["docs"]["steps"] if "run" in s] == ["make docs"]
    matrix = jobs["test"]["strategy"]["matrix"]
    assert matrix["python"] == ["3.11", "3.12", "3.13"]
    assert project()["project"]["requires-python"] == f">={matrix['python'][0]}"
    oldest, newest = matrix["torch"]
    assert f"torch>={oldest.removesuffix('.0')}" in project()["project"]["dependencies"]
    assert f"torch=={newest}" in (ROOT / "constraints.txt").read_text().splitlines()
    assert jobs["test"]["env"] == {"TORCH": "${{ matrix.torch }}"}  # the Makefile's


def packages(folder):
    return {path.parent.name for path in folder.glob("*/__init__.py")}


def test_unit_tests_mirror_the_source():
    programs = {"benchmarks", "experiments"}
    assert packages(ROOT / "tests/unit") == packages(ROOT / "src/tunefree") | programs


def test_hooks_are_local_and_use_the_pinned_tools():
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    hooks = {hook["id"]: hook for hook in repository["hooks"]}
    assert {"ruff-format", "ruff-check", "mypy"} <= hooks.keys()
    for hook in hooks.values():
        assert hook["language"] == "pygrep" or hook["entry"].startswith(".venv/bin/")


@pytest.mark.parametrize("name", ["bug", "method"])
def test_issue_forms_have_what_github_asks_for(name):
    form = read(f".github/ISSUE_TEMPLATE/{name}.yml")
    assert {"name", "description", "body"} <= form.keys()
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "RELEASING.md", ".github/pull_request_template.md"]
)
def test_commands_of_make_exist(name):
    text = (ROOT / name).read_text()
    said = re.findall(r"(?:`|^    )make ([\w-]+)", text, re.M)
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert said
    assert set(said) <= set(targets)


def test_the_citation_names_this_version_and_the_papers_methods():
    citation = read("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "license"} <= citation.keys()
    assert citation["version"] == tf.__version__
    assert len(citation["references"]) == 5
    named = set()
    for paper in citation["references"]:
        assert {"type", "title", "authors"} <= paper.keys()
        methods = paper["notes"].partition(".")[0].replace(" II", "2").split(", ")
        named |= {name.lower() for name in methods}
    assert named <= set(tf.methods.names())
    assert {"fedproxlod", "feddua", "parfrefl", "fedsls", "fedcanon"} <= named


def test_the_version_is_stated_once():
    assert "version" not in project()["project"]
    assert release.read_version() == tf.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert release.SECTION.findall(changelog)[0][0] == tf.__version__


CHANGELOG = "# Changelog\n\n## [1.2.0] - 2026-01-31\n\n- A line.\n\n## [1.1.0] - 2025-12-01\n"
CITATION = "cff-version: 1.2.0\nversion: 1.2.0\ndate-released: '2026-01-31'\n"


def test_a_release_is_ready_when_version_changelog_and_citation_agree():
    assert release.check_texts("1.2.0", CHANGELOG, CITATION) == []


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (("1.2", CHANGELOG.replace("1.2.0", "1.2"), CITATION), "'1.2' is not X.Y.Z"),
        (("1.3.0", CHANGELOG, CITATION), r"first section is \[1.2.0\], not \[1.3.0\]"),
        (("1.2.0", CHANGELOG.replace("2026-01-31", "unreleased"), CITATION), "has no date"),
        (("1.2.0", CHANGELOG, CITATION.replace("n: 1.2.0\nd", "n: 1.1.0\nd")), "cff: version is"),
        (("1.2.0", CHANGELOG, CITATION.partition("date")[0]), "cff: date-released is not"),
    ],
)
def test_a_release_that_is_not_ready_says_why(texts, said):
    assert re.search(said, "\n".join(release.check_texts(*texts)))


def test_files_that_a_distribution_lacks_or_should_not_have():
    tracked = {"src/tunefree/fit.py", "pyproject.toml", "README.md", "LICENSE", "tests/test_fit.py"}
    wheel = {"tunefree/fit.py", "tunefree-1.2.0.dist-info/METADATA"}
    assert release.check_names(wheel, tracked, tracked, "1.2.0") == []
    assert release.check_names(wheel | {"tunefree/old.py"}, tracked, tracked, "1.2.0") == [
        "wheel: tunefree/old.py is not a file of the repository"
    ]
    assert release.check_names(set(), tracked - {"LICENSE"}, tracked, "1.2.0") == [
        "wheel: tunefree/fit.py is missing",
        "sdist: LICENSE is missing",
    ]


def test_coverage_is_summed_by_layer():
    def measured(*counts):
        return {"summary": dict(zip(coverage_by_layer.FIELDS, counts, strict=True))}

    files = {
        "src/tunefree/wire/topk.py": measured(10, 9, 4, 2),
        "src/tunefree/wire/sparse/rows.py": measured(5, 5, 1, 0),
        "src/tunefree/fit.py": measured(80, 40, 20, 10),
    }
    table = coverage_by_layer.format_table(coverage_by_layer.sum_by_layer(files)).splitlines()
    assert [line.split() for line in table[1:]] == [
        ["fit.py", "80", "40", "20", "10", "50.0", "%"],
        ["wire", "15", "1", "5", "3", "80.0", "%"],
        ["total", "95", "41", "25", "13", "55.0", "%"],
    ]
