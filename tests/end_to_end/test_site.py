"""The site says what is there: pages, entries, links, equations, commands, and code that runs."""

import doctest
import inspect
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

import tunefree as tf
from tunefree.cli import app
from tunefree.training.command import parse_method_settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "tools" / "docs"))

import maths  # noqa: E402
import pages  # noqa: E402
import prose  # noqa: E402

MADE = pages.virtual()
WRITTEN = {p.relative_to(DOCS).as_posix(): p.read_text() for p in DOCS.rglob("*.md")}
RUN = ["index.md", "tutorial.md", *sorted(p for p in WRITTEN if p.startswith("how-to/"))]
MIRRORED = {"changelog.md", "contributing.md", "measuring.md"}  # made by the hook, from the root
NAVIGATION = re.findall(r"(\S+\.md)\s*$", (ROOT / "mkdocs.yml").read_text(), re.M)
METHODS = tf.methods.names()


def python(text):
    return re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)


def without_code(text):
    return re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.S | re.M)


def agrees(said, printed):
    """Whether a line is what the page says: whole numbers and words alike, others nearly."""
    if said.endswith("…"):
        said = said.rstrip("… ")
        printed = printed[: len(said)]
    number = r"-?\d+\.\d+"
    if re.split(number, said) != re.split(number, printed):
        return False
    pairs = zip(re.findall(number, said), re.findall(number, printed), strict=True)
    nearly = {1: 0.11, 2: 0.04}  # by digits after the point
    return all(abs(float(a) - float(b)) < nearly.get(len(a.split(".")[1]), 1e-9) for a, b in pairs)


def test_agrees_can_tell():
    assert agrees("0.84 of [1, 2]", "0.86 of [1, 2]")
    assert not agrees("0.84 of [1, 2]", "0.94 of [1, 2]")
    assert not agrees("0.84 of [1, 2]", "0.84 of [1, 3]")
    assert agrees("It is 3 …", "It is 3 or so.")
    assert not agrees("It is 3 …", "It is 4 or so.")


