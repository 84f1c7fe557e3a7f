"""An extension of griffe: options of `fit` from RunConfig, and equations of parts as Markdown."""

import inspect
from typing import Any

import griffe
import prose

from tunefree.training.fit import fit


class RuntimeSignature(griffe.Extension):
    """Take signature and docstring of `fit` from the function, not from its source."""

    def on_class(self, *, cls: griffe.Class, **others: Any) -> None:
        """Turn the equations and papers in a part's docstring into Markdown."""
        if cls.docstring is not None and prose.DIFFERENCES in cls.docstring.value:
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
