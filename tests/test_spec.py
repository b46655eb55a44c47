import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from tfdpg import Spec
from tfdpg.spec import Spec as SpecClass

BOX = spaces.Box(-1, 1, (2,), np.float32)
ACTION = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))
OBSERVATIONS = {
    "box": spaces.Box(-np.inf, np.array([1.0, np.inf, 3.0], np.float32)),
    "scalar": spaces.Box(0, 1, (), np.float64),
    "matrix": spaces.Box(-1, 1, (2, 3), np.float64),
    "integers": spaces.Box(0, 9, (3,), np.int64),
    "image": spaces.Box(0, 255, (4, 4, 3), np.uint8),
    "discrete": spaces.Discrete(4, start=-1),
    "multi": spaces.MultiDiscrete([3, 4], start=[1, 0]),
    "bits": spaces.MultiBinary(3),
    "table of bits": spaces.MultiBinary([2, 3]),
    "types": spaces.Dict(small=spaces.Discrete(3, dtype=np.int32), big=spaces.Box(0, 2**31, (2,), np.int64)),
    "dict": spaces.Dict(position=BOX, picture=spaces.Box(0, 255, (3, 3), np.uint8), phase=spaces.Discrete(3)),
    "tuple": spaces.Tuple([spaces.Discrete(3), BOX]),
    "nested": spaces.Dict(arm=spaces.Dict(on=spaces.MultiBinary(2), eye=spaces.Box(0, 255, (2,), np.uint8)), hand=BOX),
    "nested tuple": spaces.Tuple([spaces.Tuple([BOX]), spaces.Dict(a=spaces.Discrete(2)), BOX]),
}


def stacked(space, samples):
    """Return a batch as vector environments do."""
    if isinstance(space, spaces.Dict):
        return {key: stacked(part, [sample[key] for sample in samples]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(
            stacked(part, column) for part, column in zip(space.spaces, zip(*samples, strict=True), strict=True)
        )
    return np.stack(samples)


@pytest.mark.parametrize("space", OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_packing_keeps_every_value(space):
    spec = Spec(space, ACTION)
    space.seed(0)
    samples = [space.sample() for _ in range(3)]
    rows = [spec.pack(sample) for sample in samples]
    batch = stacked(space, samples)
    assert spec.is_single(samples[0]) and not spec.is_single(batch)
    packed = spec.pack(batch)
    for i, part in enumerate(packed):
        np.testing.assert_array_equal(part, np.concatenate([row[i] for row in rows]))
    arrays = spec.unpack(packed)
    for (name, values), leaf in zip(arrays.items(), spec.leaves, strict=True):
        original = batch
        for key in leaf.path:
            original = original[key]
        np.testing.assert_allclose(values, original, rtol=1e-6)
        np.testing.assert_array_equal(spec.by_name(batch)[name], original)
    if spec.is_dict:
        np.testing.assert_equal(spec.pack(arrays), packed)
    np.testing.assert_equal(spec.pack(spec.nested(arrays)), packed)


def test_the_name_of_an_array_is_its_path():
    names = {
        kind: list(Spec(OBSERVATIONS[kind], ACTION).shapes) for kind in ("dict", "tuple", "nested", "nested tuple")
    }
    assert names == {
        "dict": ["position", "picture", "phase"],
        "tuple": ["x__0", "x__1"],
        "nested": ["arm__on", "arm__eye", "hand"],
        "nested tuple": ["x__0__0", "x__1__a", "x__2"],
    }


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict(arm=spaces.Dict(joint=BOX), arm__joint=BOX),
        spaces.Dict(arm=spaces.Tuple([BOX]), arm__0=BOX),
        spaces.Dict(arm=spaces.Dict(hand__on=BOX, hand=spaces.Dict(on=BOX))),
    ],
)
def test_keys_that_give_one_name_are_refused(space):
    with pytest.raises(
        ValueError, match=r"The keys 'arm.*' and 'arm.*' .* give the same name, 'arm__\w+'.*Rename"
    ) as error:
        Spec(space, ACTION)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "kind, observation, received",
    [
        ("tuple", [0, np.zeros(2)], "list"),
        ("tuple", (0,), "tuple"),
        ("nested", {"arm": {"on": np.zeros(2)}, "hand": np.zeros(2)}, r"\['arm', 'hand'\]"),
        ("nested", {"arm": np.zeros(2), "hand": np.zeros(2)}, r"\['arm', 'hand'\]"),
        ("nested", np.zeros(6), "ndarray"),
    ],
)
def test_observations_that_are_not_nested_as_the_space_are_refused(kind, observation, received):
    with pytest.raises(
        ValueError, match=f"nested as the observation space.*the keys and shapes.*Received: .*{received}"
    ):
        Spec(OBSERVATIONS[kind], ACTION).pack(observation)


