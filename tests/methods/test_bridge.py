"""BridgeFormer's questions against loops; what is asked and what is answered."""

from __future__ import annotations

import torch
from double_precision import EXACT, shake
from small_towers import small_clip, small_clips

from eaglenet.core.types import Tokens
from eaglenet.methods import METHODS
from eaglenet.methods.early.bridgeformer import BridgeFormer, make_questions
from reference import bridge as reference
from reference.arithmetic import part, weights_of


def make() -> BridgeFormer:
    torch.manual_seed(0)
    spec = METHODS["bridgeformer"]
    method = shake(spec.build(spec.config_class(bridge_weight=0.5), small_clip(layers=3)))
    assert isinstance(method, BridgeFormer)
    return method


def tokens() -> Tokens:
    ids = torch.tensor([[1, 7, 8, 9, 59], [1, 7, 59, 0, 0]])
    return Tokens(ids, ids > 0)


@torch.no_grad()
def test_answers_equal_the_loops() -> None:
    method = make().train()
    text, video = method.encode_text(tokens()), method.encode_video(small_clips(2, 3))
    assert text.words is not None
    assert video.patches is not None
    weights = part(weights_of(method), "bridge")
    questions = text.words.unflatten(1, (2, -1))
    patches = video.patches.unflatten(2, (3, -1)).transpose(1, 2)
    found = method.answers(text, video)
    for row, (end, real) in enumerate(((4, 5), (2, 3))):
        expected = reference.answer(
            [[word.numpy() for word in level[:real]] for level in questions[row]],
            end,
            [[[p.numpy() for p in frame] for frame in block] for block in patches[row]],
            weights,
            num_heads=2,
        )
        torch.testing.assert_close(found[row], torch.from_numpy(expected), **EXACT)


def test_one_word_is_hidden_and_is_the_answer() -> None:
    torch.manual_seed(0)
    seen = set()
    for _ in range(20):
        questions, answers = make_questions(tokens().ids, torch.tensor([4, 2]), mask_token=3)
        hidden = (questions == 3).nonzero().tolist()
        assert [row for row, _ in hidden] == [0, 1]
        for row, place in hidden:
            assert 1 <= place < (4, 2)[row]
            assert int(tokens().ids[row, place]) in answers[row].tolist()
        seen.add(hidden[0][1])
        assert answers[:, 0].tolist() == [1, 1]
        assert answers[:, -1].tolist() == [59, 59]
    assert seen == {1, 2, 3}


def test_without_the_option_and_outside_of_training_there_are_no_questions() -> None:
    method = make()
    text, video = method.encode_text(tokens()), method.encode_video(small_clips(2, 3))
    assert (text.words, text.keys, video.patches) == (None, None, None)
    spec = METHODS["bridgeformer"]
    plain = spec.build(spec.config_class(), small_clip())
    assert isinstance(plain, BridgeFormer)
    assert plain.bridge is None


def test_the_bridge_term_teaches_towers_and_bridge() -> None:
    method = make().train()
    text, video = method.encode_text(tokens()), method.encode_video(small_clips(2, 3))
    losses = method.losses(text, video, torch.eye(2, dtype=torch.bool))
    losses.terms["bridge"].backward()
    trained = {name for name, value in method.named_parameters() if value.grad is not None}
    for name in ("bridge.map.weight", "encoder.vision.blocks.0.mlp.up.weight",
                 "encoder.text.blocks.0.mlp.up.weight"):  # fmt: skip
        assert name in trained
    torch.testing.assert_close(
        losses.total, losses.terms["contrastive"] + 0.5 * losses.terms["bridge"]
    )
