"""What must hold for every registered method; a new one is picked up by itself."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path

import pytest
import torch
from small_models import (
    ASLEEP,
    CONFIGS,
    DIM,
    EXPERTS,
    FRAMES,
    ROOM,
    TEXTS,
    VIDEOS,
    Case,
    all_cases,
    make_config,
    make_encoder,
    make_method,
    make_texts,
    make_videos,
    method_of,
    pad_texts,
    pad_videos,
    runs_on_features,
)
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import TextFeatures, Tokens, VideoFeatures
from eaglenet.encoders.low_rank import adapt_towers, is_adapter
from eaglenet.methods import METHODS, Method
from eaglenet.models import folder
from eaglenet.research.training.trainer import save_model
from sampling import first_of_each, one_in

CASES = all_cases()
# Taken together with the cases: other tests register methods of their own.
FORMS = {(name, variant) for name in METHODS for variant in CONFIGS.get(name, ["default"])}
# float32 towers sum in another order for another batch shape.
CLOSE = {"rtol": 1e-4, "atol": 2e-5}

HALVES = (".qkv.down", ".scale_time", ".shift_time")


def form(case: Case) -> tuple[str, str]:
    return case.method, case.encoder


# By default one form of each method on each kind of input; all forms with the slow tests.
every_case = pytest.mark.parametrize("case", first_of_each(form, CASES), ids=str)
every_method = pytest.mark.parametrize("case", first_of_each(lambda c: c.method, CASES), ids=str)
OFFICIAL = ("official", "released")
masked_cases = pytest.mark.parametrize(
    "case",
    # Official forms look at padding on purpose, as their authors' code does.
    first_of_each(form, [case for case in CASES if case.variant not in OFFICIAL]),
    ids=str,
)


ON_EXPERTS_ALONE = {"hgr"}
"""Methods that have no form on a tower's own frames."""


def test_no_method_falls_out_of_these_tests() -> None:
    """A tower that a method refuses is left out of the cases, even where it should not refuse."""
    on_towers = {(case.method, case.variant) for case in CASES if case.encoder == "clip"}
    assert {name for name, _ in FORMS - on_towers} == ON_EXPERTS_ALONE
    assert {(case.method, case.variant) for case in CASES} == FORMS


@torch.no_grad()
def encode(
    case: Case, texts: object = None, videos: object = None
) -> tuple[TextFeatures, VideoFeatures]:
    method = method_of(case)
    texts = make_texts(case.encoder) if texts is None else texts
    videos = make_videos(case.encoder) if videos is None else videos
    return method.encode_text(texts), method.encode_video(videos)  # type: ignore[arg-type]


@functools.cache
def encoded_of(case: Case) -> tuple[TextFeatures, VideoFeatures]:
    """Shared between tests too."""
    torch.manual_seed(11)
    return encode(case)


@functools.cache
@torch.no_grad()
def scores_of(case: Case) -> Tensor:
    torch.manual_seed(13)
    return method_of(case).score(*encoded_of(case))


@functools.cache
@torch.no_grad()
def encoded_alone(case: Case) -> tuple[list[TextFeatures], list[VideoFeatures]]:
    """Every text and every video, encoded in a call of its own."""
    method = method_of(case)
    texts, videos = make_texts(case.encoder), make_videos(case.encoder)
    return (
        [method.encode_text(texts[row]) for row in range(TEXTS)],
        [method.encode_video(videos[column]) for column in range(VIDEOS)],
    )


def seeded_loss(method: Method, case: Case, *, words: bool = False) -> Tensor:
    """The loss of five pairs, two of one video, with the same draws at every call."""
    texts, videos = make_texts(case.encoder, VIDEOS, words=words), make_videos(case.encoder)
    video_ids = torch.tensor([0, 1, 2, 3, 3])
    positives = video_ids[:, None] == video_ids[None, :]
    torch.manual_seed(5)
    total: Tensor = method.losses(
        method.encode_text(texts), method.encode_video(videos), positives
    ).total
    return total


@every_case
def test_scores_are_texts_by_videos_and_finite(case: Case) -> None:
    scores = scores_of(case)
    assert scores.shape == (TEXTS, VIDEOS)
    assert scores.isfinite().all()
    # Not a constant: a score that ignored its pair would pass every other test.
    assert scores.std(dim=0).min() > 0
    assert scores.std(dim=1).min() > 0


LATER_FIELDS = ("weights", "tokens", "graph", "teachers", "keys", "experts", "ids")
"""Of features, for methods over experts, captions, teachers and slow copies."""


