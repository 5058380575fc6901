"""The compact family in the registry: made by ``eaglenet train small``, kept in model folders."""

from __future__ import annotations

from eaglenet.encoders.compact.config import CompactConfig
from eaglenet.encoders.compact.encoder import CompactEncoder
from eaglenet.encoders.registry import ENCODERS, EncoderSpec

ENCODERS.add(
    "compact",
    EncoderSpec(
        name="compact",
        title="the compact towers of this project",
        config_class=CompactConfig,
        build=CompactEncoder,
    ),
)
