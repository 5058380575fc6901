"""What people write first in Python works: sentences, files, arrays, pictures, plain results."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import eaglenet
from eaglenet.core.errors import EagleNetError, UsageError
from eaglenet.core.types import Clips, FrameSpec, TextFeatures, VideoFeatures
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.indexing.options import Splitting
from eaglenet.methods.base import METHODS, Method
from eaglenet.research.data.demo.dataset import demo_split, render_clips, render_world
from eaglenet.search.dates import DateRange
from eaglenet.search.grammar import parse
from eaglenet.search.hit import Hit
from eaglenet.search.options import Filters, SearchOptions
from eaglenet.search.query import Query, clean_text
from eaglenet.video.inputs import clips_of

SENTENCES = ["a red circle moves", "a blue square grows", "a green triangle"]


@pytest.fixture(scope="module")
def model() -> Method:
    """The model of the package."""
    return eaglenet.load("demo", device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight videos."""
    place = tmp_path_factory.mktemp("world")
    render_world(place, "test", 8, workers=1)
    return place / "videos"


@pytest.fixture(scope="module")
def files(folder: Path) -> list[Path]:
    """Two of them."""
    return sorted(folder.glob("*.mp4"))[:2]


@pytest.fixture(scope="module")
def clips(model: Method) -> Clips:
    """Five videos as the towers read them."""
    return render_clips(demo_split("test", test=8), model.frame_spec)[:5]


def test_sentences_are_encoded_as_their_tokens_are(model: Method) -> None:
    natural = model.encode_text(SENTENCES)
    assert isinstance(natural, TextFeatures)
    assert natural.sentence.shape == (3, model.encoder.dim)
    assert not natural.sentence.requires_grad
    with torch.no_grad():
        tokens = model.encode_text(model.tokenize(SENTENCES))
    torch.testing.assert_close(natural.sentence, tokens.sentence, rtol=0, atol=0)
    assert len(model.encode_text(SENTENCES[0])) == 1


def test_a_file_is_a_video_by_its_path_or_name(model: Method, files: list[Path]) -> None:
    by_path = model.encode_video(files[0])
    by_name = model.encode_video(str(files[0]))
    both = model.encode_video(files)
    assert isinstance(by_path, VideoFeatures)
    torch.testing.assert_close(by_path.frames, by_name.frames, rtol=0, atol=0)
    assert len(both) == 2
    torch.testing.assert_close(both.frames[:1], by_path.frames, rtol=1e-5, atol=1e-6)


def test_arrays_and_tensors_are_videos(model: Method, clips: Clips) -> None:
    """Frames of the right size and number are taken as they are, colours last or second."""
    expected = model.encode_video(clips).frames
    tensors = [clips.frames[number] for number in range(5)]
    arrays = [np.ascontiguousarray(one.permute(0, 2, 3, 1).numpy()) for one in tensors]
    for given in (tensors, arrays, clips.frames, np.stack(arrays)):
        with torch.no_grad():
            torch.testing.assert_close(model.encode_video(given).frames, expected)
    one = model.encode_video(arrays[2])
    torch.testing.assert_close(one.frames, expected[2:3], rtol=1e-5, atol=1e-6)


def test_too_few_and_too_many_frames_are_filled_up_and_thinned(model: Method) -> None:
    spec = model.frame_spec
    size = 3 * spec.size
    few = torch.zeros(1, 3, size, size, dtype=torch.uint8)
    many = torch.zeros(5 * spec.num_frames, 3, size, 2 * size, dtype=torch.uint8)
    assert model.encode_video([few, many]).frames.shape[:2] == (2, spec.num_frames)


