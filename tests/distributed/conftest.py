import os

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items):
    """One process runs all of these, since each Ray starts several of its own."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.xdist_group("ray"))


@pytest.fixture(scope="module")
def local_ray():
    """A Ray on this machine, which the trainings of the tests find running."""
    import ray

    ray.init("local", num_cpus=4, include_dashboard=False, object_store_memory=128 << 20, log_to_driver=False)
    yield ray
    ray.shutdown()
