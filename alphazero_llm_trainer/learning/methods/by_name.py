"""The methods of training by name; a method is one object in one file."""

from __future__ import annotations

from ...config.objects import own_object
from ...config.train import METHOD
from ...errors import ConfigError
from .alphazero import ALPHAZERO
from .base import Method
from .distill import DISTILL
from .expert_iteration import EXPERT_ITERATION
from .grpo import GRPO
from .legacy import LEGACY
from .ppo import PPO
from .rft import RFT

EVERY = (EXPERT_ITERATION, ALPHAZERO, RFT, GRPO, PPO, DISTILL, LEGACY)
METHODS = {each.name: each for each in EVERY}


def method_of(named: str) -> Method:
    """The method that `train.method` names: one of the package's, or the user's own. Raises
    ConfigError where there is none.
    """
    method = METHODS[named] if named in METHODS else own_object(named, METHOD)
    if not isinstance(method, Method):
        raise ConfigError(
            f"{METHOD} is {named!r}, a {type(method).__name__}: name a `Method`, or one of "
            f"{', '.join(METHODS)}"
        )
    return method
