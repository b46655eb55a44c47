"""Declarations of options: an option is an annotated field with its range in the type and its help text below it.

Options are frozen dataclasses with keyword-only fields. The signatures and documentation of the functions
that take them (`takes_options`), the flags of the command line, the saved configuration and the tables in the
documentation are generated from them.
"""

import ast
import dataclasses
import functools
import inspect
import itertools
import sys
import textwrap
import typing
from collections.abc import Callable, Collection, Mapping
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Concatenate,
    Literal,
    NamedTuple,
    ParamSpec,
    Self,
    TypeVar,
    cast,
    dataclass_transform,
)

from tfdpg.arguments import check_value, shown
from tfdpg.hints import call_error, reject_schedule
from tfdpg.ranges import Within, describe_type, without_ranges

P = ParamSpec("P")
Owner = TypeVar("Owner")
First = TypeVar("First")
Kind = TypeVar("Kind")
Result = TypeVar("Result")


class Not:
    """All values of an option but some, for `Only`: `Only(recurrent=Not(None))`.

    Args:
        *values: the excluded values.
    """

    def __init__(self, *values: Any):
        self.values = values

    def __contains__(self, value: Any) -> bool:
        return value not in self.values


class Only:
    """Marks an option that has an effect only if one of some other options has a certain value.

    If the marked option is changed although no condition holds, the constructor of the options raises `ValueError`.
    Several marks `Only` of an option must all hold.

    Args:
        why: the reason, for the message: what is the case where the option has no effect. None names the other options
            and their values.
        others: the conditions: values of other options, by name. A tuple lists several values, and `Not` those that are
            excluded. Without any condition, the option never has an effect.

    Example:
        ```python
        ou_theta: Annotated[Fraction, Only(noise="ou")] = 0.15
        alpha: Annotated[Fraction | None, Only(replay=("prioritized", "lap"))] = None
        burn_in: Annotated[Natural, Only(recurrent=Not(None))] = 10
        ```
    """

    def __init__(self, why: str | None = None, /, **others: Any):
        self.others = {name: value if isinstance(value, tuple | Not) else (value,) for name, value in others.items()}
        self.why = why

    def problem(self, values: Mapping[str, Any]) -> str | None:
        """Return the reason for which the marked option has no effect; None if it has one.

        Args:
            values: the values of all options, by name.
        """
        if any(values[name] in allowed for name, allowed in self.others.items()):
            return None
        return self.why or " and ".join(f"`{name}` is {_stated(values[name])}" for name in self.others)


def _stated(value: Any) -> str:
    return repr(value) if value is None or isinstance(value, bool | int | float | str | tuple) else "your own"


class Mark(NamedTuple):
    """A property of an option, given in its annotation: `Annotated[Count, Structural]`."""

    name: str


Structural = Mark("structural")
"""The option of a saved agent cannot be changed."""
Unsaved = Mark("unsaved")
"""The option is not saved with the others."""
BuiltIn = Mark("built_in")
"""The option describes built-in networks and has no effect on custom networks."""
OBJECTS = "objects"
"""The title of the group of options that only Python code can pass."""


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
        marks: those of its group, those in its annotation beside the type and the range, and what `unused` says.
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


