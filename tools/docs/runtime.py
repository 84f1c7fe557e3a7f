"""An extension of griffe: options from RunConfig's fields, and equations of parts as Markdown."""

import inspect
from typing import Any

import griffe
import prose

from tunefree.training.config import GROUPS
from tunefree.training.fit import fit

DOCUMENTED = {f"{cls.__module__}.{cls.__name__}": cls for cls in GROUPS.values()}


class RuntimeSignature(griffe.Extension):
    """Take what is built from the options at run time from the objects, not from their source."""

    def on_class(self, *, cls: griffe.Class, **others: Any) -> None:
        """Replace the docstring of a group of options; turn equations of a part into Markdown."""
        if cls.path in DOCUMENTED:
            cls.docstring = griffe.Docstring(inspect.getdoc(DOCUMENTED[cls.path]) or "", parent=cls)
        elif cls.docstring is not None and prose.DIFFERENCES in cls.docstring.value:
            text, args = prose.split_arguments(cls.docstring.value)
            cls.docstring.value = prose.markdown(text, title=True) + args

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


def _default(value: Any) -> str:
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    return f"{type(value).__name__}()" if hasattr(value, "__dataclass_fields__") else repr(value)
