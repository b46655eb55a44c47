"""Options are declared once: validation, documentation, configuration and flags come from one field."""

import dataclasses
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import pytest

from tfdpg.options import BuiltIn, Group, Mark, Not, Only, Options, Structural, options_of, takes_options
from tfdpg.ranges import (
    Count,
    Fraction,
    Natural,
    NonNegative,
    Positive,
    PositiveOrInfinite,
    convert_value,
    describe_type,
)

Loud = Mark("loud")


class Sound(Options, group="sound"):
    """The sound."""

    volume: Annotated[Fraction, Loud] = 0.5
    """volume, in [0, 1]."""
    kind: Literal["sine", "noise"] = "sine"
    """the waveform."""
    colour: Annotated[str, Only(kind="noise")] = "white"
    """colour of the noise."""


class Player(Options):
    """The player."""

    OBJECTS: ClassVar = Group("objects", Structural)

    player: "Person | None" = None  # noqa: F821
    """the player."""


class Concert(Sound, Player, group="concert"):
    """The programme."""

    pieces: Sequence[Count] = (1, 2)
    """lengths of the pieces."""
    volume = 0.9
    """louder than at home."""

    def check(self):
        """Reject noise in three pieces."""
        if self.kind == "noise" and len(self.pieces) == 3:
            raise ValueError("no noise in three pieces")


class Rehearsal(Concert, without=("player", "kind")):
    """A concert without an audience, always of noise."""

    unused = {"volume": "nobody listens", "pieces": Only("it is a short one", kind="sine", colour=Not("white"))}
    kind = "noise"


class Hall:
    @takes_options(Concert)
    def __init__(self, place, options: Concert):
        """Open the hall.

        Args:
            place: the town.
            options: keyword arguments.
        """
        self.place = place
        self.options = options


@pytest.mark.parametrize(
    "kind, fit, unfit, words",
    [
        (Count, [1, np.int64(7)], [0, True, 1.0, "1", None], "a positive integer"),
        (Natural, [0], [-1, False], "an integer of at least 0"),
        (Fraction, [0, 1.0, np.float32(0.5)], [-0.1, 1.1, np.nan, True], "a finite number in [0, 1]"),
        (NonNegative, [0, 1e9], [-1e-9, np.inf], "a finite number of at least 0"),
        (Positive, [1e-9], [0, np.inf, "1"], "a number above 0"),
        (PositiveOrInfinite, [np.inf], [0, -1, np.nan], "a number above 0, or infinity"),
        (float, [-1e9], [np.nan, np.inf, None], "a finite number"),
        (bool, [True], [1, "True", None], "True or False"),
        (Count | None, [None, 3], [0], "a positive integer or None"),
        (Count | Literal["episode"], ["episode", 5], ["day", 0], 'a positive integer or "episode"'),
        (Sequence[Count], [[], (1, 2)], ["12", [0], 1], "a sequence of positive integers"),
        (Literal[1, 2], [1], [True, 3, 1.0], "1 or 2"),
        (str | Path | None, ["a", Path("b"), None], [1], "a string, a path or None"),
        (dict[str, int], [{}], [[]], "a dict"),
    ],
)
def test_types_say_what_they_take(kind, fit, unfit, words):
    assert describe_type(kind) == words
    for value in fit:
        taken = convert_value(kind, value)
        assert taken == (tuple(value) if isinstance(value, list) else value)
    refused = {convert_value(kind, value) for value in unfit}
    assert len(refused) == 1 and type(refused.pop()) is object


def test_numbers_become_those_of_python():
    assert type(Sound(volume=1).volume) is float and type(convert_value(Count, np.int32(3))) is int
    assert Concert(pieces=[3]).pieces == (3,)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"volume": 2}, r"^`volume` must .*\[0, 1\]. .*volume=2$"),
        ({"kind": "song"}, '^`kind` must be "sine" or "noise"'),
        ({"colour": "pink"}, "^`colour` does .*'sine'.*colour='pink'$"),
        ({"kind": "noise", "pieces": [1, 1, 1]}, "no noise in three pieces"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(given, message):
    with pytest.raises(ValueError, match=message):
        Concert(**given)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"volume": 0.5}, r"^`volume` does nothing where nobody listens\. Received: volume=0\.5$"),
        ({"pieces": [3]}, "^`pieces` does nothing where it is a short one. "),
        ({"colour": "pink", "pieces": [1, 1, 1]}, "no noise in three pieces"),
    ],
)
def test_a_class_may_leave_options_out_and_say_when_inherited_ones_have_no_effect(given, message):
    with pytest.raises(ValueError, match=message):
        Rehearsal(**given)
    assert [option.name for option in options_of(Rehearsal)] == ["pieces", "volume", "colour"]
    assert Rehearsal(colour="pink", pieces=[3]).kind == "noise" and Rehearsal().player is None
    with pytest.raises(TypeError, match="kind"):
        Rehearsal(kind="sine")


