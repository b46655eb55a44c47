"""Check the device of networks and compiled functions."""

from collections.abc import Mapping

import keras
import tensorflow as tf

from tfdpg.arguments import reject

NO_GPU = (
    "TensorFlow finds no GPU. Install the driver of an NVIDIA GPU, and CUDA's libraries with `pip install "
    "'tensorflow[and-cuda]'`; the environment variable CUDA_VISIBLE_DEVICES must not hide the GPU. Without a GPU, "
    "leave out `device`, or pass 'cpu:0'."
)


class UnavailableDeviceError(ValueError):
    """This process has no device of this name."""


def check_device(device: str | None, networks: Mapping[str, keras.Model]) -> str | None:
    """Return `device` after checking that it exists and has all weights of `networks`; None is always valid.

    Raises:
        UnavailableDeviceError: this process has no such device.
        ValueError: a network was built on another one.
    """
    if device is None:
        return None
    available = {_short(logical.name) for logical in tf.config.list_logical_devices()}
    if not isinstance(device, str) or _short(device) not in available:
        error = reject("device", f"None or one of {sorted(available)}", device)
        no_gpu = "gpu" in str(device).lower() and not any("gpu" in name for name in available)
        raise UnavailableDeviceError(f"{error}. {NO_GPU}" if no_gpu else str(error))
    for name, network in networks.items():
        if not isinstance(network, keras.Model):
            continue  # reported by the checks of custom networks
        devices = {_short(variable.value.device) for variable in network.variables}
        if devices - {_short(device)}:
            raise ValueError(
                f"`{name}` must be on `device`: build it inside `with tf.device({device!r})`. "
                f"Received: device={device!r}, and weights on {sorted(devices)}"
            )
    return device


def is_on_cpu(device: str | None) -> bool:
    """Whether functions run on a CPU, for a valid `device`; None is a GPU if there is one."""
    return not tf.config.list_logical_devices("GPU") if device is None else _short(device).startswith("cpu")


def _short(device: str) -> str:
    """Return a short name such as "gpu:0" for "gpu", "/device:GPU:0" or TensorFlow's full device name."""
    name = device.rsplit("device:", 1)[-1].lower()
    return name if ":" in name else f"{name}:0"
