"""What an option is: an annotated field, its range in its type, its help under it.

Groups of options are frozen dataclasses with keyword-only fields. From them come the signatures and documentation of
what takes them (`takes`), the flags of the command line, the saved configuration and the documentation's tables.
"""

import ast
import dataclasses
import functools
import inspect
import itertools
import sys
import typing
from collections.abc import Callable, Collection, Sequence
from typing import (
    Annotated,
    Any,
    ClassVar,
    Concatenate,
    NamedTuple,
    ParamSpec,
    TypeVar,
    cast,
    dataclass_transform,
)

from tfdpg.arguments import reject
from tfdpg.hints import call_error, schedule_as_rate
from tfdpg.ranges import INVALID, Within, convert_value, describe_type, without_ranges

P = ParamSpec("P")
Owner = TypeVar("Owner")
First = TypeVar("First")
Group = TypeVar("Group")
Result = TypeVar("Result")


class Only:
    """Marks an option that does nothing unless others have these values: `Only(noise="ou")`."""

    def __init__(self, **others: Any):
        self.others = others


class Mark(NamedTuple):
    """What else an option may be."""

    name: str


Structural = Mark("structural")
"""A saved agent keeps it."""
Unsaved = Mark("unsaved")
"""It is not saved with the other options."""
BuiltIn = Mark("built_in")
"""It says how stock networks are made, and nothing beside networks of one's own."""


class Option(NamedTuple):
    """An option.

    Attributes:
        name: its name.
        kind: its type, without marks; an object's is a text.
        default: its default; `dataclasses.MISSING` where there is none.
        help: what it does.
        group: the title of its group.
        is_object: whether it is something that no text describes: a network, an optimizer, a callable.
        marks: what its annotation has beside its type.
    """

    name: str
    kind: Any
    default: Any
    help: str
    group: str
    is_object: bool
    marks: tuple[Any, ...]

    def take(self, value: Any) -> Any:
        """Returns a value as its type has it, or raises `ValueError`; objects are checked where they are used."""
        if self.is_object:
            return value
        converted = convert_value(self.kind, value)
        if converted is INVALID:
            hint = schedule_as_rate(self.name, value)
            raise ValueError(f"{reject(self.name, describe_type(self.kind), value)}{hint}")
        return converted

    @property
    def parameter(self) -> inspect.Parameter:
        """The keyword argument."""
        default = inspect.Parameter.empty if self.default is dataclasses.MISSING else self.default
        kind = self.kind if isinstance(self.kind, str) else without_ranges(self.kind)
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)

    @property
    def type_text(self) -> str:
        """The type with its range, for people."""
        return self.kind if isinstance(self.kind, str) else describe_type(self.kind)


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Options:
    """A group of options; a subclass declares its own, and may give inherited ones another default: `gamma = 0.9`.

    What its type does not allow is refused with a `ValueError` that names the option, what was expected and what came;
    and so is what does nothing beside other options (`Only`, `check`).
    """

    title: ClassVar[str] = "options"
    holds_objects: ClassVar[bool] = False
    marks: ClassVar[tuple[Mark, ...]] = ()
    redefaulted: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, *, group: str | None = None, objects: bool = False, marks: tuple[Mark, ...] = ()):
        cls.title = group or cls.title
        cls.holds_objects = objects
        cls.marks = marks
        known = {field.name: field for base in reversed(cls.__mro__[1:]) for field in _own_fields(base)}
        annotations = dict(vars(cls).get("__annotations__", {}))
        changed = {name: known[name].type for name in vars(cls) if name in known and name not in annotations}
        cls.__annotations__ = annotations | changed
        cls.redefaulted = frozenset(changed)
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        options = options_of(type(self))
        for option in options:
            object.__setattr__(self, option.name, option.take(getattr(self, option.name)))
        for option in options:
            for other, value in (
                pair for mark in option.marks if isinstance(mark, Only) for pair in mark.others.items()
            ):
                if getattr(self, other) != value:
                    self.refuse([option.name], f"`{other}` is {getattr(self, other)!r}")
        for group in reversed(type(self).__mro__):
            if "check" in vars(group):
                vars(group)["check"](self)

    def check(self) -> None:
        """Raises `ValueError` for options of this group, and those before it, that do not go together."""

    def is_changed(self, name: str) -> bool:
        """Whether an option is not at its default."""
        option = next(option for option in options_of(type(self)) if option.name == name)
        value = getattr(self, name)
        plain = (bool, int, float, str, tuple)
        equal = isinstance(value, plain) and isinstance(option.default, plain) and value == option.default
        return value is not option.default and not equal

    @classmethod
    def names(cls, mark: Mark) -> list[str]:
        """The options with a mark."""
        return [option.name for option in options_of(cls) if mark in option.marks]

    def refuse(self, names: Collection[str], why: str) -> None:
        """Raises `ValueError` if one of `names` was changed, where `why` says that it has no effect."""
        for name in names:
            if self.is_changed(name):
                raise ValueError(f"`{name}` does nothing where {why}. Received: {name}={getattr(self, name)!r}")

    def values(self, without: Collection[str] = ()) -> dict[str, Any]:
        """The options by name, but some."""
        return {o.name: getattr(self, o.name) for o in options_of(type(self)) if o.name not in without}


