"""The options of D4PG."""

from typing import Annotated, Literal

from tfdpg.agents.options.groups import TargetPeriod, TwinOptions
from tfdpg.options import BuiltIn, Choices, Only, Structural
from tfdpg.ranges import Count, Positive, Within


class D4PGOptions(TargetPeriod, TwinOptions, group="algorithm"):
    """The options of D4PG."""

    critic: Annotated[
        Literal["categorical", "mixture", "scalar"], Structural, Choices("categorical", "mixture", "scalar")
    ] = "categorical"
    """output of the critics: "categorical", probabilities on atoms; "mixture", a mixture of Gaussians; or "scalar", the
    expected return."""
    v_min: Annotated[float | None, Structural, Only(critic="categorical")] = None
    """smallest atom of a categorical critic, in units of the return; must be given together with `v_max`."""
    v_max: Annotated[float | None, Structural, Only(critic="categorical")] = None
    """largest atom of a categorical critic, in units of the return; must be given together with `v_min`."""
    v_range: Annotated[Literal["auto", "running"] | None, Structural, Only(critic="categorical")] = None
    """how `v_min` and `v_max` are chosen: "auto" uses the returns seen before the first update, as None does if they
    are not given; "running" uses plus and minus the largest absolute return, and widens the range when it grows."""
    atoms: Annotated[Annotated[int, Within(2)], Structural, Only(critic="categorical")] = 51
    """number of atoms of a categorical critic, which are equally spaced."""
    components: Annotated[Count, Structural, Only(critic="mixture")] = 5
    """number of Gaussians of a mixture critic."""
    target_samples: Annotated[Count, Only(critic="mixture")] = 32
    """number of samples of the target from which a mixture critic learns."""
    min_stddev: Annotated[Positive, Only(critic="mixture")] = 1e-2
    """smallest standard deviation of the Gaussians of a mixture critic, in units of the return."""
    clip_action_gradient: Positive | None = None
    """largest norm, for each sample, of the gradient of the critic with respect to the action, measured in units of the
    action scale; None does not clip."""
    torso: Annotated[Literal["mlp", "control", "layer_norm", "two_branch"], Structural, BuiltIn] = "mlp"
    """hidden layers of the built-in networks: "mlp" with `hidden_units`; "control" as in the DeepMind Control Suite
    report (300-200 and 400-300); "layer_norm" as in Acme (256-256-256 and 512-512-256); "two_branch", where each part
    of a Dict observation has a first layer of its own."""
    normalize_weights: Annotated[bool, Only(replay="prioritized")] = False
    """whether to divide the importance weights of prioritised replay by the largest weight of their minibatch."""

    critics = 1
    """number of critics; of several, the distribution with the smallest mean is the target."""
    polyak = 0.0
    target_update_every = 100
    pi_lr = 1e-4
    q_lr = 1e-4
    batch_size = 256
    start_steps = 1000
    act_noise = 0.3
    n_step = 5
    q1 = None
    """custom first critic: a Keras model from `[observation, action]` that ends in the layer that `critic` requires:
    `tfdpg.networks.Categorical`, `tfdpg.networks.Mixture` or `tfdpg.networks.Value`. None builds a network."""
    replay = "prioritized"
    beta = None
    """initial exponent of the importance weights, in [0, 1]; 1 corrects the bias of the priorities. None is 1."""

    def check(self) -> None:
        """Reject a support of which only one bound is given, and layers that the torso already has."""
        if (self.v_min is None) != (self.v_max is None):
            raise ValueError(f"`v_min` and `v_max` go together. Received: v_min={self.v_min}, v_max={self.v_max}")
        if self.v_min is not None and self.v_range is not None:
            raise ValueError(
                f"`v_range={self.v_range!r}` chooses `v_min` and `v_max` itself. "
                f"Received: v_min={self.v_min}, v_max={self.v_max}"
            )
        if self.q1 is not None:
            own = ("v_min", "v_max", "atoms", "components", "target_samples", "min_stddev")
            self.refuse(own, "`q1` is your own, with a last layer of its own")
        if self.torso in ("control", "layer_norm"):
            self.refuse(["hidden_units", "activation"], f"`torso` is {self.torso!r}")
        if self.torso != "mlp":
            self.refuse(["norm", "blocks"], f"`torso` is {self.torso!r}")
        if self.replay == "lap":
            raise ValueError(
                "`replay='lap'` needs the Huber loss of TD errors; the critics of D4PG minimise the cross-entropy of "
                "distributions. Received: replay='lap'"
            )
        if self.beta is None:
            self.refuse(["beta_steps"], "`beta` is 1")
