"""The logs that Keras callbacks monitor, and callbacks that are not supported."""

import keras
import pytest

import tfdpg
from tests.agents.roster import SMALL
from tests.environments import Counter
from tests.training.test_callbacks import fit
from tfdpg.training.callbacks import StopAtReturn
from tfdpg.training.callbacks.monitors import prepare


@pytest.mark.parametrize(
    "monitor, mode",
    [("val_return", "max"), ("return_min", "max"), ("td_error", "min"), ("cost", "min"), ("loss", "min")],
)
def test_what_is_better_of_a_log_is_known(monitor, mode):
    stopping = keras.callbacks.EarlyStopping(monitor)
    plateau = keras.callbacks.ReduceLROnPlateau(monitor)
    checkpoint = keras.callbacks.ModelCheckpoint("unused.keras", monitor, save_best_only=True)
    given = keras.callbacks.EarlyStopping(monitor, mode="min")
    metrics = [tfdpg.Metric("td_error", priority=True), tfdpg.Metric("cost", loss=True)]
    prepare([stopping, plateau, checkpoint, given], [monitor], metrics, [])
    assert [callback.mode for callback in (stopping, plateau, checkpoint, given)] == [mode, mode, mode, "min"]


def test_early_stopping_maximises_a_return():
    returns = iter([1.0, 2.0, 0.0, 0.5, 9.0])
    falling = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update({"return": next(returns)}))
    _, history = fit([falling, keras.callbacks.EarlyStopping("return", patience=2)], epochs=9)
    assert history.epoch == [0, 1, 2, 3]


@pytest.mark.parametrize("monitor", ["q1", "val_return_std", "env_steps"])
def test_what_is_better_must_be_said_before_the_first_step(monitor):
    env = Counter()
    agent = tfdpg.DDPG(env, **SMALL)
    stopping = keras.callbacks.EarlyStopping(monitor)
    with pytest.raises(ValueError, match=f"`mode` must be .* on '{monitor}'"):
        agent.fit(env, callbacks=[stopping], validation_env=Counter())
    assert env.total == 0


@pytest.mark.parametrize(
    "callback",
    [
        keras.callbacks.EarlyStopping("val_return"),
        keras.callbacks.ReduceLROnPlateau("val_return"),
        keras.callbacks.ModelCheckpoint("unused.keras", "val_return", save_best_only=True),
        tfdpg.callbacks.ExportBest("unused"),
        StopAtReturn(15),
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_what_will_not_be_logged_is_refused_before_the_first_step(callback):
    env = Counter()
    agent = tfdpg.DDPG(env, **SMALL)
    with pytest.raises(ValueError, match=f"{type(callback).__name__} monitors 'val_return'"):
        agent.fit(env, callbacks=[callback])
    with pytest.raises(ValueError, match="not among .*'loss'.*'updates_per_second'"):
        agent.fit_offline(None, callbacks=[callback])
    assert env.total == 0
    assert keras.callbacks.ModelCheckpoint("unused.keras").monitor == "val_loss"  # which it does not use
    prepare([keras.callbacks.ModelCheckpoint("unused.keras")], ["loss"], [], [])


def test_model_checkpoint_of_weights_by_its_name(tmp_path):
    agent, _ = fit([keras.callbacks.ModelCheckpoint(str(tmp_path / "pi.weights.h5"))])
    assert (tmp_path / "pi.weights.h5").is_file()
    agent.load_weights(tmp_path / "pi.weights.h5")


def test_swap_ema_weights_says_what_is_missing():
    with pytest.raises(ValueError, match="use_ema=True"):
        fit([keras.callbacks.SwapEMAWeights()])


@pytest.mark.parametrize("given", [keras.callbacks.EarlyStopping, "tensorboard", [lambda logs: True]])
def test_what_is_no_callback_is_refused_and_one_alone_is_taken(given):
    with pytest.raises(ValueError, match="`callbacks` must be Keras callbacks"):
        fit(given)
    assert len(fit(StopAtReturn(15))[1].epoch) == 1
