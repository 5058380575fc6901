"""A first look at a model: does it tell two images and two texts apart?"""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import CheckpointError
from eaglenet.models.files import is_packaged

logger = logging.getLogger(__name__)

CHECK_TEXTS = ("an orange background", "a blue background")
COLOURS = ((1.0, 0.6, 0.2), (0.1, 0.3, 0.9))


def check_frames(size: int) -> NDArray[np.uint8]:
    """Two images as videos of one frame ``[2, 1, 3, size, size]``: an orange and a blue one.

    They differ in shape and in colour: a model may distinguish only one of these.
    """
    shades = np.linspace(0, 255, size, dtype=np.float32)
    across, down = np.tile(shades, (size, 1)), np.tile(shades[::-1, None], (1, size))
    pairs = zip(COLOURS, (across, down), strict=True)
    images = [np.array(colour, np.float32)[:, None, None] * shade for colour, shade in pairs]
    return np.stack(images).astype(np.uint8)[:, None]


def check_vectors(
    name: str, images: NDArray[np.float32], texts: NDArray[np.float32] | None
) -> None:
    """Refuse a model that gives both images, or both texts, the same vector.

    With weights that are zero or did not load, no query could tell clips apart. A text about one of
    two images must also be nearer to it: otherwise a packaged model is damaged. For other models
    this is a warning, because they may be untrained on purpose.

    Args:
        images, texts: unit vectors of :func:`check_frames` and ``CHECK_TEXTS``.
    """
    for title, vectors in (("images", images), ("texts", images if texts is None else texts)):
        if not np.isfinite(vectors).all():
            raise CheckpointError(
                f"{name}: the vectors of {title} are not numbers. Nothing was written"
            )
        if (vectors[0] == vectors[1]).all() or not vectors.any():
            raise CheckpointError(
                f"{name}: different {title} have the same vector, so no search could work; the "
                "weights did not load or were never trained. Nothing was written"
            )
    if texts is None:
        return
    cosines = texts @ images.T
    if cosines[0, 0] > cosines[0, 1] and cosines[1, 1] > cosines[1, 0]:
        return
    problem = (
        f"{name}: a text about an orange or a blue image is nearer to the other image; the weights "
        "are not trained, or the tokenizer belongs to another model"
    )
    if is_packaged(name):
        raise CheckpointError(f"{problem}. Nothing was written; install the package again")
    logger.warning("%s", problem)
