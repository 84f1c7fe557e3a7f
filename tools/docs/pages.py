"""Pages that are made from docstrings: one for each method, and the reference.

`virtual()` returns all of them, path to Markdown; nothing here needs MkDocs.
"""

import inspect
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import maths
import prose

import tunefree as tf
from tunefree.core import errors
from tunefree.core.text import read_argument_docs
from tunefree.simulation.dry_run import count_units
from tunefree.study.tables import StudyResult

ROOT = Path(__file__).parents[2]
QUIET = {"Plain", "Everyone", "Dense", "Last"}  # parts that need no words on a method's page
EQUATIONS = maths.equations()
SETTINGS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("settings.toml").read_text())
ESTIMATORS = ("FederatedClassifier", "FederatedRegressor")  # imported when they are used
ERRORS = [n for n, v in vars(errors).items() if inspect.isclass(v) and issubclass(v, BaseException)]


def rooms() -> dict[str, types.ModuleType]:
    """Return the public subpackages and modules, by name."""
    found = {name: getattr(tf, name) for name in tf.__all__}
    return {name: value for name, value in found.items() if inspect.ismodule(value)}


def public(room: types.ModuleType) -> list[str]:
    """Return the public names of a module."""
    if hasattr(room, "__all__"):
        return list(room.__all__)
    own = (n for n, v in vars(room).items() if getattr(v, "__module__", "") == room.__name__)
    return sorted(n for n in own if not n.startswith("_"))


def virtual() -> dict[str, str]:
    """Return every generated page: its path under docs/, and its Markdown."""
    pages = {"methods/index.md": methods_index(), "reference/index.md": reference_index()}
    pages |= {f"methods/{name}.md": method_page(name) for name in tf.methods.names()}
    return pages | {f"reference/{name}.md": reference_page(name) for name in rooms()}


def groups() -> dict[str, list[str]]:
    """Return the methods by family, each once."""
    family = {name: tf.methods.CATALOGUE[name].family for name in tf.methods.names()}
    out = {
        title: [name for name, own in family.items() if own == key]
        for key, title in tf.methods.FAMILIES.items()
    }
    return {title: names for title, names in out.items() if names}


def method_of(name: str) -> tf.Method:
    """Return a named method at its defaults, with a small penalty where it takes one."""
    return tf.methods.get(name, **_penalty(name))


def _penalty(name: str) -> dict[str, str]:
    return {"penalty": "l1:1e-4"} if "penalty" in tf.methods.settings(name) else {}


