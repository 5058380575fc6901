"""Parameter groups with two rates, freezing, AdamW, and the field's BERT-style Adam."""

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
    """Optimizer of CE and TeachText: rectified Adam (Liu et al., 2020) with look-ahead.

    Every :attr:`EVERY` steps ``slow <- (slow + w) / 2`` and ``w <- slow``.
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

# Patch embedding, class and position embeddings, the norm before the blocks, token embedding:
# what the field's `freeze 0` leaves untouched.
EMBEDDING_PARTS = (
    "patch_embedding",
    "class_embedding",
    "positional_embedding",
    "ln_pre",
    "token_embedding",
)
TOWERS = ("encoder.vision.", "encoder.text.")


def tower_names(method: nn.Module) -> frozenset[str]:
    """Parameters of the towers; none where the encoder only adapts stored features."""
    names = [name for name, _ in method.named_parameters()]
    if not any(name.startswith(TOWERS[0]) for name in names):
        return frozenset()
    return frozenset(name for name in names if name.startswith(TOWERS))


def freeze_parameters(method: nn.Module, freeze: Freeze) -> int:
    """Stop gradients as ``freeze`` says; gives the number of parameters (scalars) frozen."""
    frozen = 0
    towers = tower_names(method)
    if freeze != "none" and not towers:
        raise ConfigError(
            f"training.freeze={freeze}: this encoder has no towers, only adapters of stored "
            "features; set training.freeze=none (training.lr_encoder=0 keeps adapters still)"
        )
    for name, parameter in method.named_parameters():
        is_embedding = any(part in name for part in EMBEDDING_PARTS)
        if name in towers and (freeze == "towers" or (freeze == "embeddings" and is_embedding)):
            parameter.requires_grad_(False)
            frozen += parameter.numel()
    return frozen


def halve_towers(method: nn.Module) -> None:
    """Store the matrices and biases of both towers' linear maps in fp16, as the field does.

    Their gradients and optimizer state are then fp16 too; norms and embeddings stay fp32.
    """
    towers = tower_names(method)
    for name, module in method.named_modules():
        if isinstance(module, nn.Linear) and f"{name}.weight" in towers:
            module.half()


def decays(
    name: str, parameter: Tensor, optimizer: OptimizerName, decay: Decay = "matrices"
) -> bool:
    """Tell whether weight decay applies; to everything with ``all`` (X-Pool, T-MASS). Otherwise:

    ``adamw`` leaves out everything with fewer than two axes (biases, norms, temperatures) and
    positions. ``bert_adam`` leaves out names with `bias` only, so that norm weights, temperatures
    and positions decay: the authors' grouping.
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
    """Groups: encoder (towers or adapters) and the rest, with and without decay.

    ``peak`` is their rate. The scale of softmax logits is CLIP's own, so it has the encoder's.
    """
    rates = {True: lr_encoder, False: lr_head}
    members: dict[tuple[bool, bool, bool], list[Tensor]] = {}
    for name, parameter in method.named_parameters():
        if parameter.requires_grad:
            # The optimizer's fused step takes either whole or sharded tensors.
            is_decayed = decays(name, parameter, optimizer, decay)
            key = (is_of_encoder(name), is_decayed, is_sharded(parameter))
            members.setdefault(key, []).append(parameter)
    if not members:
        raise ConfigError(
            "no parameter is left to train: the method has none of its own and the towers are "
            "frozen; set training.freeze=none or choose a method with a head"
        )
    return [
        {
            "params": parameters,
            "lr": rates[encoder],
            "peak": rates[encoder],
            "weight_decay": weight_decay if is_decayed else 0.0,
            "name": f"{'encoder' if encoder else 'head'}{'' if is_decayed else ', no decay'}",
        }
        for (encoder, is_decayed, _), parameters in sorted(members.items(), reverse=True)
    ]


def is_of_encoder(name: str) -> bool:
    """Tell whether a parameter trains at the encoder's rate: its own, and CLIP's scale.

    Low-rank changes of towers start at nothing, as a head does, and train at its rate.
    """
    return name == "loss.logit_scale" or (name.startswith("encoder.") and not is_adapter(name))


def build_optimizer(
    groups: list[dict[str, Any]], name: OptimizerName, *, beta: float = 0.98
) -> torch.optim.Optimizer:
    """AdamW (fused where the parameters are on a GPU), :class:`BertAdam` or :class:`Ranger`.

    ``beta`` is that of the second moment.
    """
    if name == "bert_adam":
        return BertAdam(groups, betas=(0.9, beta))
    if name == "ranger":
        return Ranger(groups)
    if name == "radam":
        return torch.optim.RAdam(groups, betas=(0.9, beta), decoupled_weight_decay=True)
    on_gpu = all(parameter.is_cuda for group in groups for parameter in group["params"])
    return torch.optim.AdamW(groups, betas=(0.9, beta), eps=1e-6, fused=on_gpu or None)


class BertAdam(torch.optim.Optimizer):
    """Adam as the field's released code runs it.

        g <- g / max(1, ||g||)          per tensor
        m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2
        w <- w - rate (m / (sqrt(v) + eps) + decay w)

    No bias correction, and the decay is multiplied by the scheduled rate.

    Paper: the released code keeps tower weights and both moments in fp16, where v underflows to
    zero and a rate of 1e-7 acts like 0.1 without adaptation. This class computes in the weights'
    own precision: with ``halve_towers`` it does the same, and with fp32 weights that rate leaves
    CLIP practically frozen.
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


# Learning rate against progress: linear warm-up, then half a cosine, or steps.

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
    """The share of the peak rate that optimizer step ``step`` (from 0) of ``num_steps`` uses.

    ``cosine`` rises as (step + 1) / warm-up steps and then falls as (1 + cos(pi x)) / 2, with x
    running from 0 at the end of the warm-up to 1 at the end. ``released`` starts at 0 and measures
    the cosine from the very beginning, so that the rate jumps from 1 to 0.976 after a warm-up of
    10%: what the authors' code does. ``epochs`` multiplies with ``decay`` after each of ``epochs``
    equal parts, as the methods over experts do. ``linear`` falls on a straight line after the
    warm-up (ClipBERT).
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
        return decay ** math.floor(progress * epochs)
    remaining = max(num_steps - warmup_steps, 1)
    if schedule == "linear":
        return 1.0 - (step - warmup_steps) / remaining
    return 0.5 * (1.0 + math.cos(math.pi * (step - warmup_steps) / remaining))
