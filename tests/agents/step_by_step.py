"""A float64 reference for recurrent updates: it processes episodes step by step, without masks, padding or packing."""

import keras
import numpy as np
import tensorflow as tf
from gymnasium import spaces

import tfdpg

LOW = np.array([-1.0, 0.0])
HIGH = np.array([3.0, 1.0])
CENTER = (LOW + HIGH) / 2
ACTION_SCALE = (HIGH - LOW) / 2
LENGTH = 4
BURN_IN = 3
GAMMA = 0.9
POLYAK = 0.8
RATE = 0.1
ETA = 0.9
SPEC = tfdpg.Spec(spaces.Box(-9, 9, (2,)), spaces.Box(LOW.astype(np.float32), HIGH.astype(np.float32)))
LENGTHS = ((1, True), (2, False), (9, False), (3, True), (14, True), (2, True), (6, None))
"""The length of each episode and whether it is terminated (True) or truncated (False); the last one is unfinished."""


def make(kind, **options):
    """Return a small recurrent agent with SGD optimizers and target networks that differ from its networks."""
    own = {name: keras.optimizers.SGD(RATE) for name in ("pi_optimizer", "q_optimizer")}
    small = {"hidden_units": (5,), "activation": "tanh", "batch_size": 6, "jit_compile": False, "replay_size": 100}
    small |= {"sequence_length": LENGTH, "burn_in": BURN_IN, "gamma": GAMMA, "start_steps": 1000, "polyak": POLYAK}
    agent = kind(SPEC, **own | small | options)
    rng = np.random.default_rng(1)
    for network in (*agent.networks.values(), *agent.targets.values()):
        for weight in network.trainable_variables:
            weight.assign(rng.normal(0, 0.6, weight.shape))
    agent.data.actor.refresh()
    return agent


class Episode:
    """An episode: its actions, rewards and recurrent states, and one observation more."""

    def __init__(self, first, terminated):
        self.observations = [first]
        self.actions = []
        self.rewards = []
        self.states = []
        self.terminated = terminated


def rounded(numbers):
    """Round to float32, as the replay buffer does."""
    return numbers.astype(np.float32).astype(float)


def collect(agent):
    """Fill the agent's replay buffer.

    Returns:
        The episodes, and for each row of the buffer the number of its episode and its step.
    """
    rng = np.random.default_rng(2)
    episodes = []
    rows = []
    for number, (length, terminated) in enumerate(LENGTHS):
        episode = Episode(rounded(rng.normal(size=2)), terminated)
        rows += [(number, t) for t in range(length + 1)]
        for t in range(length):
            action = agent.act(episode.observations[-1])
            reward, *observation = rounded(rng.normal(size=3))
            is_last = t == length - 1 and terminated is not None
            agent.observe(reward, np.array(observation), is_last and terminated, is_last and not terminated)
            episode.actions.append(action.astype(float))
            episode.rewards.append(reward)
            episode.observations.append(np.array(observation))
        episodes.append(episode)
    return episodes, rows


class Net:
    """A network in float64 that computes single steps."""

    def __init__(self, weights, kinds):
        self.weights = [tf.cast(weight, tf.float64) for weight in weights]
        self.cells = []
        rest = list(self.weights)
        for kind, units in kinds:
            self.cells.append((kind, units, rest[:3]))
            rest = rest[3:]
        self.torso = rest
        self.state_width = sum(2 * units if kind == "lstm" else units for kind, units in kinds)

    def step_cells(self, x, state):
        """Return the output of the top cell, `[units]`, and the next state."""
        states = []
        for kind, units, weights in self.cells:
            width = 2 * units if kind == "lstm" else units
            own = state[:width]
            state = state[width:]
            own = {"lstm": lstm, "gru": gru, "rnn": rnn}[kind](x, own, *weights)
            x = own[:units]
            states.append(own)
        return x, tf.concat(states, 0)

    def apply_torso(self, rnn_output, action=None):
        kernel, bias, out_kernel, out_bias = self.torso
        x = rnn_output if action is None else tf.concat([rnn_output, (action - CENTER) / ACTION_SCALE], 0)
        return tf.linalg.matvec(out_kernel, tf.tanh(tf.linalg.matvec(kernel, x, True) + bias), True) + out_bias

    def act(self, rnn_output):
        return CENTER + ACTION_SCALE * tf.tanh(self.apply_torso(rnn_output))


