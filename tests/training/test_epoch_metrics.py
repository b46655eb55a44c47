import numpy as np
import pytest

from tfdpg.components import Metric
from tfdpg.training.learning.epoch_metrics import EpochMetrics

NAN = np.nan
LOSS_Q, LOSS_PI, Q1 = Metric("loss_q"), Metric("loss_pi", delayed=True), Metric("q1", spread=True)


def test_means_and_spread_over_rounds_without_what_was_not_measured():
    epoch_metrics = EpochMetrics((LOSS_Q, LOSS_PI, Q1))
    first = np.array([[[1, 3], [NAN, NAN], [0, 4]], [[5, 7], [2, 4], [1, 1]]], np.float32)
    assert epoch_metrics.add(first) == {"loss_q": 4, "loss_pi": 3, "q1": 1.5, "loss": 7}
    assert epoch_metrics.add(np.array([[[9, 9], [NAN, NAN], [2, 2]]], np.float32)) == {"loss_q": 9, "q1": 2, "loss": 9}
    q1 = np.array([0, 4, 1, 1, 2, 2])
    assert epoch_metrics.summary() == pytest.approx(
        {"loss_q": 34 / 6, "loss_pi": 3, "q1": q1.mean(), "loss": 34 / 6 + 3}
        | {"q1_std": q1.std(), "q1_min": 0, "q1_max": 4}
    )
    epoch_metrics.reset()
    assert all(np.isnan(value) for value in epoch_metrics.summary().values())


def test_elements_without_a_number_are_steps_that_there_were_not():
    epoch_metrics = EpochMetrics((LOSS_Q, LOSS_PI, Q1))
    logs = epoch_metrics.add(np.array([[[1, NAN, 3], [NAN] * 3, [0, NAN, 4]], [[5, NAN, NAN]] * 3], np.float32))
    assert logs == {"loss_q": 3, "loss_pi": 5, "q1": 3, "loss": 8}
    assert epoch_metrics.summary()["q1_min"] == 0 and epoch_metrics.summary()["q1_std"] == pytest.approx(
        np.std([0, 4, 5])
    )


def test_a_loss_that_is_not_a_number_shows():
    for row in ([NAN, NAN], [NAN, 2.0]):
        epoch_metrics = EpochMetrics((LOSS_Q, LOSS_PI))
        logs = epoch_metrics.add(np.array([[row, [1, NAN]]], np.float32))
        assert np.isnan(logs["loss_q"]) and np.isnan(logs["loss"])
        assert np.isnan(logs["loss_pi"]) == (row[1] == 2.0)
    logs = EpochMetrics((LOSS_Q, Q1)).add(np.full((1, 2, 3), NAN))
    assert np.isnan(logs["loss_q"]) and np.isnan(logs["q1"])
