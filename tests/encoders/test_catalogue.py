"""Models by name: descriptions match the shapes, and licences must be accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.cli.models import shape_of
from eaglenet.core.errors import ModelNotFoundError, UsageError
from eaglenet.encoders import ENCODERS
from eaglenet.encoders.catalogue import ALIASES, CARDS, LICENCE_VARIABLE, require_licence
from eaglenet.encoders.hub import exact_name, find_hub_folder, split_revision

METACLIP = "facebook/metaclip-2-worldwide-huge-quickgelu"


OWN = [name for name, card in CARDS.items() if card.family not in ("", "st")]


@pytest.mark.parametrize("name", OWN)
def test_a_card_says_what_the_shape_of_its_model_says(name: str) -> None:
    card = CARDS[name]
    with torch.device("meta"):
        encoder = ENCODERS[card.family].build(shape_of(card))
    assert sum(weight.numel() for weight in encoder.parameters()) == card.parameters
    assert (encoder.dim, encoder.image_size) == (card.dim, card.image_size)


def test_cards_of_sentence_transformers_say_what_the_architectures_of_transformers_say() -> None:
    import transformers

    def qwen(width: int, text: dict[str, int], vision: dict[str, int]) -> Any:
        text_config = {"vocab_size": 151936, "head_dim": 128, "num_key_value_heads": 8}
        vision_config = {"num_heads": 16, "out_hidden_size": width}
        return transformers.Qwen3VLModel(
            transformers.Qwen3VLConfig(
                text_config={**text_config, "hidden_size": width, **text},
                vision_config={**vision_config, **vision},
            )
        )

    with torch.device("meta"):
        models = {
            "st:Qwen/Qwen3-VL-Embedding-2B": qwen(
                2048,
                {"num_hidden_layers": 28, "num_attention_heads": 16, "intermediate_size": 6144},
                {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096},
            ),
            "st:Qwen/Qwen3-VL-Embedding-8B": qwen(
                4096,
                {"num_hidden_layers": 36, "num_attention_heads": 32, "intermediate_size": 12288},
                {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304},
            ),
            "st:google/videoprism-lvt-base-f16r288": transformers.VideoPrismClipModel(
                transformers.VideoPrismConfig(text_config={}, vision_config={})
            ),
            "st:facebook/pe-av-large": transformers.PeVideoModel(
                transformers.PeVideoConfig(text_config={}, video_config={"num_hidden_layers": 4})
            ),
        }
    assert set(models) == {name for name, card in CARDS.items() if card.family == "st"}
    for name, model in models.items():
        assert sum(weight.numel() for weight in model.parameters()) == CARDS[name].parameters
    assert len(models["st:facebook/pe-av-large"].video_head.proj.weight) == 1024


def test_a_model_that_cannot_be_loaded_is_not_downloaded() -> None:
    for name, card in CARDS.items():
        assert bool(card.obstacle) == (not card.family) == (not card.image_size)
        if card.obstacle:
            with pytest.raises(UsageError, match=rf"cannot be loaded \({card.obstacle}\)"):
                CliRunner().invoke(app, ["models", "--download", name], catch_exceptions=False)
    rows = json.loads(CliRunner().invoke(app, ["models", "--json"]).output)
    hardware = {row["name"]: row["hardware"] for row in rows}
    assert hardware["st:Qwen/Qwen3-VL-Embedding-8B"] == "GPU, 16.3 GB for weights in bf16"
    assert hardware["small"] == "CPU or GPU"


def test_aliases_name_models_that_may_be_used_by_anybody() -> None:
    assert set(ALIASES) == {
        "fast", "balanced", "best", "multilingual", "best-gpu", "best-laptop"
    }  # fmt: skip
    for name in ALIASES.values():
        assert CARDS[name].is_commercial
        assert not CARDS[name].obstacle
    assert CARDS[ALIASES["best-laptop"]].hardware == "CPU or GPU"
    assert CARDS[ALIASES["multilingual"]].languages == "many"


def test_a_licence_against_commercial_use_has_to_be_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(LICENCE_VARIABLE, raising=False)
    with pytest.raises(UsageError, match=r"CC-BY-NC-4\.0, which forbids commercial use"):
        require_licence(METACLIP)
    require_licence("openai/clip-vit-base-patch32")
    require_licence("somebody/unknown")
    monkeypatch.setenv(LICENCE_VARIABLE, "CC-BY-NC-4.0")
    require_licence(METACLIP)


@pytest.mark.parametrize("licence", ["cc-by-nc-4.0", "apple-amlr"])
def test_a_model_without_a_card_is_asked_for_by_the_licence_of_its_page(
    licence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """For example MetaCLIP's smaller models: only the README is downloaded."""
    import huggingface_hub
    from huggingface_hub import constants

    from eaglenet.encoders import hub

    requests = []
    (tmp_path / "README.md").write_text(
        f"---\nlicense: {licence}\ntags:\n- vision\n---\n# A model\n"
    )

    def download(identifier: str, file: str, *, local_files_only: bool, **_: Any) -> str:
        if local_files_only or file != "README.md":
            raise FileNotFoundError(file)
        requests.append(file)
        return str(tmp_path / file)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "require_reachable", lambda endpoint, name: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.delenv(LICENCE_VARIABLE, raising=False)
    with pytest.raises(UsageError, match=f"{licence}, which forbids commercial use"):
        find_hub_folder("facebook/metaclip-2-worldwide-b32")
    assert requests == ["README.md"]
    monkeypatch.setenv(LICENCE_VARIABLE, licence.upper())
    with pytest.raises(ModelNotFoundError, match="the hub answered"):
        find_hub_folder("facebook/metaclip-2-worldwide-b32")


