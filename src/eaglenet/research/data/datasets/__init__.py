"""One file per dataset: its annotation files to records. Importing this package registers them."""

from eaglenet.research.data.datasets import (
    activitynet,
    charades_sta,
    didemo,
    lsmdc,
    msrvtt,
    msvd,
    own_folder,
    qvhighlights,
    tgif,
    vatex,
    youcook2,
)

__all__ = [
    "activitynet",
    "charades_sta",
    "didemo",
    "lsmdc",
    "msrvtt",
    "msvd",
    "own_folder",
    "qvhighlights",
    "tgif",
    "vatex",
    "youcook2",
]