def lstm(x, state, kernel, recurrent_kernel, bias):
    h, c = tf.split(state, 2)
    z = tf.linalg.matvec(kernel, x, True) + tf.linalg.matvec(recurrent_kernel, h, True) + bias
    i, f, new, o = tf.split(z, 4)
    c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(new)
    return tf.concat([tf.sigmoid(o) * tf.tanh(c), c], 0)


def gru(x, h, kernel, recurrent_kernel, bias):
    (z, r, new), (z_h, r_h, new_h) = (
        tf.split(tf.linalg.matvec(w, v, True) + b, 3)
        for w, v, b in ((kernel, x, bias[0]), (recurrent_kernel, h, bias[1]))
    )
    z = tf.sigmoid(z + z_h)
    return z * h + (1 - z) * tf.tanh(new + tf.sigmoid(r + r_h) * new_h)


def rnn(x, h, kernel, recurrent_kernel, bias):
    return tf.tanh(tf.linalg.matvec(kernel, x, True) + tf.linalg.matvec(recurrent_kernel, h, True) + bias)


class Values:
    """Critics that return values."""

    def mean(self, output):
        return output[0]

    def target(self, reward, discount, output):
        return reward + discount * output[0]

    def loss(self, target, output):
        return (target - output[0]) ** 2


class Distributions:
    """Critics that return the logits of atoms."""

    def __init__(self, atoms):
        self.atoms = atoms
        self.step = atoms[1] - atoms[0]

    def mean(self, output):
        return tf.reduce_sum(tf.nn.softmax(output) * self.atoms)

    def target(self, reward, discount, output):
        """Project the shifted atoms: each divides its probability between the two nearest atoms."""
        shares = np.zeros(len(self.atoms))
        for atom, probability in zip(self.atoms, tf.nn.softmax(output).numpy(), strict=True):
            place = (np.clip(reward + discount * atom, self.atoms[0], self.atoms[-1]) - self.atoms[0]) / self.step
            for k in range(len(shares)):
                shares[k] += probability * max(0.0, 1 - abs(place - k))
        return shares

    def loss(self, target, output):
        return -tf.reduce_sum(target * tf.nn.log_softmax(output))


