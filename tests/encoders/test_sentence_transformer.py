"""Models of sentence-transformers: equal to the library, indexed and searched, or refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image

import eaglenet
import st_models
from eaglenet.core.errors import CheckpointError, ConfigError, ModelNotFoundError, UsageError
from eaglenet.core.frame_spec import Splitting
from eaglenet.core.types import Clips
from eaglenet.encoders import hub
from eaglenet.methods import METHODS
from eaglenet.methods.base import Method
from eaglenet.models.folder import load_pretrained
from eaglenet.search.hit import Hit
from eaglenet.search.query import Query
from eaglenet.search.torch_model import model_identity
from eaglenet.serve.app import create_app
from eaglenet.store.store import LocalStore
from sampling import slow
from small_videos import colour_video
from stand_in_hub import COMMIT, serve_hub

Make = Callable[[str], Path]
FOUR = Splitting(clip_seconds=4.0, overlap=0.0)
TEXTS = ["a red ball", "two dogs on grass"]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Return folders of small models by the name of their function, each made once."""
    folders: dict[str, Path] = {}

    def folder_of(name: str) -> Path:
        if name not in folders:
            maker = getattr(st_models, f"make_{name}")
            folders[name] = maker(tmp_path_factory.mktemp("st") / name)
        return folders[name]

    return folder_of


def clips_for(method: Method, *, videos: int = 2, real: int | None = None) -> Clips:
    """Return noise with times half a second apart; the first ``real`` frames are real."""
    spec = method.frame_spec
    generator = torch.Generator().manual_seed(5)
    shape = (videos, spec.num_frames, 3, spec.size, spec.size)
    frames = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    mask = torch.arange(spec.num_frames).expand(videos, -1) < (real or spec.num_frames)
    return Clips(frames, mask, torch.arange(spec.num_frames).expand(videos, -1) / 2)


def as_video(frames: torch.Tensor) -> dict[str, Any]:
    """Return two frames per second, as in the documentation of the library."""
    count = len(frames)
    metadata = {"fps": 2.0, "total_num_frames": count, "duration": count / 2}
    metadata["frames_indices"] = list(range(count))
    return {"video": {"array": frames, "video_metadata": metadata}}


@pytest.mark.parametrize("name", ["qwen", "videoprism", slow("omni")])
def test_vectors_of_whole_clips_are_those_of_the_library(name: str, make: Make) -> None:
    package = st_models.require_sentence_transformers(videos=True)
    folder = make(name)
    library = package.SentenceTransformer(str(folder), device="cpu")
    method = eaglenet.load(f"st:{folder}")
    clips = clips_for(method)
    options = {"video": {"do_sample_frames": False}}
    expected = library.encode_document(
        [as_video(frames) for frames in clips.frames], processing_kwargs=options
    )
    features = method.encode_video(clips)
    assert features.frames.shape == (2, 1, method.encoder.dim)
    np.testing.assert_allclose(features.frames, expected.reshape(2, 1, -1), atol=1e-5)
    # The order counts: the same frames backwards are another clip.
    backwards = Clips(clips.frames.flip(1), clips.mask, clips.seconds)
    assert (method.encode_video(backwards).frames - features.frames).abs().max() > 1e-4
    sentence = method.encode_text(TEXTS).sentence
    np.testing.assert_allclose(sentence, library.encode_query(TEXTS), atol=1e-5)


