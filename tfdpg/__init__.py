"""tfdpg: deterministic-policy-gradient agents for TensorFlow 2 and Keras 3, exported for TensorFlow Serving."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfdpg import components, distributed, exploration, export, losses, networks, recipes, replay
    from tfdpg.agents import load_agent
    from tfdpg.agents.acer import ACER
    from tfdpg.agents.agent import Agent
    from tfdpg.agents.d4pg import D4PG
    from tfdpg.agents.ddpg import DDPG
    from tfdpg.agents.td3 import TD3
    from tfdpg.agents.td7 import TD7
    from tfdpg.checking import check
    from tfdpg.components import Component, Copy, Declaration, Metric, PolicySpec
    from tfdpg.exported import Policy, load
    from tfdpg.spec import Spec
    from tfdpg.training import callbacks
    from tfdpg.training.evaluation import evaluate
    from tfdpg.tuning import tune

_NAMES = {
    "ACER": "tfdpg.agents.acer",
    "D4PG": "tfdpg.agents.d4pg",
    "DDPG": "tfdpg.agents.ddpg",
    "Agent": "tfdpg.agents.agent",
    "Component": "tfdpg.components",
    "Copy": "tfdpg.components",
    "Declaration": "tfdpg.components",
    "Metric": "tfdpg.components",
    "Policy": "tfdpg.exported",
    "PolicySpec": "tfdpg.components",
    "Spec": "tfdpg.spec",
    "TD3": "tfdpg.agents.td3",
    "TD7": "tfdpg.agents.td7",
    "check": "tfdpg.checking",
    "evaluate": "tfdpg.training.evaluation",
    "load": "tfdpg.exported",
    "load_agent": "tfdpg.agents",
    "tune": "tfdpg.tuning",
}
_MODULES = {
    "callbacks": "tfdpg.training.callbacks",
    "components": "tfdpg.components",
    "distributed": "tfdpg.distributed",
    "exploration": "tfdpg.exploration",
    "export": "tfdpg.export",
    "losses": "tfdpg.losses",
    "networks": "tfdpg.networks",
    "recipes": "tfdpg.recipes",
    "replay": "tfdpg.replay",
}

_NEED_NO_TENSORFLOW = {"Policy", "Spec", "check", "distributed", "exploration", "load", "recipes", "replay", "tune"}

__all__ = [
    "ACER",
    "D4PG",
    "DDPG",
    "TD3",
    "TD7",
    "Agent",
    "Component",
    "Copy",
    "Declaration",
    "Metric",
    "Policy",
    "PolicySpec",
    "Spec",
    "callbacks",
    "check",
    "components",
    "distributed",
    "evaluate",
    "exploration",
    "export",
    "load",
    "load_agent",
    "losses",
    "networks",
    "recipes",
    "replay",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("tfdpg")
    if name not in _MODULES and name not in _NAMES:
        from tfdpg.hints import NAMES, missing_attribute

        raise AttributeError(missing_attribute("module 'tfdpg'", name, NAMES))
    if name not in _NEED_NO_TENSORFLOW:
        from tfdpg.compat.tensorflow import import_tensorflow

        import_tensorflow()
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    return getattr(importlib.import_module(_NAMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
