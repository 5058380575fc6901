"""Channel decorrelation between matched words and frames (DRL's regulariser)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from eaglenet.layers.masking import Padding


def _standardise(values: Float[Tensor, "tokens dim"]) -> Float[Tensor, "tokens dim"]:
    """Zero mean and unit sample variance per channel; 1e-12 keeps a constant channel finite."""
    centred = values - values.mean(dim=0)
    variance = centred.square().sum(dim=0) / max(len(values) - 1, 1)
    return centred / (variance + 1e-12).sqrt()


def _correlation(
    left: Float[Tensor, "tokens dim"],
    right: Float[Tensor, "tokens dim"],
    weights: Float[Tensor, "tokens"],
    num_pairs: int,
) -> Float[Tensor, "dim dim"]:
    weighted_left = _standardise(left) * weights[:, None]
    return weighted_left.T @ _standardise(right) / num_pairs


def channel_decorrelation_loss(
    words: Float[Tensor, "pairs words dim"],
    word_weights: Float[Tensor, "pairs words"],
    words_mask: Bool[Tensor, "pairs words"],
    tokens: Float[Tensor, "pairs tokens dim"],
    token_weights: Float[Tensor, "pairs tokens"],
    tokens_mask: Bool[Tensor, "pairs tokens"],
    *,
    diagonal_weight: float = 0.11,
    off_diagonal_weight: float = 0.0,
    padding: Padding = "masked",
) -> Float[Tensor, ""]:
    r"""Loss that makes each channel of matched word and frame tokens correlate only with itself.

    Each valid word is matched with its most similar frame and each valid frame with its most
    similar word. With standardised channels, :math:`c^1` weighs the word matches by
    :math:`\alpha`, :math:`c^2` the frame matches by :math:`\beta`, both over the number of pairs;

    .. math:: L = w_d \sum_k (c_{kk} - 1)^2 + w_o \sum_{k \ne l} c_{kl}^2,
        \quad c = (c^1 + c^2) / 2

    Row ``i`` of the words belongs to row ``i`` of the tokens. With ``padding="official"`` padded
    entries count as cosines of 0 in the matching, as in :func:`weighted_token_interaction`.
    """
    words, tokens = F.normalize(words, dim=-1), F.normalize(tokens, dim=-1)
    similarities = torch.einsum("pwd,pfd->pwf", words, tokens)
    fill = 0.0 if padding == "official" else torch.finfo(similarities.dtype).min
    token_of_word = similarities.masked_fill(~tokens_mask[:, None, :], fill).argmax(dim=2)
    word_of_token = similarities.masked_fill(~words_mask[:, :, None], fill).argmax(dim=1)
    matched_tokens = tokens.take_along_dim(token_of_word[..., None], dim=1)
    matched_words = words.take_along_dim(word_of_token[..., None], dim=1)

    num_pairs = words.shape[0]
    by_words = _correlation(
        words[words_mask], matched_tokens[words_mask], word_weights[words_mask], num_pairs
    )
    by_tokens = _correlation(
        matched_words[tokens_mask], tokens[tokens_mask], token_weights[tokens_mask], num_pairs
    )
    correlation = (by_words + by_tokens) / 2
    diagonal = correlation.diagonal()
    off_diagonal = correlation.square().sum() - diagonal.square().sum()
    return diagonal_weight * (diagonal - 1).square().sum() + off_diagonal_weight * off_diagonal