def test_perception_av_has_the_vectors_and_scores_of_its_model_in_transformers(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    st_models.require_sentence_transformers(videos=True)
    from transformers import AutoModel, AutoProcessor

    folder = make("perception_av")
    library = AutoModel.from_pretrained(folder).eval()
    processor = AutoProcessor.from_pretrained(folder)
    capfd.readouterr()
    method = eaglenet.load(f"st:{folder}")
    encoder: Any = method.encoder
    assert capfd.readouterr() == ("", "")
    spec = method.frame_spec
    assert (spec.num_frames, spec.size, spec.resize) == (12, 28, "stretch")
    # Pixels are those of the processor for frames of another size too.
    generator = torch.Generator().manual_seed(5)
    frames = torch.randint(0, 256, (3, 7, 3, 40, 30), generator=generator, dtype=torch.uint8)
    lengths = torch.tensor([7, 3, 5])
    mask = torch.arange(7) < lengths[:, None]
    clips = Clips(frames, mask, torch.arange(7).expand(3, -1) / 2)
    real = [each[:length] for each, length in zip(frames, lengths, strict=True)]
    pixels = processor.video_processor(real, return_tensors="pt")
    assert pixels["pixel_values_videos"].shape == (3, 7, 3, 28, 28)
    words = processor.tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = library.video_model(**pixels, **words)
    sentence = method.encode_text(TEXTS).sentence
    torch.testing.assert_close(sentence, expected.text_video_embeds, atol=1e-5, rtol=0)
    alone = method.encode_video(clips).frames[:, 0]
    torch.testing.assert_close(alone, expected.video_embeds, atol=1e-5, rtol=0)
    # On a GPU clips of different lengths share a batch.
    with monkeypatch.context() as patch:
        patch.setattr(encoder, "_batch_size", lambda kind, sample: 3)
        batch = method.encode_video(clips).frames[:, 0]
    torch.testing.assert_close(batch, expected.video_embeds, atol=1e-5, rtol=0)
    # Scores are cosines: times both lengths, the scale and the bias of the model, its logits.
    lengths_of_vectors = sentence.norm(dim=-1)[:, None] * batch.norm(dim=-1)
    part = library.video_model
    logits = method.similarity(TEXTS, clips) * lengths_of_vectors * part.text_video_logit_scale
    logits = (logits + part.text_video_logit_bias).T
    torch.testing.assert_close(logits, expected.logits_video_text, atol=1e-4, rtol=0)
    # The order of frames counts, and what reads audio is not loaded.
    backwards = Clips(clips.frames.flip(1), clips.mask.flip(1), clips.seconds)
    assert (method.encode_video(backwards).frames[:, 0] - batch).abs().max() > 1e-4
    assert not any("audio" in name for name, _ in encoder.named_parameters())
    eaglenet.save(method, tmp_path / "saved")
    saved = eaglenet.load(tmp_path / "saved")
    assert torch.equal(saved.similarity(TEXTS, clips), method.similarity(TEXTS, clips))


def test_perception_av_of_a_fixed_number_of_frames_gets_as_many(tmp_path: Path) -> None:
    folder = st_models.make_perception_av(tmp_path / "fixed", num_frames=5)
    method = eaglenet.load(f"st:{folder}")
    assert method.frame_spec.num_frames == 5
    inputs: Any = []
    encoder: Any = method.encoder
    call = encoder._call
    encoder._call = lambda task, each, size: inputs.extend(each) or call(task, each, size)
    method.encode_video(clips_for(method, real=2))
    assert [len(each["video"]["array"]) for each in inputs] == [5, 5]


def test_parts_of_perception_av_are_refused(make: Make, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file
    from transformers import AutoModel, AutoProcessor

    folder = shutil.copytree(make("perception_av"), tmp_path / "incomplete")
    weights = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in weights.items() if not name.startswith("text_model.")}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"14 weights .* are missing, such as text_model\."):
        eaglenet.load(f"st:{folder}")
    AutoModel.from_pretrained(make("perception_av")).audio_model.save_pretrained(tmp_path / "audio")
    AutoProcessor.from_pretrained(make("perception_av")).save_pretrained(tmp_path / "audio")
    with pytest.raises(UsageError, match=r"needs a model that reads text and images or video"):
        eaglenet.load(f"st:{tmp_path / 'audio'}")
    (folder / "config.json").write_text("[")
    with pytest.raises(CheckpointError, match=r"config\.json|cannot open"):
        eaglenet.load(f"st:{folder}")


def test_prompts_are_those_of_the_model(make: Make, tmp_path: Path) -> None:
    folder = shutil.copytree(make("qwen"), tmp_path / "model")
    method = eaglenet.load(f"st:{folder}")
    with_prompt = method.encode_text(TEXTS).sentence
    settings = json.loads((folder / "config_sentence_transformers.json").read_text())
    assert settings["prompts"] == st_models.PROMPTS
    settings["prompts"] = {"query": "", "document": ""}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    without = eaglenet.load(f"st:{folder}")
    assert (without.encode_text(TEXTS).sentence - with_prompt).abs().max() > 1e-4
    # Vectors of other prompts are not those of the store.
    assert model_identity(without) != model_identity(method)