class StepByStep:
    """Computes the updates of an agent separately. It stores the recurrent states of the policy in the episodes.

    Args:
        agent: an agent before its first update, with a filled replay buffer.
        episodes: the episodes that `collect` returned.
        rows: the rows that `collect` returned.
        head: the interpretation of the critics' outputs.
    """

    def __init__(self, agent, episodes, rows, head):
        self.agent = agent
        self.episodes = episodes
        self.rows = rows
        self.options = agent.options
        self.head = head
        units = agent.options.recurrent_units
        self.kinds = [(agent.options.recurrent, n) for n in ([units] if isinstance(units, int) else units)]
        self.critics = [name for name in agent.networks if name != "pi"]
        self.online, self.target = (
            {name: Net([w.numpy() for w in network.trainable_variables], self.kinds) for name, network in each.items()}
            for each in (agent.networks, agent.targets)
        )
        pi = self.online["pi"]
        for episode in episodes:
            state = tf.zeros(pi.state_width, tf.float64)
            for t in range(len(episode.actions)):
                episode.states.append(state)
                _, state = pi.step_cells(self.seen(episode, t), state)

    def seen(self, episode, t):
        """Return the input of the recurrent cells at a step."""
        x = episode.observations[t]
        normalizers = self.agent.data.normalizers
        if normalizers:
            mean = normalizers[0].mean.numpy().astype(float)
            variance = normalizers[0].variance.numpy().astype(float)
            x = np.clip((x - mean) / (np.sqrt(variance) + 1e-8), -5, 5)
        if "action" in self.options.remembers:
            before = CENTER if t == 0 else np.clip(episode.actions[t - 1], LOW, HIGH)
            x = np.append(x, (before - CENTER) / ACTION_SCALE)
        if "reward" in self.options.remembers:
            x = np.append(x, 0 if t == 0 else episode.rewards[t - 1])
        return tf.constant(x, tf.float64)

    def rnn_output(self, net, episode, first, learn_from, stop, is_policy=False):
        """Return the outputs of the cells at the steps from `learn_from` on; burn-in steps have no gradient."""
        stored = is_policy and self.options.stored_state
        state = episode.states[first] if stored else tf.zeros(net.state_width, tf.float64)
        outputs_by_step = {}
        for t in range(first, stop):
            if t == learn_from:
                state = tf.stop_gradient(state)
            rnn_output, state = net.step_cells(self.seen(episode, t), state)
            if t >= learn_from:
                outputs_by_step[t] = rnn_output
        return outputs_by_step

    def targets(self, episode, first, steps, noise):
        """Return for each step the target, r + ... + γᵐ (1 − d) min Q_targ(s', clip(π_targ(s') + noise)), and its mean.

        The target networks have processed all steps from `first` to s'.
        """
        taken = len(episode.actions)
        n = self.options.n_step
        stop = min(steps[-1] + n, taken) + 1
        rnn_outputs = {
            name: self.rnn_output(net, episode, first, first, stop, name == "pi") for name, net in self.target.items()
        }
        targets = []
        for s, sample in zip(steps, noise, strict=False):
            m = min(n, taken - s)
            reward = sum(GAMMA**k * episode.rewards[s + k] for k in range(m))
            discount = 0.0 if episode.terminated and s + m == taken else GAMMA**m
            action = tf.clip_by_value(self.target["pi"].act(rnn_outputs["pi"][s + m]) + sample, LOW, HIGH)
            outputs = [self.target[name].apply_torso(rnn_outputs[name][s + m], action) for name in self.critics]
            output = min(outputs, key=self.head.mean)
            mean = reward + discount * self.head.mean(output)
            targets.append((self.head.target(reward, discount, output), mean))
        return targets

    def update(self, slots, weights, noise, counter):
        """Make one update on the sequences that begin at `slots`.

        Args:
            slots: the sampled rows.
            weights: the weights of the sequences.
            noise: the clipped noise, `[sequences, LENGTH, act_dim]`.
            counter: the number of the update.

        Returns:
            The priorities of the sequences, the mean of the critics' summed losses, and the policy's mean loss or None.
        """
        sequences = []
        for slot, samples in zip(slots, noise, strict=True):
            number, t = self.rows[slot]
            episode = self.episodes[number]
            first = max(0, t - BURN_IN)
            steps = range(t, min(t + LENGTH, len(episode.actions)))
            sequences.append((episode, first, steps, self.targets(episode, first, steps, samples)))
        count = sum(len(steps) for _, _, steps, _ in sequences)
        loss_q = 0.0
        loss_pi = None
        errors = [[0.0] * len(steps) for _, _, steps, _ in sequences]
        for name in self.critics:
            net = self.online[name]
            loss = 0.0
            with tf.GradientTape() as tape:
                tape.watch(net.weights)
                for i, ((episode, first, steps, targets), weight) in enumerate(zip(sequences, weights, strict=True)):
                    outputs_by_step = self.rnn_output(net, episode, first, steps[0], steps[-1] + 1)
                    for k, (s, (target, mean)) in enumerate(zip(steps, targets, strict=True)):
                        output = net.apply_torso(outputs_by_step[s], tf.constant(episode.actions[s]))
                        each = self.head.loss(target, output)
                        loss += weight * each / count
                        loss_q += float(each) / count
                        errors[i][k] += abs(float(mean - self.head.mean(output))) / len(self.critics)
            self.descend(name, tape.gradient(loss, net.weights))
        if counter % getattr(self.options, "policy_delay", 1) == 0:
            loss_pi = self.update_policy(sequences, count)
            for name, net in self.target.items():
                pairs = zip(net.weights, self.online[name].weights, strict=True)
                self.target[name] = Net([POLYAK * old + (1 - POLYAK) * new for old, new in pairs], self.kinds)
        return [ETA * max(each) + (1 - ETA) * np.mean(each) for each in errors], loss_q, loss_pi

    def update_policy(self, sequences, count):
        pi = self.online["pi"]
        critic = self.online["q1"]
        values = []
        distances = []
        with tf.GradientTape() as tape:
            tape.watch(pi.weights)
            for episode, first, steps, _ in sequences:
                policy = self.rnn_output(pi, episode, first, steps[0], steps[-1] + 1, is_policy=True)
                outputs_by_step = self.rnn_output(critic, episode, first, steps[0], steps[-1] + 1)
                for s in steps:
                    action = pi.act(policy[s])
                    values.append(self.head.mean(critic.apply_torso(outputs_by_step[s], action)))
                    distances.append(tf.reduce_mean(((action - episode.actions[s]) / ACTION_SCALE) ** 2))
            loss = -sum(values) / count
            cloning = getattr(self.options, "bc_weight", 0)
            if cloning:
                size = np.mean([abs(float(value)) for value in values])
                loss = loss / size + cloning * sum(distances) / count
        self.descend("pi", tape.gradient(loss, pi.weights))
        return float(loss)

    def descend(self, name, gradients):
        pairs = zip(self.online[name].weights, gradients, strict=True)
        self.online[name] = Net([weight - RATE * gradient for weight, gradient in pairs], self.kinds)
