"""Optimizers, parameter groups with two learning rates, freezing, and schedules."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError
from eaglenet.encoders.low_rank import is_adapter
from eaglenet.research.training.distributed import is_sharded


class Ranger(torch.optim.RAdam):
    """Rectified Adam (Liu et al., 2020) with look-ahead, the optimizer of CE and TeachText.

    Every :attr:`EVERY` steps, ``slow <- (slow + w) / 2`` and ``w <- slow``.
    """

    EVERY = 6

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, weight_decay: float = 0.0) -> None:
        super().__init__(params, lr, (0.95, 0.999), 1e-5, weight_decay, decoupled_weight_decay=True)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        weights = [weight for group in self.param_groups for weight in group["params"]]
        weights = [weight for weight in weights if weight.grad is not None]
        starts = {weight: weight.clone() for weight in weights if not self.state[weight]}
        loss = super().step(closure)
        for weight in weights:
            state = self.state[weight]
            if weight in starts:
                state["slow"] = starts[weight]
            if int(state["step"]) % self.EVERY == 0:
                weight.copy_(state["slow"].lerp_(weight, 0.5))
        return loss


OptimizerName = Literal["adamw", "bert_adam", "radam", "ranger"]
Freeze = Literal["none", "embeddings", "towers"]
Decay = Literal["matrices", "all"]

EMBEDDING_PARTS = (
    "patch_embedding",
    "class_embedding",
    "positional_embedding",
    "ln_pre",
    "token_embedding",
)
"""Parts of the names of parameters that ``freeze 0`` of common code freezes."""
TOWERS = ("encoder.vision.", "encoder.text.")


def tower_names(method: nn.Module) -> frozenset[str]:
    """Return the names of the towers' parameters; empty for stored features."""
    names = [name for name, _ in method.named_parameters()]
    if not any(name.startswith(TOWERS[0]) for name in names):
        return frozenset()
    return frozenset(name for name in names if name.startswith(TOWERS))


def freeze_parameters(method: nn.Module, freeze: Freeze) -> int:
    """Freeze parameters of the towers, and return the number of frozen scalars."""
    num_frozen = 0
    towers = tower_names(method)
    if freeze != "none" and not towers:
        raise ConfigError(
            f"training.freeze={freeze}: this encoder has no towers, only adapters of stored "
            "features: --set training.freeze=none (training.lr_encoder=0 freezes adapters)"
        )
    for name, parameter in method.named_parameters():
        is_embedding = any(part in name for part in EMBEDDING_PARTS)
        if name in towers and (freeze == "towers" or (freeze == "embeddings" and is_embedding)):
            parameter.requires_grad_(False)
            num_frozen += parameter.numel()
    return num_frozen


def halve_towers(method: nn.Module) -> None:
    """Store the linear layers of both towers in fp16, as common code does.

    Their gradients and optimizer state are fp16 too; norms and embeddings stay in fp32.
    """
    towers = tower_names(method)
    for name, module in method.named_modules():
        if isinstance(module, nn.Linear) and f"{name}.weight" in towers:
            module.half()


def is_decayed(
    name: str, parameter: Tensor, optimizer: OptimizerName, decay: Decay = "matrices"
) -> bool:
    """Return whether weight decay applies to a parameter.

    ``all`` applies it to all parameters (X-Pool, T-MASS). Otherwise ``bert_adam`` excludes only
    biases, as the authors do; other optimizers exclude positions and all parameters with fewer than
    two axes (biases, norms, temperatures).
    """
    if decay == "all":
        return True
    if optimizer == "bert_adam":
        return "bias" not in name
    return parameter.ndim >= 2 and "position" not in name


def parameter_groups(
    method: nn.Module,
    *,
    lr_encoder: float,
    lr_head: float,
    weight_decay: float,
    optimizer: OptimizerName = "adamw",
    decay: Decay = "matrices",
) -> list[dict[str, Any]]:
    """Group parameters by encoder or head and by weight decay.

    The rate of each group follows its ``peak``.
    """
    rates = {True: lr_encoder, False: lr_head}
    members: dict[tuple[bool, bool, bool], list[Tensor]] = {}
    for name, parameter in method.named_parameters():
        if parameter.requires_grad:
            # A fused step needs groups of only sharded or only plain tensors.
            has_decay = is_decayed(name, parameter, optimizer, decay)
            key = (is_of_encoder(name), has_decay, is_sharded(parameter))
            members.setdefault(key, []).append(parameter)
    if not members:
        raise ConfigError(
            "no parameter to train: the method has no head and the towers are frozen: --set "
            "training.freeze=none, or choose a method with a head"
        )
    return [
        {
            "params": parameters,
            "lr": rates[encoder],
            "peak": rates[encoder],
            "weight_decay": weight_decay if has_decay else 0.0,
            "name": f"{'encoder' if encoder else 'head'}{'' if has_decay else ', no decay'}",
        }
        for (encoder, has_decay, _), parameters in sorted(members.items(), reverse=True)
    ]


