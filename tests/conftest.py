import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the libraries' own imports
    import keras  # noqa: F401
    import tensorflow as tf
    import tensorflow_serving.apis  # noqa: F401

import pytest

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)


@pytest.fixture
def rng():
    import numpy as np

    return np.random.default_rng(0)
