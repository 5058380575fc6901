"""Late interaction: cosines of all words with all visual tokens, then a reduction."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.core.types import TextFeatures
from eaglenet.layers.masking import Padding, masked_softmax

Words = Float[Tensor, "texts words dim"]
WordsMask = Bool[Tensor, "texts words"]
VisualTokens = Float[Tensor, "videos tokens dim"]
TokensMask = Bool[Tensor, "videos tokens"]
Scores = Float[Tensor, "texts videos"]


def token_similarities(
    words: Words, tokens: VisualTokens
) -> Float[Tensor, "texts videos words tokens"]:
    """Return the cosine of every word with every visual token; 0 for a zero vector."""
    return torch.einsum("twd,vfd->tvwf", _unit(words), _unit(tokens))


def _unit(values: Float[Tensor, "sets entries dim"]) -> Float[Tensor, "sets entries dim"]:
    """Return unit vectors; zeros for zeros, whose gradient does not grow.

    ``F.normalize`` multiplies their gradient by 1e12, which is infinite in half precision.
    """
    length: Tensor = values.norm(dim=-1, keepdim=True)
    # 1e-12 is 0 in half precision.
    is_zero = length < max(1e-12, torch.finfo(values.dtype).tiny)
    divisor: Tensor = length.masked_fill(is_zero, 1.0)
    return values / divisor


def words_or_sentence(text: TextFeatures) -> tuple[Words, WordsMask]:
    """Return word features and their mask; without words, the whole text counts as one word."""
    words = text.sentence[:, None, :] if text.words is None else text.words
    if text.words is not None and text.words_mask is not None:
        return words, text.words_mask
    return words, torch.ones(words.shape[:2], dtype=torch.bool, device=words.device)


def masked_max(
    values: Float[Tensor, "..."], mask: Bool[Tensor, "..."], *, dim: int
) -> Float[Tensor, "..."]:
    """Return the largest valid value; 0 if none is valid, so that empty videos score no -inf."""
    best = values.masked_fill(~mask, float("-inf")).amax(dim=dim)
    return best.masked_fill(~mask.any(dim=dim), 0.0)


def mean_max_similarity(
    words: Words, words_mask: WordsMask, tokens: VisualTokens, tokens_mask: TokensMask
) -> Scores:
    r"""Return MeanMaxSim of Video-ColBERT.

    .. math:: \mathrm{MMS}(Q, X) = \frac{1}{|Q|} \sum_i \max_j \hat q_i \cdot \hat x_j

    Only valid words and valid tokens take part.
    """
    best = masked_max(token_similarities(words, tokens), tokens_mask[None, :, None, :], dim=-1)
    weights = words_mask.to(best.dtype)[:, None, :]
    return (best * weights).sum(dim=-1) / weights.sum(dim=-1).clamp(min=1)


class TokenWeights(nn.Module):
    """Weights of the tokens of a set: softmax over the valid outputs of a two-layer network.

    The last layer has no bias, which the softmax would cancel.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        first = nn.Linear(dim, dim)
        nn.init.zeros_(first.bias)
        self.network = nn.Sequential(first, nn.ReLU(), nn.Linear(dim, 1, bias=False))
        for layer in self.network:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.02)

    def forward(
        self, tokens: Float[Tensor, "sets tokens dim"], mask: Bool[Tensor, "sets tokens"]
    ) -> Float[Tensor, "sets tokens"]:
        return masked_softmax(self.network(tokens).squeeze(-1), mask)


def words_find_tokens(
    words: Words,
    word_weights: Float[Tensor, "texts words"],
    tokens: VisualTokens,
    tokens_mask: TokensMask,
) -> Scores:
    r"""Return one half of the interaction of DRL: the best token for every word.

    .. math:: s = \sum_i \alpha_i \max_m \hat w_i \cdot \hat g_m

    Padded words have a weight of 0.
    """
    best = masked_max(token_similarities(words, tokens), tokens_mask[None, :, None, :], dim=-1)
    return torch.einsum("tvw,tw->tv", best, word_weights)


def weighted_token_interaction(
    words: Words,
    word_weights: Float[Tensor, "texts words"],
    words_mask: WordsMask,
    tokens: VisualTokens,
    token_weights: Float[Tensor, "videos tokens"],
    tokens_mask: TokensMask,
    *,
    padding: Padding = "masked",
) -> Scores:
    r"""Return the weighted token-wise interaction of DRL.

    .. math:: s = \tfrac12 \Big[ \sum_i \alpha_i \max_m C_{im} + \sum_m \beta_m \max_i C_{im} \Big],
        \quad C_{im} = \hat w_i \cdot \hat g_m

    Padded entries are left out of the maxima. With ``padding="official"`` they count as 0, as in
    the code of the authors: they exceed negative cosines, so that the score depends on them.
    """
    similarities = token_similarities(words, tokens)
    if padding == "official":
        is_real = words_mask[:, None, :, None] & tokens_mask[None, :, None, :]
        similarities = similarities.masked_fill(~is_real, 0.0)
        best_token, best_word = similarities.amax(dim=-1), similarities.amax(dim=-2)
    else:
        best_token = masked_max(similarities, tokens_mask[None, :, None, :], dim=-1)
        best_word = masked_max(similarities, words_mask[:, None, :, None], dim=-2)
    by_words = torch.einsum("tvw,tw->tv", best_token, word_weights)
    by_tokens = torch.einsum("tvf,vf->tv", best_word, token_weights)
    return (by_words + by_tokens) / 2
