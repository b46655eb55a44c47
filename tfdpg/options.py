"""Declarations of options: an option is an annotated field with its range in the type and its help text below it.

Groups of options are frozen dataclasses with keyword-only fields. The signatures and documentation of the functions
that take them (`takes_options`), the flags of the command line, the saved configuration and the tables in the
documentation are generated from them.
"""

import ast
import dataclasses
import functools
import inspect
import itertools
import textwrap
import typing
from collections.abc import Callable, Collection
from typing import (
    Annotated,
    Any,
    ClassVar,
    Concatenate,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    cast,
    dataclass_transform,
)

from tfdpg.arguments import check_value
from tfdpg.hints import call_error, reject_schedule
from tfdpg.ranges import Within, describe_type, without_ranges

P = ParamSpec("P")
Owner = TypeVar("Owner")
First = TypeVar("First")
Group = TypeVar("Group")
Result = TypeVar("Result")


class Only:
    """Marks an option that has an effect only with certain values of other options.

    Args:
        others: the values of other options, by name. A tuple lists several values. If the marked option is changed
            although another option has none of these values, the constructor raises `ValueError`.

    Example:
        ```python
        ou_theta: Annotated[Fraction, Only(noise="ou")] = 0.15
        alpha: Annotated[Fraction | None, Only(replay=("prioritized", "lap"))] = None
        ```
    """

    def __init__(self, **others: Any):
        self.others = others


class Mark(NamedTuple):
    """A property of an option, given in its annotation: `Annotated[Count, Structural]`."""

    name: str


Structural = Mark("structural")
"""The option of a saved agent cannot be changed."""
Unsaved = Mark("unsaved")
"""The option is not saved with the others."""
BuiltIn = Mark("built_in")
"""The option describes built-in networks and has no effect on custom networks."""


class Search(NamedTuple):
    """Marks an option with the range that `tfdpg tune` searches.

    Attributes:
        low: the lower end. If it is an integer, so are the values.
        high: the upper end.
        scale: the scale on which values are drawn. "log of 1 - x" is for fractions close to 1.
    """

    low: float
    high: float
    scale: Literal["linear", "log", "log of 1 - x"] = "linear"


class Choices:
    """Marks an option with the values among which `tfdpg tune` chooses."""

    def __init__(self, *values: Any):
        self.values = values


class Option(NamedTuple):
    """An option.

    Attributes:
        kind: its type without marks; for an object, the type as a string.
        default: its default, or `dataclasses.MISSING`.
        help: its help text.
        group: the title of its group.
        is_object: whether only Python code can pass its values: networks, optimizers, callables.
        marks: what its annotation holds beside the type and the range.
    """

    name: str
    kind: Any
    default: Any
    help: str
    group: str
    is_object: bool
    marks: tuple[Any, ...]

    @property
    def search(self) -> Search | Choices | None:
        """What `tfdpg tune` tries; None if it cannot search this option."""
        return next((mark for mark in self.marks if isinstance(mark, Search | Choices)), None)

    @property
    def type_text(self) -> str:
        """The type with its range, as described in the documentation."""
        return self.kind if isinstance(self.kind, str) else describe_type(self.kind)


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Options:
    """A group of options. A subclass declares options and may change inherited defaults: `gamma = 0.9`.

    A field is an option. Its annotation contains the range, and the string below it is its description. The class is a
    frozen dataclass with keyword-only fields. Class arguments are `group`, the title of the group in the documentation
    and in the help of the command line, `objects=True` for options that only Python code can pass, and `marks`, which
    apply to all fields of the class.

    Example:
        ```python
        class MyOptions(TD3Options, group="algorithm"):
            batch_size = 256
            temperature: Positive = 1.0
            "temperature of the policy."
        ```

    Raises:
        ValueError: a value that the option's type does not allow, or an option that has no effect with the others
            (`Only`, `check`). The message names the option.
    """

    title: ClassVar[str] = "options"
    holds_objects: ClassVar[bool] = False
    marks: ClassVar[tuple[Mark, ...]] = ()

    def __init_subclass__(cls, *, group: str | None = None, objects: bool = False, marks: tuple[Mark, ...] = ()):
        own = inspect.get_annotations(cls)
        inherited = {}
        for base in reversed(cls.__mro__[1:]):
            inherited |= inspect.get_annotations(base)
        # The dataclass needs an annotation for each new default; afterwards only the class's own fields keep theirs.
        cls.__annotations__ = {name: inherited[name] for name in vars(cls) if name in inherited} | own
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)
        cls.__annotations__ = own
        cls.title = group or cls.title
        cls.holds_objects = objects
        cls.marks = marks

    def __post_init__(self) -> None:
        options = options_of(type(self))
        for option in options:
            value = getattr(self, option.name)
            if not option.is_object:
                reject_schedule(option.name, value)
                object.__setattr__(self, option.name, check_value(option.name, option.kind, value))
        for option in options:
            for mark in option.marks:
                for other, value in mark.others.items() if isinstance(mark, Only) else ():
                    if getattr(self, other) not in (value if isinstance(value, tuple) else (value,)):
                        self.refuse([option.name], f"`{other}` is {getattr(self, other)!r}")
        for group in reversed(type(self).__mro__):
            if "check" in vars(group):
                vars(group)["check"](self)

    def check(self) -> None:
        """Raise `ValueError` for an inconsistent combination of this group's options. Every base's check runs first."""

    def is_changed(self, name: str) -> bool:
        """Return whether an option differs from its default. Objects are compared by identity.

        Args:
            name: the name of the option.
        """
        option = next(option for option in options_of(type(self)) if option.name == name)
        value = getattr(self, name)
        return value is not option.default if option.is_object else value != option.default

    @classmethod
    def names(cls, mark: Mark) -> list[str]:
        """Return the names of the options with a mark.

        Args:
            mark: `Structural`, `Unsaved` or `BuiltIn`.
        """
        return [option.name for option in options_of(cls) if mark in option.marks]

    def refuse(self, names: Collection[str], why: str) -> None:
        """Raise `ValueError` if one of these options was changed although it has no effect.

        Args:
            names: the names of the options.
            why: the condition under which they have no effect, for the message: "`noise` is None".
        """
        for name in names:
            if self.is_changed(name):
                raise ValueError(f"`{name}` does nothing where {why}. Received: {name}={getattr(self, name)!r}")

    def values(self, without: Collection[str] = ()) -> dict[str, Any]:
        """Return the values of the options by name.

        Args:
            without: the names of options to leave out.
        """
        return {o.name: getattr(self, o.name) for o in options_of(type(self)) if o.name not in without}