@pytest.mark.parametrize(
    ("video", "message"),
    [
        (
            np.zeros((4, 9, 9, 3)),
            r"float64 \[4, 9, 9, 3\] is not a video; a video is a file, or uint8",
        ),
        (np.zeros((9, 9, 3), dtype=np.uint8), "is not a video"),
        (np.zeros((0, 9, 9, 3), dtype=np.uint8), "has no frames"),
        ([], "the list of videos is empty"),
        (7, "int 7 is not a video"),
    ],
)
def test_what_is_no_video_is_told_what_one_is(video: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        clips_of(video, FrameSpec())


def test_similarity_is_the_score_of_every_text_with_every_video(
    model: Method, clips: Clips
) -> None:
    scores = model.similarity(SENTENCES, clips)
    with torch.no_grad():
        expected = model.score(model.encode_text(SENTENCES), model.encode_video(clips))
    assert scores.shape == (3, 5)
    torch.testing.assert_close(scores, expected)


def test_similarity_takes_what_was_encoded_before(model: Method, clips: Clips) -> None:
    """Encode once, compare often; one side may be encoded and the other not."""
    texts, videos = model.encode_text(SENTENCES), model.encode_video(clips)
    expected = model.similarity(SENTENCES, clips)
    for given in ((texts, videos), (texts, clips), (SENTENCES, videos)):
        scores = model.similarity(*given)
        torch.testing.assert_close(scores, expected)
        assert not scores.requires_grad


def test_a_model_over_stored_features_still_adapts_them() -> None:
    torch.manual_seed(0)
    spec = METHODS["clip4clip"]
    encoder = FeatureEncoder(FeatureConfig(text_dim=16, frame_dim=16, dim=16))
    stored = spec.build(spec.config_class(), encoder).eval()
    text = TextFeatures(torch.randn(3, 16))
    video = VideoFeatures(torch.randn(5, 4, 16), torch.ones(5, 4, dtype=torch.bool))
    with torch.no_grad():
        expected = stored.score(stored.encode_text(text), stored.encode_video(video))
    torch.testing.assert_close(stored.similarity(text, video), expected)


def test_a_folder_is_indexed_and_searched_and_hits_are_plain(
    folder: Path, files: list[Path], tmp_path: Path
) -> None:
    from PIL import Image

    store = tmp_path / "store"
    report = eaglenet.index(str(folder), str(store), "demo", workers=0)
    assert report.indexed == 8
    assert json.loads(json.dumps(report.to_dict()))["indexed"] == 8
    engine = eaglenet.open(store)
    hits = engine.search("a red circle", k=2, path=files[0].name)
    assert [Path(hit.path).name for hit in hits] == [files[0].name]
    assert isinstance(hits[0], Hit)
    plain = json.loads(json.dumps(hits[0].to_dict()))
    assert plain["moment"].keys() == {"start", "end", "best"}
    picture = Image.new("RGB", (90, 50), "red")
    assert len(engine.search(Query(image=picture), k=3)) == 3
    picture.save(tmp_path / "red.png")
    by_file = engine.search(Query(image=str(tmp_path / "red.png")), k=3)
    assert [hit.clip_id for hit in by_file] == [
        hit.clip_id for hit in engine.search(Query(image=picture), k=3)
    ]


def test_index_shows_progress_in_a_terminal_unless_told_not_to(
    folder: Path,
    files: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = tmp_path / "store"
    eaglenet.index(files[0], store, "demo", workers=0)
    assert capsys.readouterr() == ("", ""), "a log gets no progress"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "150")
    eaglenet.index(files[1], store, workers=0, progress=False)
    assert capsys.readouterr() == ("", "")
    eaglenet.index(folder, store, workers=0)
    output = capsys.readouterr()
    assert output.out == ""
    assert "/6 files" in output.err
    with pytest.raises(UsageError, match="progress should be True or False"):
        eaglenet.index(files[0], store, progress="no")  # type: ignore[arg-type]


def test_a_plain_script_indexes_without_a_main_guard(files: list[Path], tmp_path: Path) -> None:
    """Decoding processes do not run the script again. Without torch, which takes seconds."""
    script = tmp_path / "script.py"
    script.write_text(
        "import eaglenet, sys\n"
        "print('begun')\n"
        "options = {'device': 'cpu', 'precision': 'fp32', 'workers': 1}\n"
        "print(eaglenet.index(sys.argv[1], sys.argv[2], 'small', **options).indexed)\n"
    )
    ended = subprocess.run(
        [sys.executable, script, files[0], tmp_path / "store"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.stdout.split(), ended.stderr) == (["begun", "1"], "")


@pytest.mark.slow
def test_type_checkers_know_the_options(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    code = tmp_path / "code.py"
    code.write_text(
        "import datetime, eaglenet\n"
        "eaglenet.index('videos', workers=2, progress=False)\n"
        "eaglenet.index('videos', wrkers=2)\n"
        "with eaglenet.open() as engine:\n"
        "    hits = engine.search('a dog', k=5, path='holiday', shortlist=50)\n"
        "    first: eaglenet.Hit = hits[0]\n"
        "    engine.search('a dog', pth='holiday')\n"
        "    engine.search('a dog', shortlist='many')\n"
        "    all_hits: eaglenet.HitList = engine.search(eaglenet.Query('a', negatives=['b']))\n"
        "    engine.search('a dog', filters=eaglenet.Filters(tags=['sea']))\n"
        "    eaglenet.Filters(after='2024-01-01', near='48.1,11.6', within='5km')\n"
        "    eaglenet.Filters(before=datetime.date(2024, 1, 1), near=(48.1, 11.6), within=5)\n"
        "    eaglenet.Filters(near=48.1)\n"
    )
    root = Path(__file__).parents[1]
    ended = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", root / "pyproject.toml", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
        env={**os.environ, "MYPYPATH": str(root / "src")},
    )
    # What mypy cached in an earlier run names the folder of that run.
    places = [line.split(": ")[0] for line in ended.stdout.splitlines() if ": error: " in line]
    lines = [Path(place).name for place in places]
    assert lines == [f"code.py:{number}" for number in (3, 7, 8, 13)], ended.stdout


def test_an_option_that_index_does_not_have_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no option 'works' \(did you mean 'workers'\?\)"):
        eaglenet.index(tmp_path, tmp_path / "store", "demo", works=3)
    with pytest.raises(UsageError, match=r"no option 'modle' \(did you mean 'model'\?\)"):
        eaglenet.index(tmp_path, modle="demo")
    with pytest.raises(UsageError, match=r"pass splitting=Splitting\(clip_seconds="):
        eaglenet.index(tmp_path, clip_seconds=5.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": "two"}, "workers: expected none or a whole number, got 'two'|workers: exp"),
        ({"workers": -1}, "workers must be 0 or more, not -1"),
        ({"exclude": "*.mp4"}, r"exclude: expected a list of texts, got '\*.mp4'"),
        ({"splitting": 5}, "splitting: expected Splitting, got 5"),
        ({"listen": True}, "listen: expected"),
        ({"quick": "no"}, "quick: expected true or false, got 'no'"),
    ],
)
def test_options_of_the_wrong_type_are_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        eaglenet.index(tmp_path, tmp_path / "store", **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Filters(within="5km"), "within needs a place; add near, such as"),
        (lambda: Filters(after=2, before=1), "newer than 'after' and older than 'before'"),
        (lambda: parse('"a dog" then runs'), "or ignore operators with the option 'literal'"),
        (
            lambda: SearchOptions(filters=Filters(after=5)).within_dates(DateRange("2 s", 1, 2)),
            "outside 'after' and 'before'.*with the option 'literal'",
        ),
        (lambda: eaglenet.open("/dev/null"), "/dev/null is a file; use a folder for the store"),
        (lambda: eaglenet.load("demo", device="gpu"), "device gpu is unknown"),
        (
            lambda: eaglenet.index(".", "none", splitting=Splitting(0)),
            "clip_seconds must be finite and above 0",
        ),
        (lambda: eaglenet.index(".", "none", decode="tpu"), "decode must be auto, cpu or gpu"),
        (lambda: eaglenet.index(".", "none", exclude=["a" * 9999]), "^exclude: "),
    ],
)
def test_messages_name_arguments_not_options_of_the_command_line(
    call: Callable[[], object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EagleNetError, match=message) as error:
        call()
    assert "--" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (None, "not None"),
        (5, "not int 5"),
        ({"text": "a dog"}, "convert it with eaglenet.search.grammar.from_json"),
        (["a dog"], "pass a list to search_many"),
    ],
)
def test_what_is_no_query_is_refused(text: Any, advice: str) -> None:
    with pytest.raises(UsageError, match="a query must be one text or a Query") as error:
        clean_text(text)
    assert str(error.value).endswith(advice)
    assert ("search_many" in str(error.value)) == isinstance(text, list)