@pytest.mark.parametrize(
    "case",
    first_of_each(form, [case for case in CASES if not METHODS[case.method].reads_experts]),
    ids=str,
)
def test_methods_that_do_not_use_the_later_fields_do_not_see_them(case: Case) -> None:
    text, video = encoded_of(case)
    assert all(getattr(text, name, None) is None for name in LATER_FIELDS)
    seen = [name for name in LATER_FIELDS if getattr(video, name, None) is not None]
    assert set(seen) <= {"tokens"}  # of videos, tokens are older: proxies, selected patches


@every_case
@torch.no_grad()
def test_a_pair_scores_the_same_alone_and_in_a_batch(case: Case) -> None:
    """Every video with one text: the short text with two, the short video with one of them."""
    texts, videos = encoded_alone(case)
    rows, columns = (0, 0, 1, 2, 1), (0, 1, 2, 3, 4)
    alone = [
        method_of(case).score(texts[row], videos[column])
        for row, column in zip(rows, columns, strict=True)
    ]
    assert {score.shape for score in alone} == {(1, 1)}
    torch.testing.assert_close(torch.cat(alone)[:, 0], scores_of(case)[rows, columns], **CLOSE)


@every_case
@torch.no_grad()
def test_permuting_the_gallery_permutes_the_scores(case: Case) -> None:
    order = torch.tensor([3, 0, 4, 1, 2])
    text, video = encoded_of(case)
    torch.testing.assert_close(
        method_of(case).score(text, video[order]), scores_of(case)[:, order], **CLOSE
    )
    encoded = method_of(case).encode_video(make_videos(case.encoder)[order])
    torch.testing.assert_close(
        method_of(case).score(text, encoded), scores_of(case)[:, order], **CLOSE
    )


@every_case
@torch.no_grad()
def test_encoding_draws_nothing_and_remembers_nothing(case: Case) -> None:
    """Another seed and other texts in between change no bit, nor do texts reach a video."""
    method = method_of(case)
    assert list(inspect.signature(method.encode_video).parameters) == ["videos"]
    assert list(inspect.signature(method.encode_text).parameters) == ["texts"]
    (_, before), scores = encoded_of(case), scores_of(case)
    torch.manual_seed(12)
    method.encode_text(make_texts(case.encoder, seed=8))
    text, after = encode(case)
    assert torch.equal(before.frames, after.frames)
    for name in ("video", "tokens"):
        value = getattr(before, name)
        assert value is None or torch.equal(value, getattr(after, name))
    assert torch.equal(method.score(text, after), scores)


@masked_cases
@torch.no_grad()
def test_padding_does_not_change_a_score(case: Case) -> None:
    texts = pad_texts(make_texts(case.encoder), 2)
    videos = pad_videos(make_videos(case.encoder), ROOM - FRAMES)
    padded = method_of(case).score(*encode(case, texts, videos))
    torch.testing.assert_close(padded, scores_of(case), **CLOSE)


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if c.encoder == "experts" and c.variant not in OFFICIAL],
    ids=str,
)
@torch.no_grad()
def test_a_missing_expert_scores_as_if_it_were_never_stored(case: Case) -> None:
    """Whatever lies in the places of a missing expert: nothing of it reaches a score."""
    method = method_of(case)
    videos = make_videos("experts")
    assert isinstance(videos, VideoFeatures)
    assert videos.experts is not None
    for expert in videos.experts.values():
        expert.values[~expert.mask] = 1e3
    torch.testing.assert_close(method.score(*encode(case, videos=videos)), scores_of(case), **CLOSE)


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if c.encoder == "experts" and c.variant not in OFFICIAL],
    ids=str,
)
def test_nothing_is_learnt_from_the_places_of_a_missing_expert(case: Case) -> None:
    """Loss, gradients and statistics of a step, with zeros there and with other numbers."""
    found = []
    for filling in (0.0, 1e3):
        method = make_method(case).train()
        texts, videos = make_texts("experts", VIDEOS), make_videos("experts")
        assert isinstance(videos, VideoFeatures)
        assert videos.experts is not None
        for expert in videos.experts.values():
            expert.values[~expert.mask] = filling
        torch.manual_seed(5)
        loss = method.losses(
            method.encode_text(texts), method.encode_video(videos), torch.eye(VIDEOS).bool()
        ).total
        loss.backward()
        gradients = [p.grad for p in method.parameters() if p.grad is not None]
        statistics = [value for value in method.buffers() if value.is_floating_point()]
        found.append([loss.detach(), *gradients, *statistics])
    for zeros, others in zip(*found, strict=True):
        torch.testing.assert_close(zeros, others, **CLOSE)


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if c.encoder == "features" and c.variant not in OFFICIAL],
    ids=str,
)
@torch.no_grad()
def test_padded_word_features_do_not_change_a_score(case: Case) -> None:
    texts, (_, video) = make_texts("features", words=True), encoded_of(case)
    method = method_of(case)
    scores = method.score(method.encode_text(texts), video)
    padded = method.score(method.encode_text(pad_texts(texts, 2)), video)
    torch.testing.assert_close(padded, scores, **CLOSE)