def test_a_changed_option_that_was_never_read_as_an_attribute_is_refused():
    options = Concert(volume=0.5, pieces=[3], kind="noise")
    assert repr(options).startswith("Concert(pieces=(3,), volume=0.5") and options == Concert(**options.values())
    assert options.is_changed("volume") and options.kind == "noise"
    options.refuse_unread("here", ["kind", "colour"])
    with pytest.raises(ValueError, match=r"^`pieces` does nothing here\. Received: pieces=\(3,\)$"):
        options.refuse_unread("here")
    assert options.pieces == (3,)
    louder = options.replaced(volume=0.7)  # what was read counts for it, too
    with pytest.raises(ValueError, match="`volume` does nothing here. Received: volume=0.7"):
        louder.refuse_unread("here")
    assert louder.volume == 0.7
    louder.refuse_unread("here")


def test_a_group_is_frozen_and_compares():
    assert Concert() == Concert(volume=0.9) and Concert(kind="noise", colour="pink").colour == "pink"
    with pytest.raises(dataclasses.FrozenInstanceError):
        Concert().volume = 1
    with pytest.raises(TypeError, match="positional"):
        Concert(0.5)


def test_groups_inherit_options_helps_and_marks():
    options = {option.name: option for option in options_of(Concert)}
    assert list(options) == ["pieces", "volume", "kind", "colour", "player"]
    assert [option.group for option in options.values()] == ["concert", "sound", "sound", "sound", "objects"]
    assert options["volume"].default == 0.9 and options["volume"].help == "louder than at home."
    assert options["kind"].help == "the waveform." and {o.name: o.help for o in options_of(Sound)}["volume"] != "louder"
    assert Concert.names(Loud) == ["volume"] and Concert.names(Structural) == ["player"]
    assert options["player"].is_object and options["player"].kind == "Person | None"
    assert Concert(player=3).values(without=["player", "pieces"]) == {"volume": 0.9, "kind": "sine", "colour": "white"}
    assert Concert(volume=0.5).is_changed("volume") and not Concert(pieces=[1, 2]).is_changed("pieces")


def test_the_signature_and_the_help_of_what_takes_them():
    signature = inspect.signature(Hall)
    assert list(signature.parameters) == ["place", "pieces", "volume", "kind", "colour", "player"]
    assert signature.parameters["volume"].annotation is float and signature.parameters["volume"].default == 0.9
    assert signature.parameters["volume"].kind is inspect.Parameter.KEYWORD_ONLY
    assert "            volume: louder than at home.\n" in Hall.__init__.__doc__
    assert Hall("here", volume=1).options.volume == Hall(place="here", volume=1.0).options.volume == 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"volme": 1}, r"unexpected .*'volme'. .*mean `volume`\?$"),
        ({"zzz": 1}, "unexpected keyword argument 'zzz'$"),
    ],
)
def test_an_unknown_argument_is_named_and_the_nearest_one(arguments, message):
    with pytest.raises(TypeError, match=message):
        Hall("here", **arguments)
    with pytest.raises(TypeError, match="missing a required argument: 'place'"):
        Hall(**{})


def test_every_option_of_the_agents_has_a_help_and_objects_stand_apart():
    from tfdpg.agents.options import OPTIONS

    for kind in OPTIONS.values():
        for option in options_of(kind):
            assert option.help.endswith(".") and option.type_text, option.name
            assert option.is_object == (option.group == "objects") == isinstance(option.kind, str)
    memory = {
        "recurrent",
        "recurrent_units",
        "remembers",
        "sequence_length",
        "burn_in",
        "stored_state",
        "norm",
        "blocks",
    }
    assert {"hidden_units", "activation", "torso", "l2", "encoder"} | memory == set(OPTIONS["D4PG"].names(BuiltIn))


def test_the_help_of_a_training_needs_no_tensorflow_and_has_groups():
    code = (
        "import sys, json, tfdpg.cli\n"
        "try: tfdpg.cli.main(['train', 'td3', '--help'])\n"
        "except SystemExit as end: assert not end.code\n"
        "print(json.dumps(sorted({'tensorflow', 'keras'} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    titles = re.findall(r"─ ([a-z -]+) options ─", done.stdout)
    assert titles[:5] == ["environment", "training", "run", "schedule", "exploration"]
    assert titles[-1] == "rollout-workers"
    assert json.loads(done.stdout.splitlines()[-1]) == []
    assert "--pi-lr" in done.stdout and "--encoder" not in done.stdout
