"""Update phases: minibatches, compiled updates, and the metrics that they return."""
