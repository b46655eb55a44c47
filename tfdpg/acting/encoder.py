"""The built-in observation encoder: flatten, scale images to [0, 1], encode discrete parts as one-hot vectors."""

import numpy as np
from gymnasium import spaces

from tfdpg.spec import Leaf, Packed, Spec


def encode(spec: Spec, packed: Packed) -> np.ndarray:
    """Compute the features of packed observations, float32 `[num_envs, features]`.

    `tfdpg.networks.encoder` computes the same features in Keras.
    """
    if len(spec.leaves) == 1 and spec.leaves[0].dtype == "float32":
        return packed[0]
    features = []
    for leaf in spec.leaves:
        values = packed[spec.groups.index(leaf.group)][:, leaf.columns]
        if leaf.dtype == "int32":
            starts, counts = discrete_ranges(leaf.space)
            offsets = np.cumsum(counts) - counts
            hot = np.zeros((len(values), counts.sum()), np.float32)
            columns = values.astype(np.int64) - starts + offsets
            np.put_along_axis(hot, columns, 1, axis=1)
            features.append(hot)
        elif leaf.dtype == "uint8":
            features.append(values.astype(np.float32) / np.float32(255))
        else:
            features.append(values)
    return np.concatenate(features, axis=1)


def feature_columns(spec: Spec) -> list[slice]:
    """Return the feature columns of each part of an observation."""
    ends = np.cumsum([0, *map(_width, spec.leaves)]).tolist()
    return [slice(first, last) for first, last in zip(ends[:-1], ends[1:], strict=True)]


def real_features(spec: Spec) -> np.ndarray:
    """Return the mask of the features that come from a Box other than an image, bool `[features]`."""
    return np.concatenate([np.full(_width(leaf), leaf.dtype == "float32") for leaf in spec.leaves])


def _width(leaf: Leaf) -> int:
    size = leaf.columns.stop - leaf.columns.start
    return int(discrete_ranges(leaf.space)[1].sum()) if leaf.dtype == "int32" else size


def discrete_ranges(space: spaces.Space) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest value and the number of values of each element of a Discrete or MultiDiscrete space."""
    if isinstance(space, spaces.Discrete):
        return np.array([space.start], np.int64), np.array([space.n], np.int64)
    if isinstance(space, spaces.MultiDiscrete):
        return space.start.ravel().astype(np.int64), space.nvec.ravel().astype(np.int64)
    raise TypeError(f"{space} is not discrete")