def is_of_encoder(name: str) -> bool:
    """Return whether a parameter has the learning rate of the encoder.

    The temperature of softmax logits has it, because it is CLIP's. Low-rank changes of the towers
    do not, because they start at zero, like a head.
    """
    return name == "loss.logit_scale" or (name.startswith("encoder.") and not is_adapter(name))


def build_optimizer(
    groups: list[dict[str, Any]], name: OptimizerName, *, beta: float = 0.98
) -> torch.optim.Optimizer:
    """Build the optimizer ``name``; ``beta`` is the decay of its second moment."""
    if name == "bert_adam":
        return BertAdam(groups, betas=(0.9, beta))
    if name == "ranger":
        return Ranger(groups)
    if name == "radam":
        return torch.optim.RAdam(groups, betas=(0.9, beta), decoupled_weight_decay=True)
    on_gpu = all(parameter.is_cuda for group in groups for parameter in group["params"])
    return torch.optim.AdamW(groups, betas=(0.9, beta), eps=1e-6, fused=on_gpu or None)


class BertAdam(torch.optim.Optimizer):
    """Adam as in the code of BERT, CLIP4Clip and most compared methods.

        g <- g / max(1, ||g||)          per tensor
        m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2
        w <- w - rate (m / (sqrt(v) + eps) + decay w)

    It has no bias correction, and the decay is multiplied by the scheduled rate.

    Paper: the released code keeps tower weights and both moments in fp16, where v underflows to
    zero and a rate of 1e-7 acts like 0.1 without adaptation. This class computes in the precision
    of the weights: with ``halve_towers`` it does the same; with fp32 weights, that rate practically
    freezes CLIP.
    """

    def __init__(self, params: Iterable[Any], **settings: Any) -> None:
        defaults = {
            "lr": 1e-4, "betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.2, "clip_norm": 1.0,
        }  # fmt: skip
        super().__init__(params, {**defaults, **settings})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group(group)
        return loss

    def _step_group(self, group: dict[str, Any]) -> None:
        weights = [weight for weight in group["params"] if weight.grad is not None]
        if not weights:
            return
        gradients = [weight.grad for weight in weights]
        for weight in weights:
            if not self.state[weight]:
                self.state[weight]["first"] = torch.zeros_like(weight)
                self.state[weight]["second"] = torch.zeros_like(weight)
        first = [self.state[weight]["first"] for weight in weights]
        second = [self.state[weight]["second"] for weight in weights]
        if group["clip_norm"] > 0:
            norms = torch._foreach_norm(gradients)
            scales = [(group["clip_norm"] / (norm + 1e-6)).clamp(max=1.0) for norm in norms]
            gradients = [
                gradient * scale for gradient, scale in zip(gradients, scales, strict=True)
            ]
        first_decay, second_decay = group["betas"]
        torch._foreach_lerp_(first, gradients, 1.0 - first_decay)
        torch._foreach_mul_(second, second_decay)
        torch._foreach_addcmul_(second, gradients, gradients, 1.0 - second_decay)
        divisors = torch._foreach_sqrt(second)
        torch._foreach_add_(divisors, group["eps"])
        updates = torch._foreach_div(first, divisors)
        if group["weight_decay"] > 0:
            torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
        torch._foreach_add_(weights, updates, alpha=-group["lr"])


ScheduleName = Literal["cosine", "linear", "released", "epochs"]


def rate_factor(
    step: int,
    num_steps: int,
    *,
    warmup: float = 0.1,
    schedule: ScheduleName = "cosine",
    epochs: int = 1,
    decay: float = 1.0,
) -> float:
    """Return the factor of the peak rate at step ``step`` (from 0) of ``num_steps``.

    All schedules but ``released`` rise as (step + 1) / warm-up steps. Then ``cosine`` falls as
    (1 + cos(pi x)) / 2 with x from 0 to 1, ``linear`` falls linearly (ClipBERT), and ``epochs``
    multiplies by ``decay`` after each of ``epochs`` equal parts (methods with experts).
    ``released`` starts at 0 and measures the cosine from the first step, so that the rate jumps
    from 1 to 0.976 after a warm-up of 10%, as in the authors' code.
    """
    progress = step / max(num_steps, 1)
    if schedule == "released":
        if progress < warmup:
            return progress / warmup
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    warmup_steps = round(warmup * num_steps)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "epochs":
        # In whole numbers: 15 / 22 * 22 is less than 15.
        return float(decay ** (step * epochs // max(num_steps, 1)))
    num_remaining = max(num_steps - warmup_steps, 1)
    if schedule == "linear":
        return 1.0 - (step - warmup_steps) / num_remaining
    return 0.5 * (1.0 + math.cos(math.pi * (step - warmup_steps) / num_remaining))