@pytest.mark.parametrize("space", OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_json_round_trip(space):
    import json

    spec = Spec(space, ACTION)
    again = SpecClass.from_json(json.loads(json.dumps(spec.to_json())))
    assert again.observation_space == space
    assert again.action_space == ACTION
    assert [leaf.name for leaf in again.leaves] == [leaf.name for leaf in spec.leaves]


@pytest.mark.parametrize(
    "action_space",
    [
        spaces.MultiDiscrete([2, 2]),
        spaces.Box(-np.inf, np.inf, (2,)),
        spaces.Box(-3e38, 3e38, (2,)),
        spaces.MultiBinary(2),
        spaces.Box(0, 0, (2,), np.int64),
        spaces.Box(np.array([0.0, 1.0], np.float32), np.array([1.0, 1.0], np.float32)),
    ],
)
def test_action_spaces_that_are_refused_by_name(action_space):
    with pytest.raises(ValueError) as error:
        Spec(BOX, action_space)
    assert str(action_space) in str(error.value)
    assert "Box with finite bounds" in str(error.value)


@pytest.mark.parametrize(
    "space, named",
    [
        (spaces.Tuple([BOX, spaces.Text(3)]), "under the key '1'"),
        (spaces.Dict(inner=spaces.Dict(x=spaces.Sequence(BOX))), "under the key 'inner/x'"),
        (spaces.Dict(inner=spaces.Dict({"not a name": BOX})), "'not a name'"),
        (spaces.Dict(a=BOX), "'a'"),
        (spaces.Dict({"self": BOX}), "'self'"),
        (spaces.Dict({"not a name": BOX}), "'not a name'"),
        (spaces.Dict({0: BOX}), "The key 0 "),
        (spaces.Dict({"class": BOX}), "'class'"),
        (spaces.Dict(), "empty"),
        (spaces.Tuple([spaces.Dict()]), "empty"),
        (spaces.Text(3), "Text"),
        (spaces.Discrete(3, start=2**25), "16777216"),
        (spaces.MultiDiscrete([3, 2**25]), "16777216"),
    ],
)
def test_observation_spaces_that_are_refused_by_name(space, named):
    with pytest.raises(ValueError, match=named):
        Spec(space, ACTION)


@pytest.mark.parametrize(
    "low, high, dtype",
    [
        (1e8, 1e8 + 1, np.float64),
        (1e8, 1e8 + 100, np.float64),
        (1e6, 1e6 + 10, np.float32),
        (-1e-50, 1e-50, np.float64),
        (-1e-40, 1e-40, np.float32),
        (3e38, 3.3e38, np.float32),
    ],
)
def test_boxes_that_float32_does_not_resolve_are_refused(low, high, dtype):
    bounds = (np.array([value, 1 if value > low else -1], dtype) for value in (low, high))
    space = spaces.Box(*bounds, dtype=dtype)
    with pytest.raises(ValueError, match="too narrow, .*for float32.*RescaleAction"):
        Spec(BOX, space)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64])
def test_integers_beyond_those_of_float32_are_refused(dtype):
    with pytest.raises(ValueError, match="beyond ±16777216"):
        Spec(BOX, spaces.Box(0, 2**24 + 1, (2,), dtype))
    space = spaces.Box(0, 2**24, (2,), dtype)
    spec = Spec(BOX, space)
    actions = spec.to_env(np.array([spec.low, spec.high, spec.high - 1]))
    np.testing.assert_array_equal(actions[:, 0], [0, 2**24, 2**24 - 1])
    assert all(space.contains(row) for row in actions)
    assert spec.integer_type == (np.int32 if dtype is np.int32 else np.int64) and spec.no_action == -1


@pytest.mark.parametrize("low, high", [(1e6, 1e6 + 1e3), (-1e-20, 1e-20), (-1e37, 1e37), (0, 1e-6)])
def test_boxes_that_float32_resolves_are_served(low, high):
    spec = Spec(BOX, spaces.Box(low, high, (2,)))
    between = spec.center + np.linspace(-1, 1, 101, dtype=np.float32)[:, None] * spec.action_scale
    assert np.isfinite(between).all() and np.isfinite(1 / spec.action_scale).all()
    assert (np.diff(between, axis=0) > 0).all() and (between >= spec.low).all() and (between <= spec.high).all()


IMAGE = spaces.Box(0, 255, (2, 2), np.uint8)
GRID = spaces.MultiDiscrete([3, 4], start=[1, 0])


