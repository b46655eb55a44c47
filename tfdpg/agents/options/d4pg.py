"""The options of D4PG."""

from typing import Annotated, ClassVar, Literal

from tfdpg.agents.options.common import OffPolicyOptions
from tfdpg.options import BuiltIn, Choices, Group, Not, Only, Structural
from tfdpg.ranges import Count, Positive, Within

OWN = Only("`q1` is your own, with a last layer of its own", q1=None)


class D4PGOptions(OffPolicyOptions, without=("bc_weight", "action_l2")):
    """The options of D4PG."""

    unused = {
        "hidden_units": Only(torso=("mlp", "two_branch")),
        "activation": Only(torso=("mlp", "two_branch")),
        "norm": Only(torso="mlp"),
        "blocks": Only(torso="mlp"),
        "beta_steps": Only("`beta` is 1", beta=Not(None)),
    }

    critic: Annotated[
        Literal["categorical", "mixture", "scalar"], Structural, Choices("categorical", "mixture", "scalar")
    ] = "categorical"
    """output of the critics: "categorical", probabilities on atoms; "mixture", a mixture of Gaussians; or "scalar", the
    expected return."""
    v_min: Annotated[float | None, Structural, Only(critic="categorical"), OWN] = None
    """smallest atom of a categorical critic, in units of the return; must be given together with `v_max`."""
    v_max: Annotated[float | None, Structural, Only(critic="categorical"), OWN] = None
    """largest atom of a categorical critic, in units of the return; must be given together with `v_min`."""
    v_range: Annotated[Literal["auto", "running"] | None, Structural, Only(critic="categorical")] = None
    """how `v_min` and `v_max` are chosen: "auto" uses the returns seen before the first update, as None does if they
    are not given; "running" uses plus and minus the largest absolute return, and widens the range when it grows."""
    atoms: Annotated[Annotated[int, Within(2)], Structural, Only(critic="categorical"), OWN] = 51
    """number of atoms of a categorical critic, which are equally spaced."""
    components: Annotated[Count, Structural, Only(critic="mixture"), OWN] = 5
    """number of Gaussians of a mixture critic."""
    target_samples: Annotated[Count, Only(critic="mixture"), OWN] = 32
    """number of samples of the target from which a mixture critic learns."""
    min_stddev: Annotated[Positive, Only(critic="mixture"), OWN] = 1e-2
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

    RETURNS: ClassVar = Group("returns")

    target_update_every: Annotated[Count, Only(target_networks=True)] = 100
    """number of critic updates between two updates of the target networks."""

    def check(self) -> None:
        """Reject a support of which one bound is given, or that is chosen twice, and priorities of another loss."""
        if (self.v_min is None) != (self.v_max is None):
            raise self.conflict("`v_min` and `v_max` go together.", "v_min", "v_max")
        if self.v_min is not None and self.v_range is not None:
            raise self.conflict(f"`v_range={self.v_range!r}` chooses `v_min` and `v_max` itself.", "v_min", "v_max")
        if self.replay == "lap":
            raise self.conflict(
                "`replay='lap'` needs the Huber loss of TD errors; the critics of D4PG minimise the cross-entropy of "
                "distributions.",
                "replay",
            )