@functools.cache
def options_of(kind: type[Options]) -> tuple[Option, ...]:
    """Return the options of a group: its own, then inherited ones in the order of the bases, with objects last."""
    fields = {field.name: field for field in dataclasses.fields(cast(Any, kind))}
    help_texts: dict[str, str] = {}
    options: dict[str, Option] = {}
    for group in kind.__mro__:
        help_texts = _help_texts(group) | help_texts
        for name in inspect.get_annotations(group):
            if name in fields and name not in options:
                options[name] = _option(cast(type[Options], group), fields[name], help_texts.get(name, ""))
    return tuple(sorted(options.values(), key=lambda option: option.is_object))


def _option(group: type[Options], field: dataclasses.Field[Any], help_text: str) -> Option:
    kind = cast(Any, field.type)
    marks = group.marks
    if typing.get_origin(kind) is Annotated:
        ranges = [mark for mark in kind.__metadata__ if isinstance(mark, Within)]
        marks += tuple(mark for mark in kind.__metadata__ if not isinstance(mark, Within))
        kind = Annotated[kind.__origin__, ranges[0]] if ranges else kind.__origin__
    if isinstance(kind, typing.ForwardRef):
        kind = kind.__forward_arg__
    return Option(field.name, kind, field.default, help_text, group.title, group.holds_objects, marks)


@functools.cache
def _help_texts(group: type) -> dict[str, str]:
    """Return the strings below the fields of a class, by field name; none if its source is not available."""
    help_texts = {}
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(group)))
    except (OSError, TypeError):
        return {}
    for statement, text in itertools.pairwise(cast(ast.ClassDef, tree.body[0]).body):
        match statement, text:
            case (
                ast.AnnAssign(target=ast.Name(name)) | ast.Assign(targets=[ast.Name(name)]),
                ast.Expr(ast.Constant(str(help))),
            ):
                help_texts[name] = " ".join(help.split())
    return help_texts


def takes_options(
    kind: Callable[P, Group],
) -> Callable[[Callable[[Owner, First, Group], Result]], Callable[Concatenate[Owner, First, P], Result]]:
    """Return a decorator that makes a function take a group of options as keyword arguments.

    The decorated function has two arguments and then the options: `__init__(self, env, options)`. Its new signature
    lists the options, and so does its docstring in place of the line `options: ...`. Its attribute `options_class` is
    the class of the options, which `load_agent` needs. The constructor of a subclass, whose options inherit from these,
    passes its own options on: `super().__init__(env, options)`.

    Args:
        kind: the class of the options, a subclass of `Options`.

    Example:
        ```python
        class MyAgent(tfdpg.Agent):
            @takes_options(MyOptions)
            def __init__(self, env, options):
                super().__init__(env, options, declare)
        ```
    """

    def decorate(function: Callable[[Owner, First, Group], Result]) -> Callable[Concatenate[Owner, First, P], Result]:
        plain = inspect.signature(function)
        parameters = list(plain.parameters.values())[:-1]
        first = [parameter.name for parameter in parameters]
        lines = (function.__doc__ or "").splitlines()
        at = next((i for i, line in enumerate(lines) if line.lstrip().startswith("options: ")), len(lines))
        indent = lines[at].partition("options")[0] if lines[at:] else ""
        help_lines = []
        for option in options_of(cast(type[Options], kind)):
            default = inspect.Parameter.empty if option.default is dataclasses.MISSING else option.default
            annotation = option.kind if isinstance(option.kind, str) else without_ranges(option.kind)
            parameters.append(
                inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            )
            help_lines.append(f"{indent}{option.name}: {option.help}")
        signature = plain.replace(parameters=parameters)

        @functools.wraps(function)
        def with_options(*args: Any, **kwargs: Any) -> Any:
            if len(args) > len(first) and isinstance(args[-1], cast(Any, kind)) and not kwargs:
                return cast(Any, function)(*args)  # from the constructor of a subclass
            try:
                bound = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(call_error(function, signature, args, kwargs, error)) from None
            given = [bound.pop(name) for name in first]
            return cast(Any, function)(*given, cast(Any, kind)(**bound))

        cast(Any, with_options).__signature__ = signature
        cast(Any, with_options).options_class = kind
        with_options.__doc__ = "\n".join([*lines[:at], *help_lines, *lines[at + 1 :]])
        return cast(Callable[Concatenate[Owner, First, P], Result], with_options)

    return decorate
