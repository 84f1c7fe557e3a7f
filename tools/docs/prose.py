"""Docstrings as Markdown: prose, papers, equations, arguments."""

import inspect
import re
import textwrap
from types import ModuleType

from tunefree.core.text import read_argument_docs

ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
DIFFERENCES = "Differences from the paper:"
ARGS = "\n\nArgs:"  # begins the section of a docstring


def blocks(doc: str) -> list[tuple[str, str]]:
    """Split a docstring into ("prose", text) and ("equation", text), in their order.

    >>> blocks("One line.\\n\\n    x <- x + delta\\n\\nMore\\nwords.")
    [('prose', 'One line.'), ('equation', 'x <- x + delta'), ('prose', 'More\\nwords.')]
    """
    out: list[tuple[str, str]] = []
    for part in re.split(r"\n\s*\n", inspect.cleandoc(doc)):
        kind = "equation" if part.startswith("    ") else "prose"
        text = textwrap.dedent(part) if kind == "equation" else part
        if kind == "equation" and out and out[-1][0] == kind:
            out[-1] = (kind, f"{out[-1][1]}\n\n{text}")
        else:
            out.append((kind, text))
    return out


def escape(text: str) -> str:
    """Return plain text as Markdown that shows it; code in backticks stays code.

    >>> escape("y_i <- `y_i` * 2")
    'y\\\\_i &lt;- `y_i` \\\\* 2'
    """
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else _escape(p) for p in pieces)


def _escape(text: str) -> str:
    return re.sub(r"([\\*_|\[\]])", r"\\\1", text.replace("<", "&lt;"))


def linked(text: str) -> str:
    """Turn every arXiv number, and every page that is named, into a link.

    >>> linked("docs/auto.md, arXiv:1602.05629")
    '[docs/auto.md](../auto.md), [arXiv:1602.05629](https://arxiv.org/abs/1602.05629)'
    """
    text = re.sub(r"\bdocs/([\w-]+\.md)", r"[docs/\1](../\1)", text)
    return ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", text)


def markdown(doc: str, title: bool = False) -> str:
    """Return a module's docstring as Markdown, without its first line unless `title`."""
    parts = blocks(doc)
    out = []
    for kind, text in parts if title else parts[1:]:
        if kind == "equation":
            out.append(f"```{{.text .equation}}\n{text}\n```")
        elif text.startswith(DIFFERENCES):
            rest = " ".join(text.removeprefix(DIFFERENCES).split())
            out.append(f"**{DIFFERENCES}** {linked(escape(rest))}")
        else:
            out.append(linked(escape(text)))
    return "\n\n".join(out)


def equations(docs: list[str]) -> list[str]:
    """Return the equations of docstrings as preformatted Markdown, without the prose.

    >>> equations(["One line.\\n\\n    x <- x + delta\\n\\nMore."])
    ['```{.text .equation}\\nx <- x + delta\\n```']
    """
    found = (text for doc in docs for kind, text in blocks(doc) if kind == "equation")
    return [f"```{{.text .equation}}\n{text}\n```" for text in found]


def headline(doc: str) -> str:
    """Return a docstring's first line."""
    return inspect.cleandoc(doc).splitlines()[0]


def class_arguments(kind: type) -> dict[str, str]:
    """Return what a class and its base classes say about its arguments, by name."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        found |= read_argument_docs(vars(base).get("__doc__"))
    return found


def document(part: object) -> str:
    """Return the docstring with the equations of a part: of its class, a base class or its module.

    Arguments of a class are left out.
    """
    found = (inspect.cleandoc(c.__doc__ or "") for c in type(part).__mro__)
    own = next((doc for doc in found if DIFFERENCES in doc), None)
    return split_arguments(own)[0] if own else module_of(part).__doc__ or ""


def split_arguments(doc: str) -> tuple[str, str]:
    """Split a docstring into its text and its Args section.

    >>> split_arguments("A step.\\n\\nArgs:\\n    lr: Step size.")
    ('A step.', '\\n\\nArgs:\\n    lr: Step size.')
    """
    text, args, rest = doc.partition(ARGS)
    return text, args + rest


def module_of(value: object) -> ModuleType:
    """Return the module that defines a class, a function, or a part's class."""
    kind = value if inspect.isclass(value) or inspect.isroutine(value) else type(value)
    module = inspect.getmodule(kind)
    assert module is not None
    return module
