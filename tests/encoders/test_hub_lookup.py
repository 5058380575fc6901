"""Hub ids: cached files need no network; missing ones give a helpful error."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from clip_folder import learn_tokenizer, save_clip
from eaglenet.core.errors import ModelNotFoundError
from eaglenet.encoders import hub as hub_cache_module
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig
from eaglenet.encoders.clip_files import load_clip
from eaglenet.encoders.hub import find_hub_folder

TOKENIZER = learn_tokenizer(["red ball"])
CONFIG = ClipConfig(
    dim=12,
    vision=VisionConfig(image_size=32, patch_size=16, width=16, layers=1, heads=2, mlp_width=20),
    text=TextConfig(
        vocabulary_size=TOKENIZER.vocabulary_size, width=8, layers=1, heads=2, mlp_width=10
    ),
)


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set an empty cache, and make every access to the network an error."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    import huggingface_hub

    original = huggingface_hub.hf_hub_download

    def download(*arguments: Any, **options: Any) -> Any:
        assert options["local_files_only"], "the network was asked"
        return original(*arguments, cache_dir=str(tmp_path), **options)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return tmp_path


def put_into_cache(cache: Path, identifier: str) -> ClipEncoder:
    repository = cache / f"models--{identifier.replace('/', '--')}"
    snapshot = repository / "snapshots" / ("0" * 40)
    encoder = ClipEncoder(CONFIG, seed=3)
    save_clip(encoder, TOKENIZER, snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    return encoder


@pytest.mark.parametrize("name", ["openai/clip-vit-base-patch32", "ViT-B/32"])
def test_a_cached_model_loads_without_the_network(hub_cache: Path, name: str) -> None:
    expected = put_into_cache(hub_cache, "openai/clip-vit-base-patch32").state_dict()
    encoder, tokenizer = load_clip(name)
    for key, value in encoder.state_dict().items():
        assert torch.equal(value, expected[key])
    assert tokenizer.vocabulary_size == TOKENIZER.vocabulary_size


def test_a_missing_model_is_named_with_the_places_and_the_ways_out(hub_cache: Path) -> None:
    with pytest.raises(ModelNotFoundError) as failure:
        load_clip("somebody/unknown-model")
    message = str(failure.value)
    for part in ("somebody/unknown-model", str(hub_cache), "hf download", "--model small"):
        assert part in message
    assert "\n" not in message


def test_a_model_cached_in_part_counts_as_missing(hub_cache: Path) -> None:
    put_into_cache(hub_cache, "openai/clip-vit-base-patch16")
    next(hub_cache.glob("**/model.safetensors")).unlink()
    with pytest.raises(ModelNotFoundError, match="clip-vit-base-patch16"):
        load_clip("openai/clip-vit-base-patch16")


@pytest.mark.parametrize("name", ["models/somewhere/deep", "my models/mine", "../mine", "/mine"])
def test_a_missing_folder_is_no_hub_id(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="no such folder or file") as failure:
        find_hub_folder(name)
    assert "hf download" not in str(failure.value)  # No hub can have it.


def test_the_revision_of_a_missing_model_is_told(hub_cache: Path) -> None:
    with pytest.raises(ModelNotFoundError) as failure:
        find_hub_folder("somebody/model@0123abc")
    assert str(failure.value).endswith("hf download somebody/model --revision 0123abc")


def test_the_hub_is_asked_for_what_the_cache_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.errors import EntryNotFoundError

    save_clip(ClipEncoder(CONFIG), TOKENIZER, tmp_path)
    requests = []

    def download(
        identifier: Any, file: Any, *, revision: Any, local_files_only: Any, tqdm_class: Any
    ) -> Any:
        if local_files_only or not (tmp_path / file).is_file():
            raise EntryNotFoundError(file)
        requests.append(file)
        return str(tmp_path / file)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub_cache_module, "require_reachable", lambda endpoint, name: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert find_hub_folder("somebody/model") == tmp_path
    expected = ["config.json", "preprocessor_config.json", "tokenizer_config.json"]
    expected += ["model.safetensors", "tokenizer.json"]
    assert requests == expected
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match="the hub answered: pytorch_model"):
        find_hub_folder("somebody/model")


@pytest.mark.parametrize(
    "files",
    [
        ["open_clip_config.json", "open_clip_model.safetensors", "tokenizer.json"],
        ["PE-Core-B16-224.pt"],
        [
            "config.json",
            "model.safetensors",
            "open_clip_config.json",
            "open_clip_model.safetensors",
        ],
    ],
)
def test_other_layouts_of_the_hub_are_found(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """open_clip's folders, with or without timm's image tower, and Meta's single file."""
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.errors import EntryNotFoundError

    for file in files:
        (tmp_path / file).write_text('{"architecture": "vit_base_patch32_clip_224"}')
    requests = []

    def download(
        identifier: Any, file: Any, *, revision: Any, local_files_only: Any, tqdm_class: Any
    ) -> Any:
        if local_files_only or not (tmp_path / file).is_file():
            raise EntryNotFoundError(file)
        requests.append(file)
        return str(tmp_path / file)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub_cache_module, "require_reachable", lambda endpoint, name: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert find_hub_folder("facebook/PE-Core-B16-224") == tmp_path
    assert "model.safetensors" not in requests