def test_bad_negatives_are_named() -> None:
    for negatives, problem in ((1, "not int 1"), ([1], "one of them is int 1"), ([" "], "empty")):
        with pytest.raises(UsageError, match=f"^negatives: .*{problem}"):
            Query("a fox", negatives=negatives)  # type: ignore[arg-type]


def test_what_is_no_text_to_encode_is_refused(model: Method) -> None:
    encode_text = inspect.unwrap(Method.encode_text)  # Without the checks of types in tests.
    for texts, problem in ((None, "not None"), (5, "not 5"), (["a", None], "of them is None")):
        with pytest.raises(UsageError, match=problem):
            encode_text(model, texts)  # type: ignore[arg-type]


def test_a_table_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "captions.csv").write_text("video,caption\na.mp4,a dog\n")
    with pytest.raises(EagleNetError, match=r"captions.csv: .*\(not a file of tensors\)"):
        eaglenet.load(tmp_path / "captions.csv")


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(UsageError, match="name or the folder of a model, not None"):
        eaglenet.load(None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="device gpu is unknown"):
        eaglenet.load("demo", device="gpu")
    for model in (None, "demo"):
        with pytest.raises(UsageError, match=r"save takes a loaded model, .*eaglenet.load"):
            eaglenet.save(model, "folder")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="folder must be a path, not None"):
        eaglenet.save(eaglenet.load("demo"), None)  # type: ignore[arg-type]