@pytest.mark.parametrize("page", [p for p in RUN if python(WRITTEN[p])])
def test_the_code_of_a_page_runs_and_prints_what_it_says(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for block in python(WRITTEN[page]):
        said = re.findall(r"print\(.*\)  # (.*)$", block, re.M)
        assert len(said) == block.count("print(")
        exec(compile(block, page, "exec"), names)
        printed = capsys.readouterr().out.splitlines()
        assert len(printed) == len(said)
        for line, words in zip(printed, said, strict=True):
            assert agrees(words, line), f"{page} says {words!r}, but it is {line!r}"


NEEDS = {  # packages of blocks that are marked `py`: they are not part of the development set
    "how-to/privacy.md": ("cryptography", "dp_accounting"),
    "how-to/text-models.md": ("transformers",),
}


@pytest.mark.parametrize("page", [p for p in RUN if "```py\n" in WRITTEN[p]])
def test_code_that_needs_further_packages_runs_where_they_are_installed(page, capsys):
    for package in NEEDS[page]:
        pytest.importorskip(package)
    names = {"__name__": "page"}
    for block in re.findall(r"^```py(?:thon)?\n(.*?)^```", WRITTEN[page], re.S | re.M):
        exec(compile(block, page, "exec"), names)
        said = re.findall(r"print\(.*\)  # (.*)$", block, re.M)
        printed = capsys.readouterr().out.splitlines()
        assert all(agrees(*pair) for pair in zip(said, printed, strict=True))


def commands():
    for page in [*RUN, *(f"methods/{n}.md" for n in METHODS)]:
        for block in re.findall(r"^```sh\n(.*?)^```", {**WRITTEN, **MADE}[page], re.S | re.M):
            for line in block.splitlines():
                found = re.search(r"(?:^|-m )tunefree (.*)", line)
                if found:
                    yield page, found[1]


def test_commands_are_known():
    found = list(commands())
    assert len(found) > len(METHODS)
    for page, words in found:
        command, bound, *_ = app.parse_args(
            shlex.split(words), exit_on_error=False, print_error=False
        )
        assert command.__module__.startswith("tunefree.cli."), page
        options = bound.arguments.get("options")
        if options is not None:
            set_ = parse_method_settings(options.method, options.set or ())
            tf.methods.get(options.method, **set_)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_its_page(name):
    page = MADE[f"methods/{name}.md"]
    entry, method = tf.methods.CATALOGUE[name], pages.method_of(name)
    assert page.startswith(f"# {name}\n\n{entry.summary}")
    assert f"[{name}]({name}.md)" in MADE["methods/index.md"]
    assert "**Differences from the paper:**" in page
    assert f"tf.fit(model, fed, {pages.call(name)}, rounds=100)" in page
    words = tuple(re.findall(r"--set (\S+)", pages.command(name)))
    assert eval(pages.call(name), {"tf": tf}) == method
    assert tf.methods.get(name, **parse_method_settings(name, words)) == method
    for setting, parameter in tf.methods.settings(name).items():
        row = re.search(rf"^\| `{setting}` \| .* \| `(.*)` \| (.*) \|$", page, re.M)
        assert row, f"{name} has no row for {setting}"
        assert row[1] == repr(parameter.default)
        assert len(row[2]) > 10, f"{name} does not say what {setting} means"
    for _, part in pages.parts(method):
        assert pages.home(type(part)), f"{type(part).__name__} is in no room"
        assert pages.reference(type(part)) in page


def test_every_method_is_in_the_navigation_once():
    listed = [name for names in pages.groups().values() for name in names]
    assert sorted(listed) == METHODS
    assert "methods/index.md" in NAVIGATION


def docstrings(name):
    found = (prose.document(part) for _, part in pages.parts(pages.method_of(name)))
    return " ".join(" ".join(doc.split()) for doc in found)


@pytest.mark.parametrize("name", METHODS)
def test_the_arxiv_number_is_that_of_the_docstrings(name):
    number = tf.methods.CATALOGUE[name].arxiv
    assert number is None or f"arXiv:{number}" in docstrings(name)


@pytest.mark.parametrize("name", pages.EQUATIONS)
def test_latex_equations_are_those_of_the_docstrings(name):
    doc = docstrings(name)
    assert pages.EQUATIONS[name]
    for text, latex in pages.EQUATIONS[name]:
        assert " ".join(text.split()) in doc
        assert maths.reduce(latex) == maths.bare(text)
        assert rf"\[{maths.expand(latex)}\]" in MADE[f"methods/{name}.md"]


def test_reduced_equations_differ_where_symbols_do():
    right = maths.reduce(r"x \leftarrow x + \frac{\slr\,m}{\sqrt{s} + \varepsilon}")
    assert right == maths.bare("x <- x + server_lr m / (sqrt(s) + eps)")
    for wrong in (
        r"x \leftarrow x - \frac{\slr\,m}{\sqrt{s} + \varepsilon}",
        r"x \leftarrow x + \frac{\lr\,m}{\sqrt{s} + \varepsilon}",
        r"x \leftarrow x + \frac{\sqrt{s} + \varepsilon}{\slr\,m}",
    ):
        assert maths.reduce(wrong) != right


@pytest.mark.parametrize("module", [prose, maths])
def test_examples_in_docstrings(module):
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed


def test_latex_equations_are_of_methods():
    assert list(pages.EQUATIONS) == sorted(pages.EQUATIONS)
    assert set(pages.EQUATIONS) <= set(METHODS)


def test_a_page_without_latex_shows_the_docstrings_equations(monkeypatch):
    monkeypatch.delitem(pages.EQUATIONS, "fedexp")
    page = pages.method_page("fedexp")
    above = page[: page.index("| what | is |")]
    assert r"\[" not in above
    assert "```{.text .equation}" in above
    assert "x    <- x + eta delta" in above


@pytest.mark.parametrize("room", ["", *(n for n in tf.__all__ if inspect.ismodule(getattr(tf, n)))])
def test_every_public_name_is_in_the_reference(room):
    path = f"reference/{room or 'index'}.md"
    assert path in NAVIGATION
    page, module = MADE[path], getattr(tf, room) if room else tf
    for name in getattr(module, "__all__", ()):
        dotted = re.escape(".".join(filter(None, ("tunefree", room, name))))
        entry = rf"^::: {dotted}$" if room else rf"^::: {dotted}$|`tf\.{name}`"
        assert re.search(entry, page, re.M) or (name == "TunefreeError" and "Errors" in page), name


def entries():
    return {e for text in MADE.values() for e in re.findall(r"^::: (\S+)$", text, re.M)}


def anchors(path):
    """The anchors of a page's headings, as MkDocs makes them."""
    for line in re.findall(r"^#+ (.*)$", {**WRITTEN, **MADE}[path], re.M):
        plain = re.sub(r"[^\w\s-]", "", line.replace("`", "")).strip().lower()
        yield re.sub(r"[-\s]+", "-", plain)


@pytest.mark.parametrize("page", sorted({**WRITTEN, **MADE}))
def test_links_lead_somewhere(page):
    text = without_code({**WRITTEN, **MADE}[page])
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        where = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        known = where in WRITTEN or where in MADE or where in MIRRORED or (DOCS / where).exists()
        assert known, f"{page} points to {target}"
        assert not anchor or anchor in anchors(where), f"{page} points to {target}"
    for target in re.findall(r"\]\[([\w.]+)\]", text):
        assert target in entries(), f"{page} points to {target}"


def test_every_page_is_in_the_navigation():
    methods = {f"methods/{n}.md" for n in METHODS}
    assert sorted(NAVIGATION) == sorted((WRITTEN.keys() | MADE.keys() | MIRRORED) - methods)


def test_nothing_is_fetched_when_a_page_is_read():
    settings = (ROOT / "mkdocs.yml").read_text()
    assert "font: false" in settings
    assert "http" not in settings
    assert "http" not in (DOCS / "assets" / "site.css").read_text()
    (script,) = re.findall(r"polyfills: \[(.*iframe-worker.*)\]", settings)  # else it is fetched
    assert "http" not in (DOCS / script).read_text()
