"""An extension of griffe: options from RunConfig's fields, and equations of parts as Markdown."""

import inspect
import pydoc
from dataclasses import fields, is_dataclass
from typing import Any

import griffe
import prose

from tunefree.training.config import GROUPS
from tunefree.training.fit import fit

DOCUMENTED = {f"{cls.__module__}.{cls.__name__}": cls for cls in GROUPS.values()}


class RuntimeSignature(griffe.Extension):
    """Take what is built from the options at run time from the objects, not from their source."""

    def on_class(self, *, cls: griffe.Class, **others: Any) -> None:
        """Replace the docstring of a group of options; complete those of parts.

        Their equations become Markdown, and arguments that a base class describes are added.
        """
        if cls.path in DOCUMENTED:
            cls.docstring = griffe.Docstring(inspect.getdoc(DOCUMENTED[cls.path]) or "", parent=cls)
        elif cls.docstring is not None:
            text, args = prose.split_arguments(cls.docstring.value)
            if prose.DIFFERENCES in text:
                text = prose.markdown(text, title=True)
            cls.docstring.value = text + _complete_arguments(cls.path, args)

    def on_function(self, *, func: griffe.Function, **others: Any) -> None:
        """Replace what was read from the source."""
        if func.path != "tunefree.training.fit.fit":
            return
        func.docstring = griffe.Docstring(inspect.getdoc(fit) or "", parent=func)
        func.parameters = griffe.Parameters(
            *(
                griffe.Parameter(
                    p.name,
                    annotation=inspect.formatannotation(p.annotation),
                    kind=griffe.ParameterKind(p.kind.description),
                    default=None if p.default is p.empty else _default(p.default),
                )
                for p in inspect.signature(fit).parameters.values()
            )
        )


def _complete_arguments(path: str, args: str) -> str:
    """Return a dataclass's Args section with the arguments that only its bases describe."""
    kind: Any = pydoc.locate(path)
    names = [f.name for f in fields(kind) if f.init] if is_dataclass(kind) else []
    own, every = prose.arguments(args), prose.class_arguments(kind) if names else {}
    if own.keys() >= every.keys() & set(names):
        return args
    return prose.ARGS + "".join(f"\n    {n}: {every[n]}" for n in names if n in every)


def _default(value: Any) -> str:
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    return f"{type(value).__name__}()" if hasattr(value, "__dataclass_fields__") else repr(value)