def test_several_vectors_are_compared_as_the_library_does(make: Make) -> None:
    package = st_models.require_sentence_transformers(videos=True)
    folder = make("multi_vector")
    library = package.MultiVectorEncoder(str(folder), device="cpu")
    method = eaglenet.load(f"st:{folder}")
    clips = clips_for(method, videos=3)
    options = {"video": {"do_sample_frames": False}}
    documents = library.encode_document(
        [as_video(frames) for frames in clips.frames], processing_kwargs=options
    )
    queries = library.encode_query(TEXTS)
    features = method.encode_video(clips)
    for row, vectors in enumerate(documents):
        own = features.frames[row][features.mask[row]]
        np.testing.assert_allclose(own, vectors, atol=1e-5)
    unit = [torch.nn.functional.normalize(each, dim=-1) for each in documents]
    expected = [
        [(torch.nn.functional.normalize(text, dim=-1) @ clip.T).amax(1).mean() for clip in unit]
        for text in queries
    ]
    scores = method.similarity(TEXTS, features)
    np.testing.assert_allclose(scores, torch.tensor(expected), atol=1e-5)
    with pytest.raises(UsageError, match="cannot be truncated; leave out :4"):
        eaglenet.load(f"st:{folder}:4")


def test_a_model_of_images_gives_frames_to_every_method(make: Make) -> None:
    package = st_models.require_sentence_transformers(videos=False)
    folder = make("clip")
    library = package.SentenceTransformer(str(folder), device="cpu")
    method = eaglenet.load(f"st:{folder}")
    clips = clips_for(method, real=5)
    images = [Image.fromarray(frame.permute(1, 2, 0).numpy()) for frame in clips.frames[1, :5]]
    frames = method.encode_video(clips).frames
    np.testing.assert_allclose(frames[1, :5], library.encode(images), atol=1e-5)
    assert not frames[:, 5:].any()
    np.testing.assert_allclose(method.encode_text(TEXTS).sentence, library.encode(TEXTS), atol=1e-5)
    encoder, tokenizer = load_pretrained(f"st:{folder}")
    xpool = METHODS["xpool"].build(METHODS["xpool"].config_class(), encoder).eval()
    xpool.tokenizer = tokenizer
    assert xpool.similarity(TEXTS, clips).shape == (2, 2)
    with pytest.raises(UsageError, match="not stored in int8"):
        eaglenet.save(method, folder.parent / "saved", storage="int8")


def test_truncated_vectors_are_those_of_the_library(make: Make) -> None:
    package = st_models.require_sentence_transformers(videos=False)
    folder = make("clip")
    library = package.SentenceTransformer(str(folder), device="cpu", truncate_dim=8)
    method = eaglenet.load(f"st:{folder}:8")
    np.testing.assert_allclose(method.encode_text(TEXTS).sentence, library.encode(TEXTS), atol=1e-5)
    assert method.encode_video(clips_for(method)).frames.shape[-1] == 8
    # Stores of two dimensions of one model cannot be mixed.
    assert model_identity(method) != model_identity(eaglenet.load(f"st:{folder}:4"))
    for dim, problem in ((13, "from 1 to 12"), (0, "of 1 or more")):
        with pytest.raises(UsageError, match=f"use a dimension {problem}"):
            eaglenet.load(f"st:{folder}:{dim}")


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """Write a video of five clips, a short one, and an image."""
    folder = tmp_path / "videos"
    folder.mkdir()
    colour_video(folder / "long.mp4", ["red", "green", "blue", "red", "green"], 2)
    colour_video(folder / "short.mp4", ["blue", "green"], 1)
    Image.new("RGB", (40, 24), (255, 0, 0)).save(folder / "red.png")
    return folder