def parts(method: tf.Method) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a method with the names of their places."""
    for direction in method.directions:
        yield "direction", direction
    yield "step", method.step
    yield "server", method.server
    yield "wire", method.wire
    if hasattr(method.wire, "inner"):
        yield "compressor", method.wire.inner
    yield "output", method.output


def chosen(name: str) -> dict[str, Any]:
    """Return the settings that are left to choose, at their defaults."""
    own, entry = tf.methods.settings(name), tf.methods.CATALOGUE[name]
    return {key: own[key].default for key in entry.choose} | _penalty(name)


def command(name: str) -> str:
    """Return the example command of a method."""
    sets = "".join(f" --set {key}={value}" for key, value in chosen(name).items())
    return f"tunefree run --method {name}{sets}"


def call(name: str) -> str:
    """Return the example expression of a method."""
    given = "".join(f", {key}={_shown(value)}" for key, value in chosen(name).items())
    return f'tf.methods.get("{name}"{given})'


def _shown(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def method_page(name: str) -> str:
    """Return the page of a method."""
    entry, method = tf.methods.CATALOGUE[name], method_of(name)
    paper = prose.linked(f", arXiv:{entry.arxiv}" if entry.arxiv else "")
    words = inspect.cleandoc(entry.make.__doc__ or "").split("\n\n")[1:]
    words = [text for text in words if not text.startswith("Args:")]
    sent = count_units(method)
    facts = {
        "paper": entry.paper + paper,
        "left to choose": ", ".join(f"`{k}`" for k in entry.choose) or "nothing",
        "cohort": "everyone, in every round" if method.full else "any",
        "sent up, per client and round": sent["up"],
        "sent down, per client and round": sent["down"],
        "sent up before round 0": sent["before"],
        "kept by a client": sent["client"],
        "kept by the server, beyond the model": sent["server"],
    }
    shown = {prose.document(p): p for _, p in parts(method) if type(p).__name__ not in QUIET}
    out = [f"# {name}", entry.summary, *map(prose.linked, map(prose.escape, words))]
    if name in EQUATIONS:
        out += ["\n".join(rf"\[{maths.expand(latex)}\]" for _, latex in EQUATIONS[name])]
    else:
        out += prose.equations(list(shown))
    out += [_table(("what", "is"), [(k, str(v)) for k, v in facts.items()])]
    out += ["d is the number of trainable parameters; single numbers are counted beside it."]
    out += ["## Run it", f"```sh\n{command(name)}\n```"]
    out += [f"```python\nrun = tf.fit(model, fed, {call(name)}, rounds=100)\n```", *_measured(name)]
    out += ["## Settings", _settings(name, method), "## Parts"]
    rows = [(place, reference(type(p)), f"`{p!r}`") for place, p in parts(method)]
    out += [_table(("part", "is", "as"), rows), "## Equations and differences from the papers"]
    for doc, part in shown.items():
        out += [
            f"### {prose.escape(prose.headline(doc)).rstrip('.')}",
            f"Part: {reference(type(part))}.",
        ]
        out += [prose.markdown(doc)]
    return "\n\n".join(out) + "\n"


def _measured(name: str) -> list[str]:
    rows = (ROOT / "docs" / "catalogue.md").read_text()
    found = re.search(rf"^\| {name}( \*)? \| ([^|]+) \|", rows, re.M)
    if found is None:
        return []
    line = f"Out of the box: accuracy {found[2]} on Fashion-MNIST after 50 rounds"
    line += ", with fewer clients than others, all of them in every round" if found[1] else ""
    return [f"{line}; [the catalogue](../catalogue.md) has the set-up and all others."]


def describe(name: str, setting: str, method: tf.Method) -> str:
    """Return what a setting of a method means."""
    own = read_argument_docs(tf.methods.CATALOGUE[name].make.__doc__).get(setting)
    own = own or SETTINGS.get(name, {}).get(setting) or SETTINGS.get(setting)
    if isinstance(own, str):
        return own
    found = [method.step, *method.directions, method.server, method.wire, method.output]
    found += [
        getattr(p, f) for p in found for f in ("rates", "direction", "inner") if hasattr(p, f)
    ]
    says = (prose.class_arguments(type(p)).get(setting) for p in found)
    return next((text for text in says if text), "")


def _settings(name: str, method: tf.Method) -> str:
    rows = [
        (f"`{k}`", _kind(p.annotation), f"`{p.default!r}`", prose.escape(describe(name, k, method)))
        for k, p in tf.methods.settings(name).items()
    ]
    common = prose.class_arguments(tf.Method)
    default = {f.name: getattr(method, f.name) for f in fields(method)}
    taken = {"wire"} if "compressor" in tf.methods.settings(name) else set()
    also = [
        (f"`{k}`", "", f"`{default[k]!r}`", prose.escape(common[k]))
        for k in tf.methods.COMMON
        if k not in taken
    ]
    return _table(("setting", "type", "default", "meaning"), rows + also)


def _kind(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(f"`{value!r}`" for value in typing.get_args(kind))
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return ", ".join(_kind(k) for k in typing.get_args(kind))
    if kind is type(None):
        return "`None`"
    return f"`{getattr(kind, '__name__', kind)}`"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def methods_index() -> str:
    """Return the list of methods."""
    out = ["# Methods", f"{len(tf.methods.names())} methods, each a product of parts. Pages are"]
    out[-1] += (
        " made from the docstrings of the code; [which one to use](../how-to/which-method.md)."
    )
    for family, names in groups().items():
        rows = [
            (f"[{n}]({n}.md)", tf.methods.CATALOGUE[n].paper, tf.methods.CATALOGUE[n].summary)
            for n in names
        ]
        out += [f"## {family}", _table(("method", "paper", "what it is"), rows)]
    return "\n\n".join(out) + "\n"


def home(value: Any) -> str | None:
    """Return the dotted name under which a public object is documented."""
    for name, room in rooms().items():
        for own in public(room):
            if getattr(room, own) is value:
                return f"tunefree.{name}.{own}"
    return f"{value.__module__}.{value.__name__}" if value in _parts_of_method_files() else None


def _parts_of_method_files() -> list[type]:
    """Return the parts that are defined beside the factories of their methods."""
    every = (type(part) for name in tf.methods.names() for _, part in parts(method_of(name)))
    return [c for c in dict.fromkeys(every) if c.__module__.startswith("tunefree.methods.")]


def reference(value: Any) -> str:
    """Return a link to an object's entry in the reference."""
    where = home(value)
    return f"`{value.__name__}`" if where is None else f"[`{value.__name__}`][{where}]"


def reference_index() -> str:
    """Return the reference of the package itself."""
    out = [
        "# Reference",
        "`import tunefree as tf`: what there is at the top, and the rooms below it.",
    ]
    rows = [(f"[`tf.{n}`]({n}.md)", prose.headline(m.__doc__ or "")) for n, m in rooms().items()]
    out += [_table(("room", "what is there"), rows)]
    for name in tf.__all__:
        value = getattr(tf, name)
        where = home(value) if callable(value) else None
        if where:
            out += [f"## `tf.{name}`", f"The same as [`{where}`][{where}]."]
        elif callable(value) and name != "TunefreeError":
            inherits = isinstance(value, type) and issubclass(value, StudyResult)
            options = "\n    options:\n      inherited_members: true" if inherits else ""
            out += [f"::: tunefree.{name}{options}"]
        elif name == "__version__":
            out += ["## `tf.__version__`", "The version, as text."]
    out += [f"::: tunefree.estimators.{name}" for name in ESTIMATORS]
    out += [
        "## Errors",
        *(f"::: tunefree.core.errors.{e}\n    options:\n      heading_level: 3" for e in ERRORS),
    ]
    return "\n\n".join(out) + "\n"


def reference_page(name: str) -> str:
    """Return the reference of one room, its objects under the files that define them."""
    room = rooms()[name]
    out = [f"# tunefree.{name}", prose.markdown(room.__doc__ or "", title=True)]
    under: dict[str, list[str]] = {}
    for own in public(room):
        value = getattr(room, own)
        made = callable(value) or is_dataclass(value)
        file = prose.module_of(value).__name__ if made else room.__name__
        under.setdefault(file, []).append(f"tunefree.{name}.{own}")
    if room is tf.methods:
        for part in _parts_of_method_files():
            under.setdefault(part.__module__, []).append(f"{part.__module__}.{part.__name__}")
    for file in sorted(under):
        doc = inspect.importlib.import_module(file).__doc__ or ""  # type: ignore[attr-defined]
        if file != room.__name__:
            out += [f"## {prose.escape(prose.headline(doc)).rstrip('.')}", prose.markdown(doc)]
        out += [f"::: {address}\n    options:\n      heading_level: 3" for address in under[file]]
    return "\n\n".join(out) + "\n"
