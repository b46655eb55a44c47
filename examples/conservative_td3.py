"""TD3 with a conservative critic loss: an algorithm in a user's own file.

docs/changing-a-loss.md explains this file step by step. To run it: python examples/conservative_td3.py --steps 8000
"""

import argparse
import dataclasses
from typing import Any, final

import gymnasium as gym
import tensorflow as tf

import tfdpg
from tfdpg.agents.declarations import deterministic, td_losses
from tfdpg.agents.options import TD3Options
from tfdpg.components import Metric, policy_loss, polyak, run_if
from tfdpg.exploration import per_dimension
from tfdpg.losses import smooth_action, td_target
from tfdpg.networks import Batch, flat_values, smallest, stateless_normal
from tfdpg.options import takes_options
from tfdpg.ranges import NonNegative


class ConservativeTD3Options(TD3Options, group="algorithm"):
    """The options of TD3, and the weight of the regulariser."""

    conservatism: NonNegative = 0.1
    """weight of mean(Q(s, pi(s)) - Q(s, a)) in the loss of each critic; 0 is TD3."""


def declare(spec: tfdpg.Spec, options: ConservativeTD3Options) -> tfdpg.Declaration:
    """The components of TD3: a policy, one or two critics, and their target networks."""
    rule = polyak(options.polyak, every=options.target_update_every or options.policy_delay)
    declaration = deterministic(spec, options, rule, policy_period=options.policy_delay)
    return dataclasses.replace(declaration, metrics=[*declaration.metrics, Metric("gap")])


@final
class ConservativeTD3(tfdpg.Agent):
    """TD3 whose critics keep the values of the policy's actions low, relative to those of the stored actions.

    Source: Kumar et al. 2020, "Conservative Q-Learning for Offline Reinforcement Learning", equation 2 with μ = π.
    """

    @takes_options(ConservativeTD3Options)
    def __init__(self, env: Any, options: ConservativeTD3Options):
        """Build the agent for an environment or a `Spec`; the options are keyword arguments."""
        super().__init__(env, options, declare)
        self.critics = {name: network for name, network in self.networks.items() if name != "pi"}
        self.bootstrap_networks = self.networks | self.targets
        self.policy_critics = list(self.critics.values())[: None if options.policy_gradient == "min" else 1]
        self.target_noise = per_dimension("target_noise", options.target_noise, self.spec) * self.spec.action_scale
        self.noise_clip = options.noise_clip * self.spec.action_scale
        self.td_loss, self.td_error = td_losses(options.replay)

    def update(self, batch: Batch, counter: Any) -> dict[str, tf.Tensor]:
        """Minimise (target - Q(s, a))² + conservatism · (Q(s, π(s)) - Q(s, a)); later update policy and targets."""
        action_t = self.smoothed_action(batch, counter)
        policy_action = batch.ask(self.networks["pi"])
        with self.minimize(*self.critics) as step:
            pairs = ((q, self.bootstrap_networks[name]) for name, q in self.critics.items())
            outputs = [batch.ask_both(q, batch.action, q_targ, action_t) for q, q_targ in pairs]
            values = [flat_values(output) for output, _ in outputs]
            target = td_target(batch.reward, batch.discount, smallest([output_t for _, output_t in outputs]))
            policy_values = [flat_values(batch.ask(q, policy_action)) for q in self.critics.values()]
            gaps = [at_policy - value for at_policy, value in zip(policy_values, values, strict=True)]
            weight = self.options.conservatism
            losses = [self.td_loss(value, target) + weight * gap for value, gap in zip(values, gaps, strict=True)]
            step(*[batch.mean(loss) for loss in losses])
        is_due = counter % self.options.policy_delay == 0
        loss_pi = run_if(is_due, lambda: self.update_policy(batch), self.batch_elements)
        self.update_copies(counter)
        return {
            "loss_q": tf.add_n(losses),
            "loss_pi": loss_pi,
            "q1": values[0],
            "q2": values[-1],
            "gap": tf.add_n(gaps) / len(gaps),
            "td_error": self.td_error(tf.stack([tf.abs(target - value) for value in values])),
        }

    def smoothed_action(self, batch: Batch, counter: Any) -> tf.Tensor:
        """The next action, a' = clip(π_targ(s') + clip(ε, -c, c), a_low, a_high), `[batch, act_dim]`."""
        key = tf.stack([tf.constant(self.seed, tf.int64), counter])
        noise = stateless_normal((self.batch_elements, self.spec.act_dim), key)
        if self.options.target_noise_decay > 0:
            decay = tf.pow(1.0 - self.options.target_noise_decay, tf.cast(counter - 1, tf.float32))
            noise *= tf.maximum(decay, self.options.target_noise_min)
        action_t = batch.ask_next(self.bootstrap_networks["pi"])
        return smooth_action(action_t, noise * self.target_noise, self.noise_clip, self.spec.low, self.spec.high)

    def update_policy(self, batch: Batch) -> tf.Tensor:
        """Take one step towards larger Q(s, π(s)); return the loss of each element."""
        with self.minimize("pi") as step:
            action = batch.ask(self.networks["pi"], training=True)
            value = smallest([batch.ask(q, action) for q in self.policy_critics])
            loss_pi = policy_loss(self.spec, value, action, batch, self.options.bc_weight)
            step(batch.average(loss_pi))
        return loss_pi


def main(directory: str, steps: int, **options: Any) -> None:
    """Train on Pendulum-v1; save, load and export the agent under `directory`."""
    env = gym.make("Pendulum-v1")
    agent = ConservativeTD3(env, seed=0, **options)
    agent.fit(env, epochs=5, steps_per_epoch=steps // 5, validation_env=gym.make("Pendulum-v1"))
    agent.save(f"{directory}/agent")
    agent = tfdpg.load_agent(f"{directory}/agent", agent_class=ConservativeTD3)
    print(agent, agent.evaluate(env))
    print("exported", agent.export(f"{directory}/model"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default="runs/conservative-td3")
    parser.add_argument("--steps", type=int, default=8000)
    arguments = parser.parse_args()
    options = {"hidden_units": (64, 64), "pi_lr": 3e-3, "q_lr": 3e-3, "start_steps": 500, "update_after": 500}
    main(arguments.directory, arguments.steps, **options)
