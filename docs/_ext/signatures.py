"""Signatures in the reference that a reader can read.

- A signature with many options becomes `(env, *, seed=0, **options)`.
- Parameters for which no value is accepted, which only make better messages, are left out.
- TensorFlow's `TensorLike`, which is a union of a dozen types, stays a name.
- A Keras layer has the arguments of its constructor, and a dataclass `...` for a default that a function makes.
"""

import inspect
import re
from typing import Any

import option_lists
import option_tables
from sphinx.util.inspect import stringify_signature

LONGEST = 12
"""The largest number of options in a signature."""
TENSOR_LIKE = re.compile(r"[\w.~]*Tensor \| [\w.~]*TensorProtocol \| .*?generic")
NO_POSITIONAL = re.compile(r"\*\w+: [~\w.]*Never, ")
NO_OTHERS = re.compile(r",? ?\*\*\w+: [~\w.]*Never")


def setup(app: Any) -> dict[str, Any]:
    """Register the changes of signatures; Sphinx calls this function."""
    app.connect("autodoc-process-signature", _shorten)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _shorten(
    app: Any, what: str, name: str, documented: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    if signature is None:
        return signature, returns
    owner = option_lists.name_of(documented)
    if owner is not None and len(option_tables.options(owner, option_tables.KINDS)) > LONGEST:
        return _without_options(documented), returns
    if what == "class" and signature == "(*args, **kwargs)":  # that of Keras' `__new__`
        is_inherited = documented.__init__.__module__.startswith("keras")
        signature = "(**kwargs)" if is_inherited else _signature_of(documented.__init__)
    signature = signature.replace("<factory>", "...")
    signature = NO_OTHERS.sub("", NO_POSITIONAL.sub("*, ", signature))
    return TENSOR_LIKE.sub("TensorLike", signature), returns


def _signature_of(function: Any) -> str:
    """Return the signature of a method without `self`."""
    plain = inspect.signature(function)
    kept = [parameter for parameter in plain.parameters.values() if parameter.name != "self"]
    return stringify_signature(plain.replace(parameters=kept), show_return_annotation=False, unqualified_typehints=True)


def _without_options(documented: Any) -> str:
    """Return the signature of a function or a class with `**options` in place of all options but `seed`."""
    plain = inspect.signature(documented.__init__ if inspect.isclass(documented) else documented)
    kept = [
        parameter
        for parameter in plain.parameters.values()
        if parameter.name != "self" and (parameter.kind is not parameter.KEYWORD_ONLY or parameter.name == "seed")
    ]
    kept.append(inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD))
    shortened = plain.replace(parameters=kept, return_annotation=inspect.Signature.empty)
    return stringify_signature(shortened, unqualified_typehints=True)
