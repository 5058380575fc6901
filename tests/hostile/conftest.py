"""Sound inputs to damage."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "research/data", HERE.parent / "serve", HERE.parent / "search"):
    sys.path.insert(0, str(folder))

_spec = importlib.util.spec_from_file_location(
    "dataset_files", HERE.parent / "research/data/conftest.py"
)
assert _spec is not None
assert _spec.loader is not None
_dataset_files = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_dataset_files)
files = _dataset_files.files


@pytest.fixture(scope="session")
def sound_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model folder."""
    from eaglenet.encoders.clip import ClipEncoder
    from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig
    from eaglenet.encoders.tokenizers import ClipTokenizer
    from eaglenet.methods import METHODS
    from eaglenet.models.folder import save

    config = ClipConfig(
        dim=8,
        vision=VisionConfig(image_size=16, patch_size=8, width=12, layers=1, heads=2, mlp_width=20),
        text=TextConfig(
            vocabulary_size=514, context_length=9, width=10, layers=1, heads=2, mlp_width=14
        ),
    )
    torch.manual_seed(0)
    spec = METHODS["clip4clip"]
    method = spec.build(spec.config_class(), ClipEncoder(config)).eval()
    method.tokenizer = ClipTokenizer.from_merges([])
    folder = tmp_path_factory.mktemp("hostile") / "model"
    save(method, folder)
    return folder


@pytest.fixture(scope="session")
def sound_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in the hub's format."""
    from eaglenet.encoders.clip import ClipEncoder
    from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig
    from eaglenet.encoders.tokenizers import ClipTokenizer

    config = ClipConfig(
        dim=8,
        vision=VisionConfig(image_size=16, patch_size=8, width=12, layers=1, heads=2, mlp_width=20),
        text=TextConfig(
            vocabulary_size=514, context_length=9, width=10, layers=1, heads=2, mlp_width=14
        ),
    )
    folder = tmp_path_factory.mktemp("hostile") / "clip"
    from clip_folder import save_clip

    save_clip(ClipEncoder(config), ClipTokenizer.from_merges([]), folder)
    return folder