@pytest.mark.parametrize(
    ("files", "unreachable_file"),
    [
        (["config.json", "model.safetensors", "tokenizer.json"], "preprocessor_config.json"),
        (["open_clip_config.json", "open_clip_model.safetensors"], "tokenizer.json"),
    ],
)
def test_a_model_is_not_used_without_a_file_that_could_not_be_downloaded(
    files: list[str], unreachable_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not now, and not later from the cache: its pixels and words would be read in another way."""
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    cache = tmp_path / "cache"
    cache.mkdir()

    def download(
        identifier: Any, file: Any, *, revision: Any, local_files_only: Any, tqdm_class: Any
    ) -> Any:
        if not local_files_only:
            if file == unreachable_file:
                raise LocalEntryNotFoundError("no connection") from TimeoutError()
            if file in files:
                (cache / file).write_text("{}")
        if not (cache / file).is_file():
            raise (LocalEntryNotFoundError if local_files_only else EntryNotFoundError)(file)
        return str(cache / file)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub_cache_module, "require_reachable", lambda endpoint, name: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    for _ in range(2):
        with pytest.raises(ModelNotFoundError, match="the hub answered"):
            find_hub_folder("somebody/model")
    files.append(unreachable_file)
    unreachable_file = ""
    assert find_hub_folder("somebody/model") == cache


@pytest.mark.parametrize("encoder", ["", "0_Encoder/"])
def test_an_interrupted_download_of_a_whole_folder_does_not_count_as_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoder: str
) -> None:
    """Without ``modules.json`` or a preprocessor, other vectors would be computed from then on;
    without the weights, the model could never be opened."""
    import huggingface_hub
    from huggingface_hub import constants

    files = [f"{encoder}config.json", f"{encoder}model.safetensors", "1_Dense/model.safetensors"]
    files += ["modules.json", "tokenizer.json", "video_preprocessor_config.json"]
    files += ["config.json"] if encoder else []
    cache = tmp_path / "cache"
    remaining = 0

    def download(identifier: Any, file: str, **options: Any) -> str:
        nonlocal remaining
        path = cache / file
        if not path.is_file():
            if not remaining:
                raise KeyboardInterrupt
            remaining -= 1
            path.parent.mkdir(parents=True, exist_ok=True)
            modules = [{"path": encoder.rstrip("/")}, {"path": "1_Dense"}]
            path.write_text(json.dumps(modules) if file == "modules.json" else "{}")
        return str(path)

    api = type("Api", (), {"list_repo_files": lambda *_, **options: files})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub_cache_module, "require_reachable", lambda endpoint, name: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **options: str(cache))
    monkeypatch.setattr(huggingface_hub, "HfApi", api)
    for num_downloads in range(1, len(files) + 1):  # One is the README.
        remaining = num_downloads
        shutil.rmtree(cache, ignore_errors=True)
        with pytest.raises(KeyboardInterrupt):
            hub_cache_module.find_snapshot("somebody/model")
        missing = [file for file in files if not (cache / file).is_file()]
        assert missing
        assert hub_cache_module.cached_snapshot("somebody/model") is None
    remaining = len(files) + 1
    assert hub_cache_module.find_snapshot("somebody/model") == cache