@pytest.mark.parametrize(
    "page",
    [
        "",
        "# No head\nlicense: cc-by-nc-4.0\n",
        "---\nlicense: apache-2.0\n---\nnot for research only\nlicense: cc-by-nc-4.0",
    ],
)
def test_other_licences_are_not_asked_for(page: str) -> None:
    require_licence("somebody/unknown", page)


def test_nothing_is_downloaded_before_the_licence_is_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import huggingface_hub
    from huggingface_hub import constants

    def download(*_: Any, local_files_only: bool, **__: Any) -> str:
        assert local_files_only, "the network was asked"
        raise FileNotFoundError

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.delenv(LICENCE_VARIABLE, raising=False)
    with pytest.raises(UsageError, match="licence"):
        find_hub_folder(METACLIP)


def test_a_store_remembers_the_exact_revision(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    commit = "0123456789" * 4
    snapshot = tmp_path / commit
    snapshot.mkdir()
    for name in ("open_clip_config.json", "open_clip_model.safetensors"):
        (snapshot / name).write_text("{}")
    requests = []

    def download(identifier: str, file: str, *, revision: str | None, **_: Any) -> str:
        requests.append((identifier, revision))
        if not (snapshot / file).is_file():
            raise LocalEntryNotFoundError(file)
        return str(snapshot / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert exact_name("balanced") == f"timm/PE-Core-B-16@{commit}"
    assert exact_name("demo") == "demo"
    assert find_hub_folder(f"timm/PE-Core-B-16@{commit}") == snapshot
    assert requests[-1] == ("timm/PE-Core-B-16", commit)
    assert split_revision("ViT-L/14@336px") == ("ViT-L/14@336px", None)


def test_the_command_lists_models() -> None:
    runner = CliRunner()
    listing = runner.invoke(app, ["models"])
    assert listing.exit_code == 0
    source = "PE-Core-L-14-336: Bolya et"
    for part in ("best", source, "Apache-2.0", "50.3", "arXiv:2504.13181", "no commercial use"):
        assert part in listing.output
    rows = json.loads(runner.invoke(app, ["models", "--json"]).output)
    assert {row["family"] for row in rows if "clip-vit" in row["name"]} == {"clip"}


@pytest.mark.parametrize("measure", [False, True])
def test_the_list_fits_80_columns_and_names_everything(
    measure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eaglenet.cli.models.frames_per_second", lambda card: 12345.6)
    arguments = ["models", *(["--measure"] if measure else [])]
    lines = CliRunner().invoke(app, arguments).output.splitlines()
    assert max(map(len, lines)) <= 80
    for card in CARDS.values():
        assert any(line.split()[:1] == [card.name] for line in lines)
    for alias, name in ALIASES.items():
        assert any(line.split() == ["--model", alias, name] for line in lines)
    row = next(line for line in lines if line.startswith("timm/PE-Core-L-14-336"))
    facts = ["12345.6"] if measure else ["1024", "336"]
    assert row.split()[1:] == ["2.7", "GB", *facts, "English", "Apache-2.0", "50.3", "no"]


def test_speed_is_measured_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it takes long, only the first frame is measured."""
    from eaglenet.cli.models import frames_per_second

    card = CARDS["openai/clip-vit-base-patch32"]
    monkeypatch.setattr("eaglenet.cli.models.MEASURED_FRAMES", 2)
    assert (frames_per_second(card) or 0) > 0
    monkeypatch.setattr("eaglenet.cli.models.SLOW_FRAME", 0.0)
    monkeypatch.setattr("eaglenet.cli.models.MEASURED_FRAMES", 1)
    assert (frames_per_second(card) or 0) > 0


def test_an_alias_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of such a name is written as ./best, as for the demo model."""
    import eaglenet

    (tmp_path / "best").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match="PE-Core-L-14-336"):
        eaglenet.load("best")
