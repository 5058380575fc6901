"""Groups, freezing, and the BERT-style Adam by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig
from eaglenet.methods import METHODS
from eaglenet.methods.base import Method
from eaglenet.methods.eaglenet import EagleNetConfig
from eaglenet.research.training.optimizer import (
    BertAdam,
    build_optimizer,
    freeze_parameters,
    halve_towers,
    parameter_groups,
)

TOWERS = ClipConfig(
    dim=8,
    vision=VisionConfig(image_size=12, patch_size=4, width=16, layers=2, heads=2, mlp_width=20),
    text=TextConfig(
        vocabulary_size=50, context_length=7, width=12, layers=2, heads=2, mlp_width=24
    ),
)


@pytest.fixture
def method() -> Method:
    """EagleNet on small towers."""
    config = EagleNetConfig(dim=8, num_frames=3, num_candidates=2)
    return METHODS["eaglenet"].build(config, ClipEncoder(TOWERS))


def names_of(method: Method, groups: list[dict[str, Any]]) -> dict[str, set[str]]:
    owner = {id(parameter): name for name, parameter in method.named_parameters()}
    return {
        group["name"]: {owner[id(parameter)] for parameter in group["params"]} for group in groups
    }


def groups_of(method: Method, **options: str) -> list[dict[str, Any]]:
    return parameter_groups(method, lr_encoder=1e-6, lr_head=1e-4, weight_decay=0.2, **options)


def test_every_trained_parameter_is_in_exactly_one_group(method: Method) -> None:
    groups = names_of(method, groups_of(method))
    listed = [name for names in groups.values() for name in names]
    trained = [name for name, value in method.named_parameters() if value.requires_grad]
    assert sorted(listed) == sorted(trained)


def test_towers_and_heads_have_their_own_rates(method: Method) -> None:
    for group in groups_of(method):
        assert group["peak"] == (1e-6 if group["name"].startswith("encoder") else 1e-4)


def test_the_scale_of_softmax_logits_is_clips_and_has_its_rate() -> None:
    """The originals train CLIP's own logit scale; the sigmoid loss has a temperature of its own."""
    softmax = METHODS["xpool"].build(METHODS["xpool"].config_class(), ClipEncoder(TOWERS))
    groups = names_of(softmax, groups_of(softmax))
    assert "loss.logit_scale" in groups["encoder, no decay"]
    config = EagleNetConfig(dim=8, num_frames=3, num_candidates=2)
    sigmoid = METHODS["eaglenet"].build(config, ClipEncoder(TOWERS))
    assert "loss.temperature" in names_of(sigmoid, groups_of(sigmoid))["head, no decay"]


def test_everything_decays_where_the_original_decays_everything(method: Method) -> None:
    assert set(names_of(method, groups_of(method, decay="all"))) == {"encoder", "head"}


def test_biases_norms_temperatures_and_positions_do_not_decay(method: Method) -> None:
    groups = names_of(method, groups_of(method))
    kept = groups["encoder"] | groups["head"]
    for word in ("bias", "ln_", "norm", "temperature", "position"):
        assert not [name for name in kept if word in name]
    assert "encoder.vision.blocks.0.mlp.up.weight" in kept


def test_released_grouping_decays_norm_weights_and_temperatures(method: Method) -> None:
    groups = names_of(method, groups_of(method, optimizer="bert_adam"))
    assert "encoder.vision.blocks.0.ln_1.weight" in groups["encoder"]
    assert "loss.temperature" in groups["head"]
    assert "loss.bias" in groups["head, no decay"]


def test_adapters_of_stored_features_have_the_encoders_rate() -> None:
    from eaglenet.encoders.features import FeatureConfig, FeatureEncoder

    config = EagleNetConfig(dim=8, num_frames=3, num_candidates=2)
    method = METHODS["eaglenet"].build(config, FeatureEncoder(FeatureConfig(9, 11, 8)))
    groups = groups_of(method)
    names = names_of(method, groups)
    assert "encoder.text.linear.weight" in names["encoder"]
    assert "encoder.frames.linear.weight" in names["encoder"]
    assert [group["peak"] for group in groups if group["name"].startswith("encoder")] == [1e-6] * 2


def test_freezing_embeddings_leaves_the_blocks(method: Method) -> None:
    frozen = freeze_parameters(method, "embeddings")
    stopped = {name for name, value in method.named_parameters() if not value.requires_grad}
    assert "encoder.vision.positional_embedding" in stopped
    assert "encoder.vision.patch_embedding.projection.weight" in stopped
    assert "encoder.vision.ln_pre.weight" in stopped
    assert "encoder.text.token_embedding.weight" in stopped
    assert not [name for name in stopped if ".blocks." in name]
    assert frozen > 0