@pytest.mark.parametrize(
    "name",
    [
        "qwen",
        slow("multi_vector"),
        slow("perception_av"),
        slow("videoprism"),
        slow("omni"),
        slow("clip"),
    ],
)
def test_videos_are_indexed_searched_and_served(
    name: str, make: Make, videos: Path, tmp_path: Path
) -> None:
    model = f"st:{make(name)}"
    report = eaglenet.index(videos, tmp_path / "store", model, device="cpu", splitting=FOUR)
    assert (report.indexed, report.problems) == (3, ())
    engine = eaglenet.open(tmp_path / "store")
    assert LocalStore.open(tmp_path / "store").manifest.model == model
    method = eaglenet.load(model)
    hits = engine.search("a red ball", k=10)
    assert {Path(hit.path).name for hit in hits} == {"long.mp4", "short.mp4", "red.png"}
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    for hit in hits:
        moment = hit.moment
        assert moment.start <= moment.best <= moment.end
    if not method.encoder.abilities.frames:
        _check_whole_clip_moments(engine, hits)
    # Ranking with exact scores changes no hit of a model whose exact score is its cosine.
    if name != "multi_vector":
        plain = engine.search("a red ball", k=10, rerank=False)
        assert [hit.clip_id for hit in plain] == [hit.clip_id for hit in hits]
    # A video and an image find themselves.
    for file in ("red.png", "short.mp4"):
        query = Query(image=videos / file) if file == "red.png" else Query(video=videos / file)
        assert Path(engine.search(query, k=1)[0].path).name == file
    with TestClient(create_app(engine), base_url="http://localhost") as client:
        answer = client.get("/api/search", params={"q": "a red ball", "k": 10}).json()
    assert [hit["clip_id"] for hit in answer["hits"]] == [hit.clip_id for hit in hits]
    again = eaglenet.index(videos, tmp_path / "store", splitting=FOUR)
    assert again.indexed == 0


def _check_whole_clip_moments(engine: Any, hits: list[Hit]) -> None:
    """Check that moments consist of whole clips."""
    hit = next(hit for hit in hits if hit.path.endswith("long.mp4"))
    explanation = engine.explain("a red ball", hit.clip_id)
    assert len({score for _, score in explanation.frames}) == 1
    start = 4.0 * int(hit.clip_id.rpartition("-")[2])
    end = min(start + 4.0, 10.0)
    moment = explanation.moment
    assert (moment.start, moment.end) == pytest.approx((start, end), abs=0.1)
    assert moment.best == pytest.approx((start + end) / 2, abs=0.3)
    # With neighbours it may be longer: its ends lie between the middles of clips.
    assert hit.moment.end - hit.moment.start >= 1.5


@pytest.mark.usefixtures("decoded_here")
@pytest.mark.parametrize(("name", "dim"), [("qwen", 32), slow(("perception_av", 24))])
def test_evaluate_scores_whole_clips(
    name: str, dim: int, make: Make, videos: Path, tmp_path: Path
) -> None:
    from typer.testing import CliRunner

    from eaglenet.cli.main import app

    lines = ["video,caption,split", "long.mp4,many colours,test", "short.mp4,two colours,test"]
    (videos / "captions.csv").write_text("\n".join(lines) + "\n")
    arguments = ["evaluate", f"st:{make(name)}", "--data", "folder", "--root", str(videos)]
    result = CliRunner().invoke(app, [*arguments, "--device", "cpu", "--json"])
    assert result.exit_code == 0, result.output
    metrics = json.loads(result.stdout[result.stdout.index("{") :])
    assert "R@1" in json.dumps(metrics)
    # The vectors of clips are features that heads train on, one "frame" per video.
    arguments = ["data", "features", f"st:{make(name)}", "folder", "--root", str(videos)]
    output = ["--split", "test", "--output", str(tmp_path / "features")]
    result = CliRunner().invoke(app, [*arguments, *output])
    assert result.exit_code == 0, result.output
    assert np.load(tmp_path / "features" / "frame_features.npy").shape == (2, dim)


def test_methods_that_need_frames_say_so(make: Make) -> None:
    encoder, _ = load_pretrained(f"st:{make('qwen')}")
    for name in set(METHODS) - {"clip4clip"}:
        spec = METHODS[name]
        with pytest.raises(ConfigError, match=rf"^{name} .*(needs|works inside)"):
            spec.build(spec.config_class(), encoder)
    spec = METHODS["clip4clip"]
    with pytest.raises(ConfigError, match="clip4clip needs the features of single frames"):
        spec.build(spec.config_class(head="transformer"), encoder)
    spec = METHODS["wordframe"]
    with pytest.raises(ConfigError, match="wordframe needs the features of single frames"):
        spec.build(spec.config_class(), encoder)


