"""The precision that an index run encodes in, and the model made for it."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence

from eaglenet.encoders import int8_products
from eaglenet.encoders.base import TowerEncoder
from eaglenet.errors import UsageError
from eaglenet.hardware import AUTO, Chosen, choose_precision
from eaglenet.methods.base import Method
from eaglenet.search.indexing.files import FoundFile

logger = logging.getLogger(__name__)

MUCH_WORK = 2 * 2**20
"""Bytes of video from which ``auto`` takes int8: preparing it costs as much as about 40 frames of
`small` save, or 20 of a ViT-B/16; 2 MiB are some ten seconds of a camera's film, more of others."""


def in_precision(
    method: Method,
    wanted: str,
    files: Sequence[FoundFile],
    others_take_int8: Callable[[], bool] = lambda: True,
) -> tuple[Method, Chosen]:
    """The model to encode these files with, and in what.

    ``auto``: bf16 where the machine multiplies it, else int8 where it does and that pays: much to
    encode, onnxruntime installed, frames of the model as good (a cosine of 0.999 and more with
    those in fp32, tried on pictures now), else fp32. ``others_take_int8`` asks the machines that
    encode in the place of this one, only where their answer decides.
    """
    precision = choose_precision(method.device, wanted)
    if precision != "int8":
        return method, precision
    if wanted != AUTO:
        return in_int8(method), "int8"
    if sum(file.size for file in files) < MUCH_WORK or not int8_products.is_installed():
        return method, "fp32"
    if not others_take_int8():
        logger.info("encoding in fp32: not all machines that encode are known to be fast in int8")
        return method, "fp32"
    try:
        return in_int8(method), "int8"
    except UsageError as reason:
        logger.info("encoding in fp32: %s", reason)
        return method, "fp32"


def in_int8(method: Method) -> Method:
    """A copy of a model whose image tower multiplies int8; the text tower is shared."""
    encoder = method.encoder
    if not isinstance(encoder, TowerEncoder):
        raise UsageError(
            f"int8 products are for models with an image tower, and {method.name} on "
            f"{encoder.family} has none; encode with --precision fp32"
        )
    vision = int8_products.int8_tower(encoder.vision, encoder.image_size)
    twin = copy.deepcopy(method, {id(encoder.text): encoder.text, id(encoder.vision): vision})
    return twin.eval()