@pytest.mark.parametrize(
    "space, value",
    [
        (IMAGE, np.full((2, 2), 0.5)),
        (IMAGE, np.full((2, 2), 300)),
        (IMAGE, np.full((2, 2), -1)),
        (IMAGE, np.full((2, 2), np.nan)),
        (spaces.Discrete(3), -1),
        (spaces.Discrete(3), 3),
        (spaces.Discrete(3), 1.7),
        (spaces.Discrete(3), np.float32(1.7)),
        (spaces.Discrete(3), np.nan),
        (spaces.Discrete(3, start=5), 4),
        (GRID, [0, 0]),
        (GRID, [3, 4]),
        (BOX, np.array([1 + 1j, 0])),
        (BOX, ["1", "2"]),
        (BOX, np.array([1.0, None])),
        (spaces.Discrete(3), 1 + 0j),
    ],
)
def test_values_that_would_be_stored_as_others_are_refused_by_name(space, value):
    for observed, key in ((space, "x"), (spaces.Dict(part=space), "part")):
        spec = Spec(observed, ACTION)
        for observation in (value, np.stack([np.asarray(value)] * 2)):
            with pytest.raises(ValueError, match=f"`{key}` of .*(integers|real numbers)"):
                spec.pack({key: observation} if key == "part" else observation)


@pytest.mark.parametrize(
    "space, value", [(IMAGE, np.array([[0, 1], [254, 255]])), (spaces.Discrete(3), 2), (GRID, np.array([3, 3]))]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint16])
def test_whole_numbers_in_range_are_taken_whatever_their_dtype(space, value, dtype):
    packed = Spec(space, ACTION).pack(np.asarray(value, dtype))
    np.testing.assert_array_equal(packed[0].reshape(np.shape(value)), value)
    flags = Spec(spaces.Discrete(2), ACTION).pack(np.array([True, False]))
    np.testing.assert_array_equal(flags[0], [[1], [0]])


def test_wrong_shapes_and_keys_name_both():
    with pytest.raises(ValueError, match=r"\(2,\).*Received: shape=\(3,\)"):
        Spec(BOX, ACTION).pack(np.zeros(3))
    with pytest.raises(ValueError, match=r"\(2,\), 'phase': \(\)\}.*\['position'\]"):
        Spec(spaces.Dict(position=BOX, phase=spaces.Discrete(2)), ACTION).pack({"position": np.zeros(2)})
    spec = Spec(spaces.Dict(position=BOX, phase=spaces.Discrete(2)), ACTION)
    observations = [{"position": np.zeros(2), "phase": 1}] * 2
    with pytest.raises(ValueError, match="leading batch dimension.*a list of 2"):
        spec.pack(observations)
    stacked = {key: np.stack([each[key] for each in observations]) for key in observations[0]}  # as the message says
    assert spec.pack(stacked)[0].shape == (2, 3)


def test_of_environments():
    env = gym.make("Pendulum-v1")
    assert Spec.of(env).act_dim == 1
    vector = gym.make_vec("Pendulum-v1", num_envs=2, vectorization_mode="sync")
    assert Spec.of(vector).observation_space == env.observation_space
    vector.close()
    assert Spec.of("Pendulum-v1").observation_space == env.observation_space
    with pytest.raises(ValueError, match="`env`"):
        Spec.of(gym.make)


def test_to_env_never_leaves_a_float64_box():
    space = spaces.Box(np.array([-0.1, -1 / 3]), np.array([0.1, 1 / 3]), dtype=np.float64)
    spec = Spec(BOX, space)
    assert np.float64(np.float32(0.1)) > 0.1
    action = spec.to_env(np.stack([spec.low, spec.high]))
    assert action.dtype == np.float64
    assert all(space.contains(row) for row in action)


def test_to_env_rounds_integers_and_clips_them():
    space = spaces.Box(-2, 3, (1,), np.int8)
    spec = Spec(BOX, space)
    given = np.float32([-2.6, -1.4, 0.5, 1.5, 3.4])[:, None]
    for actions in (spec.to_env(given), spec.rounded(given)):
        np.testing.assert_array_equal(actions[:, 0], [-2, -1, 0, 2, 3])
    assert spec.to_env(given).dtype == np.int8 and Spec(BOX, ACTION).rounded(given) is given


def test_actions_without_axes():
    spec = Spec(BOX, spaces.Box(-1, 1, ()))
    flat = np.float32([[0.5], [-2]])
    actions = spec.to_env(flat)
    np.testing.assert_array_equal(actions, [0.5, -1])
    assert spec.action_space.contains(spec.first(actions))
    assert spec.shaped(flat).shape == (2,)


def test_to_env_is_a_copy():
    spec = Spec(BOX, ACTION)
    action = np.zeros((1, 2), np.float32)
    spec.to_env(action)[:] = 1
    assert not action.any()


def test_a_saturated_actor_never_leaves_the_box():
    rng = np.random.default_rng(0)
    for _ in range(300):
        low = rng.uniform(-10, 10, 3).astype(np.float32)
        high = (low + rng.uniform(0.01, 10, 3)).astype(np.float32)
        spec = Spec(BOX, spaces.Box(low, high))
        assert (spec.center + spec.action_scale <= high).all() and (spec.center - spec.action_scale >= low).all()
        np.testing.assert_allclose(spec.center + spec.action_scale, high, rtol=1e-5, atol=1e-5)
