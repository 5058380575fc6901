"""Ranger, the optimizer of CE and TeachText: rectified Adam with look-ahead."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch


class Ranger(torch.optim.Optimizer):
    r"""Rectified Adam; every few steps the weights go half the way back to where they were.

        m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2,   w <- w - rate decay w
        w <- w - rate r m / (sqrt(v) + eps)     where the variance of v is known well enough
        w <- w - rate m / (1 - b1^t)            in the first steps, where it is not
        every ``every`` steps:  slow <- slow + share (w - slow),  w <- slow

    with the rectification r of Liu et al. (2020), bias corrections in it.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.95, 0.999),
        eps: float = 1e-5,
        weight_decay: float = 0.0,
        every: int = 6,
        share: float = 0.5,
        threshold: float = 5.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "every": every,
            "share": share,
            "threshold": threshold,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._step_weight(group, weight)
        return loss

    def _step_weight(self, group: dict[str, Any], weight: torch.Tensor) -> None:
        state, gradient = self.state[weight], weight.grad
        if gradient is None:
            return
        if not state:
            state["count"] = 0
            state["first"] = torch.zeros_like(weight)
            state["second"] = torch.zeros_like(weight)
            state["slow"] = weight.detach().clone()
        state["count"] += 1
        first_decay, second_decay = group["betas"]
        state["first"].lerp_(gradient, 1.0 - first_decay)
        state["second"].mul_(second_decay).addcmul_(gradient, gradient, value=1.0 - second_decay)
        if group["weight_decay"]:
            weight.mul_(1.0 - group["lr"] * group["weight_decay"])
        size, is_known = step_size(state["count"], group["betas"], group["threshold"])
        if is_known:
            divisor = state["second"].sqrt().add_(group["eps"])
            weight.addcdiv_(state["first"], divisor, value=-group["lr"] * size)
        else:
            weight.add_(state["first"], alpha=-group["lr"] * size)
        if state["count"] % group["every"] == 0:
            state["slow"].lerp_(weight, group["share"])
            weight.copy_(state["slow"])


def step_size(count: int, betas: tuple[float, float], threshold: float) -> tuple[float, bool]:
    """What a step is multiplied with, and whether it is divided by the second moment's root."""
    first_decay, second_decay = betas
    correction = 1.0 - first_decay**count
    most = 2.0 / (1.0 - second_decay) - 1.0
    power = second_decay**count
    length = most - 2.0 * count * power / (1.0 - power)
    if length <= threshold:
        return 1.0 / correction, False
    ratio = (length - 4) / (most - 4) * (length - 2) / length * most / (most - 2)
    return math.sqrt((1.0 - power) * ratio) / correction, True
