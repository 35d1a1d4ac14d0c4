"""MDLRC, momentum decay with learning-rate compensation (Xu et al., 2024, 2404.07946), and its control.

With k of N steps done, tau = k/N and b the optimizer's momentum coefficient (Adam's beta_1)::

    b_k = b (1 - tau) / ((1 - b) + b (1 - tau))        the "Demon" decay (Chen et al., 2022, 1910.04952)
    lr_k = lr (1 - b) / (1 - b_k)                      the newest gradient's share, lr_k (1 - b_k), stays the same

Together they make lr_k = lr (1 - b tau): with b = 0.9 the learning rate falls to a tenth along a straight line.
Whoever compares MDLRC with plain training compares two learning-rate schedules, unless plain training decays alike:
that is :class:`EqualDecay`, the same learning rate with the momentum left alone.

The factors act on the optimizer during its ``step()`` alone, through its step hooks. Between steps it holds its own
settings, so a learning-rate scheduler composes with this: whatever rate it has set is multiplied, in any order of the
two ``step()`` calls. Nothing of it enters the optimizer's ``state_dict``.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch.optim import SGD, Adam, AdamW, Optimizer

from ..checks import whole

Group = dict[str, Any]

_LEAST_SGD_MOMENTUM = 1e-30  # at momentum 0 torch's SGD skips its buffer and with it the dampening


class Strategy(ABC):
    """Used like a learning-rate scheduler: made with the optimizer, ``step()`` once after each optimizer step.

    Args:
        optimizer: Adam, AdamW, or SGD with momentum; or a wrapper that holds one as ``.optimizer`` (Accelerate's).
        total_steps: optimizer steps of the whole run (N above). A longer run stays at the end values and warns once.
    """

    def __init__(self, optimizer: Any, *, total_steps: int) -> None:
        self.optimizer = _unwrap(optimizer)
        self.total_steps = whole("total_steps", total_steps, low=1)
        for index, group in enumerate(self.optimizer.param_groups):
            _check(self.optimizer, group, index)
        self.steps_taken = 0
        self._warned = False
        self._own: list[Group] = []  # the optimizer's own settings, while it steps with ours
        self._hooks = (
            self.optimizer.register_step_pre_hook(self._before),
            self.optimizer.register_step_post_hook(self._after),
        )

    def step(self) -> None:
        """Count one optimizer step."""
        self.steps_taken += 1
        if self.steps_taken > self.total_steps and not self._warned:
            self._warned = True
            warnings.warn(
                f"{type(self).__name__} was made for total_steps={self.total_steps} and the run is longer: it stays at "
                "its end values. Give the length of the whole run.",
                UserWarning,
                stacklevel=2,
            )

    @property
    def progress(self) -> float:
        """tau, the share of the run that is done, in [0, 1]."""
        return min(self.steps_taken / self.total_steps, 1.0)

    def get_last_lr(self) -> list[float]:
        """Learning rate of each parameter group in the coming step: the group's own times 1 - b tau."""
        return [float(g["lr"]) * (1 - _momentum(g) * self.progress) for g in self.optimizer.param_groups]

    def detach(self) -> None:
        """Remove the hooks from the optimizer, which is then as it was."""
        self._restore()
        for hook in self._hooks:
            hook.remove()

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return {"steps_taken": self.steps_taken, "total_steps": self.total_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken; load the optimizer's own state as well."""
        if int(state["total_steps"]) != self.total_steps:
            raise ValueError(
                f"total_steps={self.total_steps} but the saved run has {state['total_steps']}, and the decay depends "
                "on it. Give the saved value, or change it in the state to bend the schedule from here on."
            )
        self.steps_taken = int(state["steps_taken"])

    @abstractmethod
    def _settings(self, group: Group, index: int) -> Group:
        """What of the group is different in the coming step."""

    def _before(self, *_: Any) -> None:
        self._restore()  # of a step that raised half-way
        groups = self.optimizer.param_groups
        changed = [self._settings(group, index) for index, group in enumerate(groups)]
        self._own = [{name: group[name] for name in new} for group, new in zip(groups, changed, strict=True)]
        for group, new in zip(groups, changed, strict=True):
            group.update(new)

    def _after(self, *_: Any) -> None:
        self._restore()

    def _restore(self) -> None:
        for group, own in zip(self.optimizer.param_groups, self._own, strict=False):
            group.update(own)
        self._own = []


class EqualDecay(Strategy):
    """MDLRC's learning rate, lr (1 - b tau), with the momentum untouched: what to compare MDLRC with."""

    def _settings(self, group: Group, index: int) -> Group:
        return {"lr": group["lr"] * (1 - _momentum(group) * self.progress)}


class MDLRC(Strategy):
    """Momentum falls to 0 over the run, the learning rate along 1 - b tau. Adam's beta_2 is untouched.

    **Adam, AdamW.** torch divides the first moment by 1 - b_k^n with the *current* b_k, which is right only while it
    is constant; after a change the weights of the n gradients in the moment sum to 1 - b_1 b_2 ... b_n. The ratio of
    the two is folded into the learning rate of the step and taken out of AdamW's decoupled weight decay again, which
    stays lr_k * weight_decay. The product is counted per parameter group: a parameter that gets its first gradient
    later than its group is corrected as the group is.

    **SGD.** The paper's form is an average, m = b_k m + (1 - b_k) g. torch's buffer is m / (1 - b) (with dampening d,
    times 1 - d), and is kept so: dampening becomes 1 - (1 - d)(1 - b_k)/(1 - b) for the step, which makes the
    trajectory that of the averaged form with learning rate lr / (1 - b). Leaving the dampening alone would decay the
    learning rate twice: a buffer that sums gradients already gives each one less in total as the momentum falls.
    Nesterov is refused.
    """

    def __init__(self, optimizer: Any, *, total_steps: int) -> None:
        super().__init__(optimizer, total_steps=total_steps)
        for group in self.optimizer.param_groups:
            if group.get("nesterov"):
                self.detach()
                raise ValueError("nesterov=True is not a form MDLRC is defined for; use nesterov=False, or EqualDecay.")
        self._averages: list[tuple[int, float]] = []  # per group: steps taken, product of their momenta
        self._used: dict[int, float] = {}  # momentum of the groups that take part in the current step

    def get_last_momentum(self) -> list[float]:
        """Momentum b_k of each parameter group in the coming step."""
        return [self._decayed(_momentum(group)) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return super().state_dict() | {"averages": [list(pair) for pair in self._averages]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken; load the optimizer's own state as well."""
        super().load_state_dict(state)
        self._averages = [(int(steps), float(product)) for steps, product in state["averages"]]

    def _decayed(self, b: float) -> float:
        left = b * (1 - self.progress)
        return left / ((1 - b) + left)

    def _settings(self, group: Group, index: int) -> Group:
        b = _momentum(group)
        b_k, lr = self._decayed(b), group["lr"] * (1 - b * self.progress)
        if "betas" not in group:
            dampening = 1 - (1 - float(group["dampening"])) * (1 - b_k) / (1 - b)
            return {"lr": lr, "momentum": max(b_k, _LEAST_SGD_MOMENTUM), "dampening": dampening}
        if any(parameter.grad is not None for parameter in group["params"]):
            self._used[index] = b_k
        steps, product = self._average(group, index)
        fold = (1 - b_k ** (steps + 1)) / (1 - product * b_k)
        new: Group = {"lr": lr * fold, "betas": (b_k, group["betas"][1])}
        if isinstance(self.optimizer, AdamW) or group.get("decoupled_weight_decay"):
            new["weight_decay"] = group["weight_decay"] / fold
        return new

    def _average(self, group: Group, index: int) -> tuple[int, float]:
        """Steps in the group's first moment and the product of their momenta; b^n for those before MDLRC's time."""
        while len(self._averages) <= index:
            late = self.optimizer.param_groups[len(self._averages)]
            states = [self.optimizer.state.get(parameter, {}) for parameter in late["params"]]
            steps = max((int(state["step"]) for state in states if "step" in state), default=0)
            self._averages.append((steps, _momentum(late) ** steps))
        return self._averages[index]

    def _before(self, *_: Any) -> None:
        self._used = {}
        super()._before()

    def _after(self, *_: Any) -> None:
        super()._after()
        # A fused optimizer under a GradScaler is called even when it is going to skip.
        found_inf = getattr(self.optimizer, "found_inf", None)
        if found_inf is not None and bool(found_inf):
            return
        for index, b_k in self._used.items():
            steps, product = self._averages[index]
            self._averages[index] = (steps + 1, product * b_k)


def _momentum(group: Group) -> float:
    return float(group["betas"][0] if "betas" in group else group["momentum"])


def _unwrap(optimizer: Any) -> Optimizer:
    while not isinstance(optimizer, (Adam, SGD, AdamW)):
        inner = getattr(optimizer, "optimizer", None)
        if inner is None:
            raise ValueError(
                f"optimizer={type(optimizer).__name__} is not supported; give torch's Adam, AdamW or SGD with momentum."
            )
        optimizer = inner
    return optimizer


def _check(optimizer: Optimizer, group: Group, index: int) -> None:
    b = _momentum(group)
    if b == 0:
        name = "betas[0]" if "betas" in group else "momentum"
        raise ValueError(
            f"{name}=0 in parameter group {index} of {type(optimizer).__name__}: there is no momentum to decay. "
            "Give one in (0, 1), usually 0.9."
        )