@every_case
@torch.no_grad()
def test_features_of_separate_batches_can_be_joined(case: Case) -> None:
    """As evaluation and accumulated steps do, whatever the longest text of a batch is."""
    method = method_of(case)
    lone_texts, lone_videos = encoded_alone(case)
    whole = scores_of(case)
    if case.encoder not in ("features", "experts"):
        ids = torch.randint(1, 99, (TEXTS, 38), generator=torch.Generator().manual_seed(7))
        lengths = torch.tensor([[38], [5], [36]])
        mask = torch.arange(38)[None] < lengths
        ids = ids.scatter(1, lengths - 1, 99) * mask
        texts = Tokens(ids, mask)
        lone_texts = [method.encode_text(texts[row]) for row in range(TEXTS)]
        whole = method.score(method.encode_text(texts), encoded_of(case)[1])
    text = TextFeatures.concatenate(lone_texts)
    video = VideoFeatures.concatenate(lone_videos)
    torch.testing.assert_close(method.score(text, video), whole, **CLOSE)


@masked_cases
@torch.no_grad()
def test_a_video_without_a_real_frame_never_gives_nan(case: Case) -> None:
    text, _ = encoded_of(case)
    empty = method_of(case).encode_video(_without_frames(case))  # type: ignore[arg-type]
    scores = method_of(case).score(text, empty)
    assert scores.isfinite().all()
    torch.testing.assert_close(scores[:, 1:], scores_of(case)[:, 1:], **CLOSE)


def _without_frames(case: Case) -> object:
    videos = make_videos(case.encoder)
    videos.mask[0] = False
    for expert in getattr(videos, "experts", None) or {}:
        videos.experts[expert].mask[0] = False  # type: ignore[union-attr,index]
    return videos


ON_TOWERS = {c.method: c.variant for c in reversed(CASES) if c.encoder == "clip"}
with_placed_towers = pytest.mark.parametrize(
    "case",
    # Frame positions lie below every head: the first form of a method stands for its others.
    first_of_each(
        form, [*CASES, *(Case(method, variant, "placed") for method, variant in ON_TOWERS.items())]
    ),
    ids=str,
)


def wake(method: Method, case: Case) -> None:
    """One step, after which what lay behind a zero gets a gradient as well."""
    seeded_loss(method, case, words=True).backward()
    torch.optim.SGD([p for p in method.parameters() if p.grad is not None], lr=0.1).step()
    method.zero_grad()


@with_placed_towers
def test_every_parameter_gets_a_gradient(case: Case) -> None:
    """On features that have words: to DRL a sentence without words is one word, of weight 1."""
    method = make_method(case).train()
    if case.method in ASLEEP:
        wake(method, case)
    seeded_loss(method, case, words=True).backward()
    trained = {name: p for name, p in method.named_parameters() if p.requires_grad}
    frozen = {name for name, p in method.named_parameters() if not p.requires_grad}
    # The loss has a temperature of its own, and CLIP-ViP's tower frame positions of its own.
    frozen = {name for name in frozen if not name.startswith("key_")}  # follow, do not learn
    if not getattr(method.config, "frozen", False):
        assert frozen <= {"encoder.logit_scale", "encoder.vision.frame_embedding"}
    assert trained
    without = [name for name, p in trained.items() if p.grad is None or not p.grad.any()]
    # One half of a low-rank change starts at 0: the other learns from the second step on.
    without = [name for name in without if not name.endswith(HALVES)]
    assert without == []
    assert all(p.grad.isfinite().all() for p in trained.values() if p.grad is not None)


@pytest.mark.slow
@with_placed_towers
def test_no_gradient_is_rounding_alone(case: Case) -> None:
    """A bias that a softmax cancels has a gradient of 1e-16 and would pass for a trained one."""
    method = make_method(case).double().train()
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in method.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter += 0.1 * noise
    seeded_loss(method, case, words=True).backward()
    sizes = {name: p.grad.norm() for name, p in method.named_parameters() if p.grad is not None}
    largest = max(sizes.values())
    assert [name for name, size in sizes.items() if size < 1e-11 * largest] == []


