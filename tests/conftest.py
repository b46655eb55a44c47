import contextlib
import gc
import os
import warnings

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

LONG = ("test_tuning", "test_smoke", "test_wheel", "test_video_recording")
"""Files of few long tests, which the alphabet puts last: the process of such a file would work alone in the end."""
FIRST = ("distributed", *LONG, "training", "agents", "export", "test_cli")
"""The longest first, so that no process works alone in the end."""


def pytest_configure(config):
    if config.getoption("dist", "no") != "no" and "PYTEST_XDIST_WORKER" not in os.environ:
        return  # this process only deals out tests
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries' own imports
        import keras  # noqa: F401
        import tensorflow as tf

        with contextlib.suppress(ImportError):  # a machine that only runs the tests of a GPU does not need it
            import tensorflow_serving.apis  # noqa: F401
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    gc.freeze()  # half a million objects of the libraries, which live to the end and need not be looked at again
    gc.set_threshold(50_000, 20, 20)  # graphs are many objects and little memory


def pytest_xdist_auto_num_workers():
    """A process a core, and not more than the tests keep busy."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores, 4)


def pytest_collection_modifyitems(items):
    def place(item):
        parts = item.nodeid.removeprefix("tests/")
        return next((number for number, name in enumerate(FIRST) if parts.startswith(name)), len(FIRST))

    items.sort(key=place)


def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        """Deals out whole files, which share agents; those that start a Ray go to one process, one after the other."""

        def _split_scope(self, nodeid):
            return "ray" if nodeid.startswith("tests/distributed/") else super()._split_scope(nodeid)

    return Files(config, log)


@pytest.fixture(scope="session", autouse=True)
def configuration(tmp_path_factory):
    """Keep the tests away from the user's key, and from other settings of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("configuration")))
        yield


@pytest.fixture(scope="session")
def on_pendulum(tmp_path_factory):
    """An export of DDPG on Pendulum-v1, for tests that only read it."""
    import tfdpg
    from tests.agents.roster import SMALL

    return tfdpg.DDPG("Pendulum-v1", **SMALL).export(tmp_path_factory.mktemp("on_pendulum") / "model")


@pytest.fixture
def rng():
    import numpy as np

    return np.random.default_rng(0)