class Group:
    """The heading of a group of options in a class: the fields below it, up to the next heading, belong to the group.

    Args:
        title: the title in the documentation and in the help of the command line. The options of "objects" are those
            that only Python code can pass.
        marks: marks of all options of the group.

    Example:
        ```python
        MEMORY: ClassVar = Group("memory", BuiltIn)

        burn_in: Natural = 10
        ```
    """

    def __init__(self, title: str, *marks: Mark):
        self.title = title
        self.marks = marks


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Options:
    """Options of a function. A subclass declares options and may change inherited defaults: `gamma = 0.9`.

    A field is an option. Its annotation contains the range, and the string below it is its description. The class is a
    frozen dataclass with keyword-only fields. A class argument `group` is the title of the group of the fields that
    have no heading (`Group`); it is inherited. The class argument `without` has the names of inherited options that the
    subclass does not take: its attribute has the default, or the value that the class gives it.

    An instance notes which options have been read as attributes, but not those that functions such as `values` and
    `repr` list. The agent raises `ValueError` for a changed option that nothing has read: for options of built-in
    networks (`BuiltIn`) when it is built, and for the others when its `update` is traced for the first time, before
    updates are made. An agent with `run_eagerly` raises it after the first updates, when each optimizer has made a
    step. Read an option where the value is used, as `self.options.name`: what the constructor reads counts as read.

    Attributes:
        unused: why inherited options have no effect, by name: a reason, or a condition, `Only`. An entry replaces an
            inherited one, and None removes it.

    Example:
        ```python
        class MyOptions(TD3Options, without=("policy_gradient",)):
            unused = {"action_l2": "the loss of the policy has no such term"}

            batch_size = 256
            temperature: Positive = 1.0
            "temperature of the policy."
        ```

    Raises:
        ValueError: a value that the option's type does not allow, or an option that has no effect with the others
            (`Only`, `unused`), or excludes one of them (`check`). The message names the option.
    """

    title: ClassVar[str] = "options"
    unused: ClassVar[Mapping[str, str | Only | None]] = {}

    def __init_subclass__(cls, *, group: str | None = None, without: Collection[str] = ()):
        own = inspect.get_annotations(cls)
        inherited = {}
        for base in reversed(cls.__mro__[1:]):
            inherited |= inspect.get_annotations(base)
        # The dataclass needs an annotation for each new default; afterwards only the class's own fields keep theirs.
        cls.__annotations__ = {name: inherited[name] for name in vars(cls) if name in inherited} | own
        cls.__annotations__ |= dict.fromkeys(without, ClassVar[Any])
        dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)(cls)
        cls.__annotations__ = own
        cls.title = group or cls.title
        cls.unused = {name: why for base in reversed(cls.__mro__) for name, why in vars(base).get("unused", {}).items()}
        for name in {*without, *cls.unused} - inherited.keys() - own.keys():
            raise TypeError(f"{cls.__name__} has no option {name!r}")

    def __post_init__(self) -> None:
        options = options_of(type(self))
        for option in options:
            if not option.is_object:
                value = vars(self)[option.name]
                reject_schedule(option.name, value)
                object.__setattr__(self, option.name, check_value(option.name, option.kind, value))
        # An option that the class does not take has its default.
        values = {name: getattr(self, name) for name in cast(Any, type(self)).__dataclass_fields__}
        for option in options:
            problems = (mark.problem(values) for mark in option.marks if isinstance(mark, Only))
            if why := next(filter(None, problems), None):
                self.refuse({option.name: why})
        for group in reversed(type(self).__mro__):
            if "check" in vars(group):
                vars(group)["check"](self)
        object.__setattr__(self, "_read", set())

    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __getattribute__(self, name: str) -> Any:
            read = object.__getattribute__(self, "__dict__").get("_read")
            if read is not None:
                read.add(name)
            return object.__getattribute__(self, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.values().items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Options) and type(self) is type(other) and self.values() == other.values()

    def check(self) -> None:
        """Raise `ValueError` for an inconsistent combination of this class's options. Every base's check runs first."""

    def is_changed(self, name: str) -> bool:
        """Return whether an option differs from its default. Objects are compared by identity.

        Args:
            name: the name of the option.
        """
        option = next(option for option in options_of(type(self)) if option.name == name)
        value = vars(self)[name]
        return value is not option.default if option.is_object else value != option.default

    @classmethod
    def names(cls, mark: Mark) -> list[str]:
        """Return the names of the options with a mark.

        Args:
            mark: `Structural`, `Unsaved` or `BuiltIn`.
        """
        return [option.name for option in options_of(cls) if mark in option.marks]

    def refuse(self, unused: Mapping[str, str]) -> None:
        """Raise `ValueError` if one of these options was changed although it has no effect. None is always accepted.

        Args:
            unused: why they have no effect, by name: "`noise` is None".
        """
        for name, why in unused.items():
            if self.is_changed(name) and vars(self)[name] is not None:
                raise without_effect(name, f"where {why}", vars(self)[name])

    def conflict(self, what: str, *names: str) -> ValueError:
        """Return the error for options that exclude each other. The caller raises it.

        Args:
            what: what is wrong, as a sentence.
            names: the names of the options whose values the message shows.
        """
        received = ", ".join(f"{name}={shown(vars(self)[name])}" for name in names)
        return ValueError(f"{what} Received: {received}")

    def refuse_unread(self, where: str, names: Collection[str] | None = None) -> None:
        """Raise `ValueError` if an option was changed and has never been read as an attribute.

        After a call for all options that has raised no error, nothing is noted any more, and further calls return.

        Args:
            where: where the options have no effect, for the message: "in TD3, which never reads it".
            names: the names of the options; None is all.
        """
        read = vars(self)["_read"]
        if read is None:
            return
        for name, value in self.values(without=read).items():
            if (names is None or name in names) and self.is_changed(name):
                raise without_effect(name, where, value)
        if names is None:
            object.__setattr__(self, "_read", None)

    def replaced(self, **changes: Any) -> Self:
        """Return options with other values. What was read remains noted.

        Args:
            **changes: the new values.
        """
        other = type(self)(**self.values() | changes)
        object.__setattr__(other, "_read", vars(self)["_read"])
        return other

    def values(self, without: Collection[str] = ()) -> dict[str, Any]:
        """Return the values of the options by name.

        Args:
            without: the names of options to leave out.
        """
        return {o.name: vars(self)[o.name] for o in options_of(type(self)) if o.name not in without}