def test_freezing_towers_leaves_the_head_only(method: Method) -> None:
    freeze_parameters(method, "towers")
    trained = [name for name, value in method.named_parameters() if value.requires_grad]
    assert trained
    assert not [name for name in trained if name.startswith("encoder.")]


@pytest.mark.parametrize("freeze", ["embeddings", "towers"])
def test_freezing_towers_that_are_not_there_is_an_error(freeze: str) -> None:
    from eaglenet.encoders.features import FeatureConfig, FeatureEncoder

    config = EagleNetConfig(dim=8, num_frames=3, num_candidates=2)
    method = METHODS["eaglenet"].build(config, FeatureEncoder(FeatureConfig(9, 11, 8)))
    with pytest.raises(ConfigError, match="has no towers"):
        freeze_parameters(method, freeze)


def test_what_a_builder_froze_stays_frozen(method: Method) -> None:
    assert not method.encoder.logit_scale.requires_grad
    freeze_parameters(method, "none")
    assert not method.encoder.logit_scale.requires_grad


def test_nothing_left_to_train_is_an_error() -> None:
    method = METHODS["clip4clip"].build(METHODS["clip4clip"].config_class(), ClipEncoder(TOWERS))
    for parameter in method.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ConfigError, match="no parameter to train"):
        groups_of(method)


def test_bert_adam_follows_its_formula_without_bias_correction() -> None:
    weight = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = BertAdam([weight], lr=0.1, weight_decay=0.2)
    weight.grad = torch.tensor([0.3, 0.4], dtype=torch.float64)  # norm 0.5: not clipped
    optimizer.step()
    first = 0.1 * torch.tensor([0.3, 0.4], dtype=torch.float64)
    second = 0.02 * torch.tensor([0.09, 0.16], dtype=torch.float64)
    start = torch.tensor([1.0, -2.0], dtype=torch.float64)
    expected = start - 0.1 * (first / (second.sqrt() + 1e-6) + 0.2 * start)
    torch.testing.assert_close(weight.detach(), expected, rtol=0, atol=1e-12)


def test_bert_adam_clips_each_tensor_by_itself() -> None:
    large, small = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))
    optimizer = BertAdam([large, small], lr=1.0, weight_decay=0.0)
    large.grad, small.grad = torch.tensor([30.0, 40.0]), torch.tensor([0.1, 0.0, 0.0])
    optimizer.step()
    torch.testing.assert_close(
        optimizer.state[large]["first"], torch.tensor([0.06, 0.08]), rtol=1e-4, atol=0
    )
    torch.testing.assert_close(optimizer.state[small]["first"], torch.tensor([0.01, 0.0, 0.0]))


def change_after_steps(dtype: torch.dtype) -> Tensor:
    """How far weights move in 200 steps at 1e-7 with gradients of 1e-4."""
    generator = torch.Generator().manual_seed(0)
    start = 0.02 * torch.randn(500, generator=generator)
    weight = nn.Parameter(start.to(dtype))
    optimizer = BertAdam([weight], lr=1e-7, weight_decay=0.0, clip_norm=0.0)
    for _ in range(200):
        weight.grad = (1e-4 * torch.randn(500, generator=generator)).to(dtype)
        optimizer.step()
    return (weight.detach().float() - start).abs().mean()


def test_a_rate_of_1e_7_moves_fp16_weights_and_freezes_fp32_ones() -> None:
    assert change_after_steps(torch.float16) > 10 * change_after_steps(torch.float32)


def test_halved_towers_keep_norms_and_embeddings_in_fp32(method: Method) -> None:
    halve_towers(method)
    dtypes = {name: value.dtype for name, value in method.named_parameters()}
    assert dtypes["encoder.vision.blocks.0.mlp.up.weight"] == torch.float16
    assert dtypes["encoder.vision.blocks.0.ln_1.weight"] == torch.float32
    assert dtypes["encoder.text.token_embedding.weight"] == torch.float32
    assert dtypes[
        "pooling.output.weight" if "pooling.output.weight" in dtypes else "loss.bias"
    ] == (torch.float32)


def test_adamw_is_built_with_all_groups(method: Method) -> None:
    optimizer = build_optimizer(groups_of(method), "adamw")
    assert isinstance(optimizer, torch.optim.AdamW)
    assert len(optimizer.param_groups) == 4


def test_radam_takes_plain_steps_until_its_variance_is_known() -> None:
    """TeachText's: below a length of 5 the step is the momentum alone, with decoupled decay."""
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    group = {"params": [weight], "lr": 0.1, "weight_decay": 0.5}
    optimizer = build_optimizer([group], "radam", beta=0.999)
    weight.grad = torch.tensor([3.0])
    optimizer.step()
    assert weight.item() == pytest.approx(2.0 * (1 - 0.1 * 0.5) - 0.1 * 3.0)