@every_method
def test_one_training_step_lowers_the_loss_of_its_batch(case: Case) -> None:
    method = make_method(case).train()
    buffers = {name: value.clone() for name, value in method.named_buffers()}
    before = seeded_loss(method, case)
    before.backward()
    parameters = [p for p in method.parameters() if p.grad is not None]
    length = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    torch.optim.SGD(parameters, lr=float(0.01 / length)).step()
    with torch.no_grad():
        for name, value in method.named_buffers():
            value.copy_(buffers[name])  # a replay buffer moves on with every step
        after = seeded_loss(method, case)
    assert after < before


@every_method
@torch.no_grad()
def test_a_saved_model_loads_with_the_same_scores(case: Case, tmp_path: object) -> None:
    folder.save(method_of(case), tmp_path)  # type: ignore[arg-type]
    loaded = folder.load(tmp_path)  # type: ignore[arg-type]
    assert type(loaded) is type(method_of(case))
    assert loaded.config == method_of(case).config
    assert not loaded.training
    text = loaded.encode_text(make_texts(case.encoder))
    video = loaded.encode_video(make_videos(case.encoder))
    assert torch.equal(loaded.score(text, video), scores_of(case))


@pytest.mark.parametrize(
    "case",
    one_in(10, [case for case in CASES if case.encoder in ("clip", "compact")]),
    ids=str,
)
def test_low_rank_changes_of_the_towers_train_and_are_merged_when_saved(
    case: Case, tmp_path: Path
) -> None:
    """The saved model has the same scores, and weights of the usual names."""
    method = make_method(case)
    names = set(method.state_dict())
    adapt_towers(method.encoder, 2, "all")  # type: ignore[arg-type]
    adapters = [value for name, value in method.named_parameters() if is_adapter(name)]
    optimizer = torch.optim.Adam(adapters, lr=1e-2)
    method.train()
    for _ in range(2):
        optimizer.zero_grad()
        seeded_loss(method, case).backward()
        optimizer.step()
    assert all(value.grad is not None for value in adapters)

    @torch.no_grad()
    def score(method: Method) -> Tensor:
        texts, videos = make_texts(case.encoder), make_videos(case.encoder)
        torch.manual_seed(11)
        features = method.encode_text(texts), method.encode_video(videos)
        torch.manual_seed(13)
        return method.score(*features)

    changed = score(method.eval())
    assert not torch.allclose(changed, scores_of(case), atol=1e-4)
    save_model(method, tmp_path / "model", method.state_dict())
    loaded = folder.load(tmp_path / "model")
    assert set(loaded.state_dict()) == names
    torch.testing.assert_close(score(loaded), changed, **CLOSE)


@every_case
@torch.no_grad()
def test_coarse_vectors_have_unit_length(case: Case) -> None:
    text, video = encoded_of(case)
    experts = len(EXPERTS) if case.encoder == "experts" else 1
    for features, count in ((text, TEXTS), (video, VIDEOS)):
        vectors = method_of(case).coarse_vectors(features)
        assert vectors.shape[0] == count
        assert vectors.shape[1] in (DIM, 2 * DIM, experts * DIM)
        torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(count))


@every_case
@torch.no_grad()
def test_frame_scores_point_at_real_frames(case: Case) -> None:
    text, video = encoded_of(case)
    scores = method_of(case).frame_scores(text, video)
    assert scores.shape == (TEXTS, VIDEOS, FRAMES)
    assert torch.equal(scores.isfinite(), video.mask.expand(TEXTS, -1, -1))


@pytest.mark.parametrize("name", list(METHODS))
def test_a_method_that_needs_the_tower_says_so_on_frozen_features(name: str) -> None:
    variant = next(iter(CONFIGS.get(name, {"default": {}})))
    if runs_on_features(name, variant):
        assert Case(name, variant, "features") in CASES
        return
    if name == "supportset":
        config = METHODS[name].config_class()  # told the size of a vocabulary, it could be built
        with pytest.raises(ConfigError, match=f"{name} needs|cannot run on frozen features"):
            METHODS[name].build(config, make_encoder("features"))
        return
    with pytest.raises(ConfigError, match=f"{name} needs|cannot run on frozen features"):
        METHODS[name].build(make_config(name, variant), make_encoder("features"))


@pytest.mark.parametrize("name", list(METHODS))
def test_a_method_says_where_it_is_from_and_how_it_was_checked(name: str) -> None:
    spec = METHODS[name]
    assert spec.checked_by in ("golden", "reference loop", "approximate from the abstract")
    assert spec.paper