def without_effect(name: str, where: str, value: Any) -> ValueError:
    """Return the error for an option that was changed although it has no effect. The caller raises it.

    Args:
        name: the name of the option.
        where: the condition under which it has no effect: "where `noise` is None".
        value: its value.
    """
    return ValueError(f"`{name}` does nothing {where}. Received: {name}={shown(value)}")


@functools.cache
def options_of(kind: type[Options]) -> tuple[Option, ...]:
    """Return the options of a class: its own, then inherited ones in the order of the bases, with objects last."""
    fields = {field.name: field for field in dataclasses.fields(cast(Any, kind))}
    help_texts: dict[str, str] = {}
    options: dict[str, Option] = {}
    for owner in kind.__mro__:
        help_texts = _help_texts(owner) | help_texts
        group = Group(getattr(owner, "title", ""))
        for name in inspect.get_annotations(owner):
            group = vars(owner)[name] if isinstance(vars(owner).get(name), Group) else group
            if name in fields and name not in options:
                options[name] = _option(kind, group, fields[name], help_texts.get(name, ""))
    return tuple(sorted(options.values(), key=lambda option: option.is_object))


def _option(owner: type[Options], group: Group, field: dataclasses.Field[Any], help_text: str) -> Option:
    kind = cast(Any, field.type)
    if isinstance(field.type, str) and group.title != OBJECTS:  # after `from __future__ import annotations`
        definer = next(each for each in owner.__mro__ if field.name in inspect.get_annotations(each))
        kind = cast(Any, eval(field.type, vars(sys.modules[definer.__module__])))
    marks: tuple[Any, ...] = group.marks
    if typing.get_origin(kind) is Annotated:
        ranges = [mark for mark in kind.__metadata__ if isinstance(mark, Within)]
        marks += tuple(mark for mark in kind.__metadata__ if not isinstance(mark, Within))
        kind = Annotated[kind.__origin__, ranges[0]] if ranges else kind.__origin__
    if isinstance(kind, typing.ForwardRef):
        kind = kind.__forward_arg__
    if unused := owner.unused.get(field.name):
        marks += (Only(unused) if isinstance(unused, str) else unused,)
    return Option(field.name, kind, field.default, help_text, group.title, group.title == OBJECTS, marks)


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
    kind: Callable[P, Kind],
) -> Callable[[Callable[[Owner, First, Kind], Result]], Callable[Concatenate[Owner, First, P], Result]]:
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

    def decorate(function: Callable[[Owner, First, Kind], Result]) -> Callable[Concatenate[Owner, First, P], Result]:
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