def test_a_query_is_never_opened_as_a_file_or_address(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library opens strings that look like images; an untrusted text must stay a text."""
    import urllib.request

    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: pytest.fail("was opened"))
    method = eaglenet.load(f"st:{make('qwen')}")
    Image.new("RGB", (40, 24)).save(tmp_path / "secret.png")
    monkeypatch.chdir(tmp_path)
    plain = method.encode_text(["secret"]).sentence
    for text in ("secret.png", "http://127.0.0.1:9/a.png", "data:image/png;base64,AAAA"):
        assert (method.encode_text([text]).sentence - plain).abs().max() > 1e-5
    # Tokens of the chat template are removed.
    for token in ("<|video_pad|>", "<|image_pad|>", "<|im_end|>"):
        with_token, spaces = (method.encode_text([f"a{each}b"]).sentence for each in (token, " "))
        assert torch.equal(with_token, spaces)


def test_short_clips_of_models_with_a_fixed_number_of_frames(make: Make) -> None:
    method = eaglenet.load(f"st:{make('videoprism')}")
    assert method.frame_spec.num_frames == 4
    two = clips_for(method, real=2)
    order = torch.tensor([0, 0, 1, 1])
    padded_clips = Clips(
        two.frames[:, order], torch.ones(2, 4, dtype=torch.bool), two.seconds[:, order]
    )
    torch.testing.assert_close(
        method.encode_video(two).frames, method.encode_video(padded_clips).frames
    )


def test_images_and_videos_stand_in_one_batch(make: Make) -> None:
    """A clip of equal frames is passed as an image, others as videos; the order is kept."""
    package = st_models.require_sentence_transformers(videos=True)
    folder = make("qwen")
    method = eaglenet.load(f"st:{folder}")
    clips = clips_for(method, videos=3)
    clips.frames[1] = clips.frames[1, :1]
    together = method.encode_video(clips).frames
    for row in range(3):
        torch.testing.assert_close(together[row], method.encode_video(clips[row]).frames[0])
    image = Image.fromarray(clips.frames[1, 0].permute(1, 2, 0).numpy())
    library = package.SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(together[1], library.encode_document([image]), atol=1e-5)


def test_batches_shrink_until_they_fit(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    method = eaglenet.load(f"st:{make('clip')}")
    encoder: Any = method.encoder
    clips = clips_for(method)
    expected = method.encode_video(clips).frames
    call, sizes = encoder._call, []

    def full_beyond_three(task: str, inputs: list[Any], size: int) -> list[torch.Tensor]:
        sizes.append(size)
        if size > 3:
            raise torch.OutOfMemoryError
        return call(task, inputs, size)

    monkeypatch.setattr(encoder, "_call", full_beyond_three)
    monkeypatch.setattr(encoder, "_batch_size", lambda kind, sample: 8)
    torch.testing.assert_close(method.encode_video(clips).frames, expected)
    assert sizes == [8, 4, 2]
    monkeypatch.setattr(encoder, "_batch_size", lambda kind, sample: 1)
    monkeypatch.setattr(encoder, "_call", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError))
    with pytest.raises(torch.OutOfMemoryError):
        method.encode_video(clips)


@pytest.mark.parametrize(("bytes_per_clip", "size"), [(100, 6), (10_000, 1), (1, 64)])
def test_batches_on_a_gpu_fill_a_share_of_the_free_memory(
    bytes_per_clip: int, size: int, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder: Any = eaglenet.load(f"st:{make('clip')}").encoder
    monkeypatch.setattr(type(encoder), "device", property(lambda self: torch.device("cuda")))
    memory = {
        "reset_peak_memory_stats": None, "memory_allocated": 500,
        "max_memory_allocated": 500 + bytes_per_clip, "memory_reserved": 520,
        "mem_get_info": (980, 9999),
    }  # fmt: skip
    for name, value in memory.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    sample = {"image": Image.new("RGB", (24, 24))}
    assert encoder._batch_size("image", sample) == size


def test_weights_in_half_precision_have_one_identity_on_every_machine(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = st_models.require_sentence_transformers(videos=False)
    package.SentenceTransformer(str(make("clip")), device="cpu").bfloat16().save(str(tmp_path))
    method = eaglenet.load(f"st:{tmp_path}")
    identity = model_identity(method)
    weight = next(method.encoder.model.parameters())
    assert weight.dtype in (torch.bfloat16, torch.float32)
    method.encoder.model.bfloat16()
    module = "eaglenet.encoders.sentence_transformer.has_fast_bf16"
    monkeypatch.setattr(module, lambda device: True)
    method.encode_text(TEXTS)
    assert next(method.encoder.model.parameters()).dtype == torch.bfloat16
    monkeypatch.setattr(module, lambda device: False)
    method.encode_text(TEXTS)
    assert next(method.encoder.model.parameters()).dtype == torch.float32
    assert model_identity(method) == identity


def test_what_cannot_be_loaded_is_said(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=r"reads only text; .*eaglenet models"):
        eaglenet.load(f"st:{make('text_model')}")
    with pytest.raises(UsageError, match="write st:MODEL"):
        eaglenet.load("st:")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelNotFoundError, match=r"has no modules\.json and no config\.json"):
        eaglenet.load(f"st:{tmp_path / 'empty'}")
    with pytest.raises(ModelNotFoundError, match="no such folder"):
        eaglenet.load(f"st:{tmp_path / 'nowhere'}")
    damaged_folder = shutil.copytree(make("clip"), tmp_path / "damaged")
    (damaged_folder / "config_sentence_transformers.json").write_text("[")
    with pytest.raises(CheckpointError, match="config_sentence_transformers"):
        eaglenet.load(f"st:{damaged_folder}")
    foreign = shutil.copytree(make("clip"), tmp_path / "foreign")
    modules = json.loads((foreign / "modules.json").read_text())
    modules[0]["type"] = "custom.Module"
    (foreign / "modules.json").write_text(json.dumps(modules))
    (foreign / "custom.py").write_text("raise SystemExit('ran')")
    with pytest.raises(UsageError, match="which eaglenet does not run"):
        eaglenet.load(f"st:{foreign}")
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(UsageError, match=r"pip install 'eaglenet\[st\]'"):
        eaglenet.load(f"st:{make('clip')}")


def test_a_folder_without_modules_is_refused_where_pooling_would_be_guessed(make: Make) -> None:
    transformer = make("qwen").parent / "transformer"
    assert not (transformer / "modules.json").exists()
    with pytest.raises(ModelNotFoundError, match=r"has no modules\.json, so it is unknown how"):
        eaglenet.load(f"st:{transformer}")


def test_names_in_a_store_are_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    assert hub.exact_name("st:model:64") == f"st:{tmp_path / 'model'}:64"
    (tmp_path / "model:64").mkdir()
    assert hub.split_st_name("st:model:64") == ("model:64", None)
    monkeypatch.setattr(hub, "cached_snapshot", lambda name: Path("/cache/0123456789abcdef"))
    assert hub.exact_name("st:owner/name:64") == "st:owner/name@0123456789abcdef:64"
    assert hub.exact_name("st:owner/name@abcdef012") == "st:owner/name@abcdef012"


def test_a_model_is_downloaded_whole_from_the_hub(tmp_path: Path) -> None:
    """Downloads all files, except those for other runtimes or outside the folder."""
    source = tmp_path / "source"
    names = ["README.md", "config.json", "modules.json", "model.safetensors", "pytorch_model.bin"]
    names += [f"{number}_Dense/config.json" for number in range(12)]
    names += ["onnx/model.onnx", "weights.npz"]
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("{}")
    with serve_hub(source, "somebody/clips") as address:
        environment = {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home")}
        environment.pop("HF_HUB_OFFLINE", None)
        command = [sys.executable, "-m", "eaglenet", "models", "--download", "st:somebody/clips"]
        process = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60
        )
    assert process.returncode == 0, process.stderr
    assert f"st:somebody/clips@{COMMIT} is in" in process.stdout
    folder = Path(process.stdout.split(" is in ")[1].strip())
    here = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert here == set(names) - {"pytorch_model.bin", "onnx/model.onnx", "weights.npz"}