def test_what_is_no_path_is_refused(tmp_path: Path) -> None:
    for videos in (3, None, [tmp_path, 3], b"/videos"):
        with pytest.raises(UsageError, match="expected a folder"):
            eaglenet.index(videos, tmp_path / "store")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="nothing to index: there are no paths"):
        eaglenet.index([], tmp_path / "store")
    with pytest.raises(UsageError, match="nothing to index: there are no paths"):
        eaglenet.index(tmp_path.glob("*.mp4"), tmp_path / "store")
    missing = (tmp_path / name for name in ("a.mp4", "b.mp4"))
    with pytest.raises(UsageError, match=r"a.mp4"):
        eaglenet.index(missing, tmp_path / "store")
    assert not (tmp_path / "store").exists()
    for call in (lambda: eaglenet.index(tmp_path, 5), lambda: eaglenet.open(5)):
        with pytest.raises(UsageError, match="expected the location of a store, not 5"):
            call()


@pytest.mark.parametrize(
    ("sampling", "many", "few"),
    [("uniform", [3, 11, 18, 26], [0, 0, 1, 1]), ("middle_frames", [3, 10, 18, 25], [0, 0, 1, 1]),
     ("before_middle", [2, 9, 17, 24], [0, 0, 0, 0]),
     ("first_to_last", [0, 9, 19, 29], [0, 0, 0, 1])],
)  # fmt: skip
def test_frames_of_an_array_are_chosen_as_in_a_file(
    sampling: Any, many: list[int], few: list[int]
) -> None:
    spec = FrameSpec(num_frames=4, size=8, sampling=sampling)
    frames = np.zeros((30, 8, 8, 3), np.uint8)
    assert clips_of([frames], spec).seconds[0].tolist() == many
    assert clips_of([frames[:2]], spec).seconds[0].tolist() == few


def test_a_model_prints_as_a_line_and_its_towers_as_modules() -> None:
    """A notebook shows the value of a cell: of a torch module, all modules."""
    model = eaglenet.load("small")
    text = repr(model)
    assert len(text) < 200
    assert "\n" not in text
    weights = sum(value.numel() for value in model.parameters())
    for fact in ("'small'", "clip4clip", "compact", f"{weights / 1e6:.1f} M", "English", "168"):
        assert fact in text
    assert "Linear" in repr(model.encoder)
    assert repr(model.tokenize(["a dog", "a cat"])).startswith("Tokens(ids: int64 [2, ")


def test_options_and_queries_print_what_was_set(tmp_path: Path) -> None:
    from PIL import Image

    options = eaglenet.SearchOptions(eaglenet.Filters(path="*.mov", tags=["sea"]), literal=True)
    filters = "Filters(path='*.mov', tags=('sea',))"
    assert repr(options) == f"SearchOptions(filters={filters}, literal=True)"
    assert repr(eaglenet.SearchOptions()) == "SearchOptions()"
    assert repr(eaglenet.Query("a dog", negatives=["a cat"])) == (
        "Query(text='a dog', negatives=('a cat',))"
    )
    assert repr(eaglenet.Query(image=Image.new("RGB", (2, 2)))).startswith("Query(image=<PIL")
    assert "clip4clip, " in repr(eaglenet.METHODS)