@functools.cache
def options_of(kind: type[Options]) -> tuple[Option, ...]:
    """The options of a group: its own, then those of the groups that it inherits, in their order; objects come last."""
    defaults = {field.name: field.default for field in dataclasses.fields(cast(Any, kind))}
    options = {}
    for group in kind.__mro__:
        for field in _own_fields(group):
            if field.name not in options and field.name not in cast(Any, group).redefaulted:
                options[field.name] = _option(kind, group, field, defaults[field.name])
    return tuple(sorted(options.values(), key=lambda option: option.is_object))


def _own_fields(group: type) -> list[dataclasses.Field[Any]]:
    fields = dataclasses.fields(group) if dataclasses.is_dataclass(group) else ()
    return [field for field in fields if field.name in vars(group).get("__annotations__", {})]


def _option(kind: type[Options], group: type[Options], field: dataclasses.Field[Any], default: Any) -> Option:
    help_texts = (
        _help_texts(each.__module__, each.__qualname__).get(field.name) for each in kind.__mro__ if each is not object
    )
    help_text = next(filter(None, help_texts), "")
    annotated = cast(Any, field.type)
    marks = group.marks
    if typing.get_origin(annotated) is Annotated:
        marks += tuple(mark for mark in annotated.__metadata__ if not isinstance(mark, Within))
        ranges = [mark for mark in annotated.__metadata__ if isinstance(mark, Within)]
        annotated = Annotated[annotated.__origin__, ranges[0]] if ranges else annotated.__origin__
    if isinstance(annotated, typing.ForwardRef):
        annotated = annotated.__forward_arg__
    return Option(field.name, annotated, default, help_text, group.title, group.holds_objects, marks)


@functools.cache
def _help_texts(module: str, group: str) -> dict[str, str]:
    """The texts under the fields of a class, by the fields' names."""
    help_texts = {}
    body = _classes(module).get(group, [])
    for statement, text in itertools.pairwise(body):
        match statement, text:
            case (
                ast.AnnAssign(target=ast.Name(name)) | ast.Assign(targets=[ast.Name(name)]),
                ast.Expr(ast.Constant(str(help))),
            ):
                help_texts[name] = " ".join(help.split())
    return help_texts


@functools.cache
def _classes(module: str) -> dict[str, list[ast.stmt]]:
    """What the classes of a module consist of."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError):  # installed without sources, or defined in a shell
        return {}
    return {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}


def takes_options(
    kind: Callable[P, Group],
) -> Callable[[Callable[[Owner, First, Group], Result]], Callable[Concatenate[Owner, First, P], Result]]:
    """Makes a function of two arguments and a group of options one that takes the options as keyword arguments.

    Its signature, and its documentation where that says `options: ...`, list them. Its attribute `options_class` is the
    group.

    Args:
        kind: the group.
    """

    def decorate(function: Callable[[Owner, First, Group], Result]) -> Callable[Concatenate[Owner, First, P], Result]:
        options = options_of(cast(type[Options], kind))
        plain = inspect.signature(function)
        first = list(plain.parameters.values())[:-1]
        keywords = [option.parameter for option in options]
        signature = plain.replace(parameters=[*first, *keywords])

        @functools.wraps(function)
        def with_options(*args: Any, **kwargs: Any) -> Any:
            try:
                bound = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(call_error(function, signature, args, kwargs, error)) from None
            given = [bound.pop(parameter.name) for parameter in first]
            return cast(Any, function)(*given, cast(Any, kind)(**bound))

        cast(Any, with_options).__signature__ = signature
        cast(Any, with_options).options_class = kind
        with_options.__doc__ = documented(function.__doc__ or "", options)
        return cast(Callable[Concatenate[Owner, First, P], Result], with_options)

    return decorate


def documented(doc: str, options: Sequence[Option]) -> str:
    """A docstring whose line `options: ...` becomes a line for each option."""
    lines = []
    for line in doc.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        if line.lstrip().startswith("options: "):
            lines += [f"{indent}{option.name}: {option.help}" for option in options]
        else:
            lines.append(line)
    return "\n".join(lines)
