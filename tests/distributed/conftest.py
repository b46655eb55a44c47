import os

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import pytest


@pytest.fixture(scope="module")
def local_ray():
    """A Ray cluster on this machine, to which the tests are connected."""
    import ray

    ray.init("local", num_cpus=4, include_dashboard=False, object_store_memory=128 << 20, log_to_driver=False)
    yield ray
    ray.shutdown()
