"""Published datasets: splits from their annotation files, with the usual protocols.

Each reader returns the name of a protocol, the videos of a split, and videos left out.
"""

from __future__ import annotations

import functools
import inspect
import io
import math
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn
from urllib.parse import urlsplit

from eaglenet.core.errors import DatasetError, UsageError
from eaglenet.research.data.annotation_files import (
    MomentText,
    VideoFinder,
    captions_by_video,
    captions_of_entries,
    find_file,
    finder_for,
    read_bytes,
    read_columns,
    read_csv,
    read_json,
    read_json_lines,
    read_list,
    read_moments,
    refuse_duplicates,
    stem_of,
)
from eaglenet.research.data.records import (
    DatasetSpec,
    RetrievalProtocol,
    Split,
    VideoProblem,
    VideoRecord,
    check_id,
    check_split_name,
    clean_captions,
    make_split,
    training_ids,
)
from eaglenet.research.data.sources import add_dataset

SPLITS = ("train", "val", "test")
NO_CAPTION = "no caption in the annotations"

Records = tuple[Sequence[VideoRecord], Sequence[VideoProblem]]
Contents = tuple[str, Sequence[VideoRecord], Sequence[VideoProblem]]


@dataclass(frozen=True)
class DatasetFiles:
    """Annotation and video files of a dataset.

    folders: names of folders in which releases of the dataset keep their annotations.
    """

    root: Path
    folders: Sequence[str]
    video_folders: Sequence[Path | str] = ()
    finder: VideoFinder | None = None

    def find(self, *names: str) -> Path:
        """Return the first existing annotation file of ``names``."""
        return find_file(self.root, names, self.folders)

    @functools.cached_property
    def videos(self) -> VideoFinder:
        return self.finder or finder_for(self.root, self.video_folders)

    def records(
        self,
        video_ids: Iterable[str],
        captions: Mapping[str, Sequence[str]],
        *,
        window: tuple[float, float] | None = None,
        prefix: str = "",
    ) -> Records:
        """Make records in the order of ``video_ids``, leaving out videos without captions.

        The file of a video is named after its id, with or without ``prefix``.
        """
        videos, left_out = [], []
        for video_id in video_ids:
            texts = captions.get(video_id)
            if texts:
                find = self.videos.find
                path = find(video_id) or find(video_id.removeprefix(prefix))
                videos.append(VideoRecord(video_id, tuple(texts), path, window))
            else:
                left_out.append(VideoProblem(video_id, NO_CAPTION))
        return videos, left_out


def register(
    name: str,
    title: str,
    folders: Sequence[str],
    max_words: int = 32,
) -> Callable[[Callable[..., Contents]], Callable[..., Contents]]:
    """Return a decorator for ``read(files, split, *, ...)`` that registers the dataset ``name``.

    The keyword arguments of ``read`` are options of the dataset. The loader also takes the folders
    of the videos (``video_folders``), or an index of their files (``finder``).
    """

    def decorate(read: Callable[..., Contents]) -> Callable[..., Contents]:
        @functools.wraps(read)
        def load(
            root: Path | str,
            split: str,
            *,
            video_folders: Sequence[Path | str] = (),
            finder: VideoFinder | None = None,
            **settings: Any,
        ) -> Split:
            check_split_name(name, split, SPLITS)
            files = DatasetFiles(Path(root), folders, video_folders, finder)
            protocol, videos, left_out = read(files, split, **settings)
            return make_split(name, split, RetrievalProtocol(protocol), videos, left_out)

        parameters = [
            *(spec for key, spec in inspect.signature(read).parameters.items() if key != "files"),
            *(
                inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None)
                for key in ("video_folders", "finder")
            ),
        ]
        load.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        add_dataset(DatasetSpec(name, title, load, max_words=max_words))
        return read

    return decorate


@register("msrvtt", "MSR-VTT", ("msrvtt", "MSRVTT", "MSR-VTT", "msrvtt_data"))
def read_msrvtt(
    files: DatasetFiles,
    split: str,
    *,
    train: Literal["9k", "7k", "full"] | None = None,
    test: Literal["1k-A", "full"] = "1k-A",
    hold_out: int = 500,
) -> Contents:
    """Read MSR-VTT: 10,000 videos with 20 captions each.

    The 1k-A protocol has no validation set; published results select on its test set.

    Args:
        train: training list; by default 9k for the 1k-A test and 7k for the full test. 9k cannot be
            used with the full test, with which it shares 1,990 videos.
        hold_out: training videos held out for validation. 0 trains on the whole list, as published
            results do, without ``val``. ``train="full"`` has its own validation list.
    """
    train = train or ("9k" if test == "1k-A" else "7k")
    if train == "9k" and test == "full":
        raise UsageError(
            "msrvtt: the 9k training list has 1,990 videos of the full test; "
            "use train='7k' or train='full' with test='full'"
        )

    def read_ids(name: str) -> list[str]:
        path = files.find(name)
        ids = [row["video_id"] for _, row in read_csv(path, ("video_id",))]
        refuse_duplicates(ids, path)
        return ids

    if split == "test" and test == "1k-A":
        name = "MSRVTT_JSFUSION_test.csv"
        path = files.find(name)
        rows = read_csv(path, ("video_id", "sentence"))
        captions = captions_of_entries(
            "msrvtt", path, rows, video="video_id", caption="sentence", title="line"
        )
        return "MSR-VTT 1k-A", *files.records(read_ids(name), captions)
    path = files.find("MSRVTT_data.json")
    content = read_json(path)
    sentences = content.get("sentences") if isinstance(content, dict) else None
    if not isinstance(sentences, list):
        raise DatasetError(f"{path}: expected an object with a list under 'sentences'")
    captions = captions_of_entries(
        "msrvtt", path, enumerate(sentences), video="video_id", caption="caption", title="sentence"
    )
    if split == "test":
        ids, protocol = read_ids("MSRVTT_test.full.csv"), "MSR-VTT full test"
    elif split == "val" and train == "full":
        ids, protocol = read_ids("MSRVTT_val.full.csv"), "MSR-VTT full validation"
    else:
        ids = read_ids(f"MSRVTT_train.{train}.csv")
        protocol = (
            "MSR-VTT train" if split == "train" else "MSR-VTT validation held out of training"
        )
        if train != "full":
            ids = training_ids("msrvtt", split, ids, hold_out)
    return protocol, *files.records(ids, captions)


@register("msvd", "MSVD", ("msvd", "MSVD", "msvd_data"))
def read_msvd(files: DatasetFiles, split: str) -> Contents:
    """Read MSVD: about 40 captions per video, each of which is a query.

    ``raw-captions.pkl`` is {video_id: [[word, ...], ...]}; captions may also be text.
    """
    path = files.find("raw-captions.pkl")
    try:
        content = PlainUnpickler(io.BytesIO(read_bytes(path))).load()
    except DatasetError as error:
        raise DatasetError(f"{path}: {error}") from None
    except Exception as error:
        # A broken pickle may raise almost any error, and quote the content of the file.
        cause = " ".join(str(error).split())[:200]
        raise DatasetError(f"{path}: not a readable pickle ({cause})") from error
    ids = read_list(files.find(f"{split}_list.txt"))
    return "MSVD multi-caption", *files.records(ids, captions_by_video("msvd", path, content))


class PlainUnpickler(pickle.Unpickler):
    """Unpickler of text, numbers, lists and dictionaries.

    Raises for classes and functions, through which a pickle could run code.
    """

    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        raise DatasetError(
            f"the pickle asks for {module_name}.{global_name}; only plain lists, dictionaries and "
            "text are read, because other objects could run code"
        )

    def persistent_load(self, pid: Any) -> NoReturn:
        raise DatasetError(f"the pickle refers to an external object {pid!r}")


@register("vatex", "VATEX", ("vatex", "VATEX"))
def read_vatex(files: DatasetFiles, split: str) -> Contents:
    """Read VATEX: ten English captions per video, each of which is a query.

    ``ref_captions.json`` is {video_id: [caption, ...]}.
    """
    path = files.find("ref_captions.json")
    captions = captions_by_video("vatex", path, read_json(path))
    return "VATEX", *files.records(read_list(files.find(f"{split}_list.txt")), captions)


@register(
    "didemo",
    "DiDeMo",
    ("didemo", "DiDeMo", "Didemo"),
    max_words=64,
)
def read_didemo(
    files: DatasetFiles, split: str, *, window: Literal["whole", "first_31_seconds"] = "whole"
) -> Contents:
    """Read DiDeMo for paragraph retrieval: the query is all descriptions of a video, joined.

    ``*_data.json`` is [{"video", "description", ...}, ...]. Paper: frames are from the whole video;
    the released code decodes ``window="first_31_seconds"``.
    """
    path = files.find(f"{split}_data.json", f"{split}_data.derived.json")
    content = read_json(path)
    if not isinstance(content, list):
        raise DatasetError(f"{path}: expected a list of descriptions")
    descriptions = captions_of_entries(
        "didemo", path, enumerate(content), video="video", caption="description", title="entry"
    )
    # The extensions in lists and annotations may differ.
    paragraphs = {stem_of(video): [" ".join(texts)] for video, texts in descriptions.items()}
    ids = read_list(files.find(f"{split}_list.txt"))
    captions = {video_id: paragraphs.get(stem_of(video_id), []) for video_id in ids}
    seconds = (0.0, 31.0) if window == "first_31_seconds" else None
    return "DiDeMo paragraph retrieval", *files.records(ids, captions, window=seconds)


ACTIVITYNET = {
    "train": "ActivityNet Captions train",
    "val": "ActivityNet Captions validation held out of training",
    "test": "ActivityNet Captions val1 paragraph retrieval",
}


@register(
    "activitynet",
    "ActivityNet Captions",
    ("activitynet", "ActivityNet", "captions"),
    max_words=64,
)
def read_activitynet(files: DatasetFiles, split: str, *, hold_out: int = 500) -> Contents:
    """Read ActivityNet Captions for paragraph retrieval: the query is all captions, joined.

    ``test`` is val1, on which results are published; validation is held out of the 10,009 training
    videos. The file of a video is named ``v_ID`` or ``ID``.
    """
    path = files.find("val_1.json" if split == "test" else "train.json")
    texts_of = texts_by_video(read_moments(path, "activitynet"))
    captions = {video: [" ".join(texts)] for video, texts in texts_of.items() if texts}
    ids = list(texts_of)
    if split != "test":
        ids = training_ids("activitynet", split, ids, hold_out)
    return ACTIVITYNET[split], *files.records(ids, captions, prefix="v_")


@register("charades-sta", "Charades-STA", ("charades", "Charades", "charades_sta", "Charades-STA"))
def read_charades_sta(files: DatasetFiles, split: str, *, hold_out: int = 500) -> Contents:
    """Read Charades-STA: videos of half a minute at home; each text describes a part of one.

    There is no official validation split. ``eaglenet evaluate STORE --moments FILE`` evaluates
    moments.
    """
    name = "test" if split == "test" else "train"
    path = files.find(f"charades_sta_{name}.txt")
    captions = texts_by_video(read_moments(path, "charades-sta"))
    ids = list(captions)
    if split != "test":
        ids = training_ids("charades-sta", split, ids, hold_out)
    protocol = (
        "Charades-STA validation held out of training"
        if split == "val"
        else "Charades-STA partially relevant video retrieval"
    )
    return protocol, *files.records(ids, captions)


def texts_by_video(moments: Iterable[MomentText]) -> dict[str, list[str]]:
    """Group texts that are not blank by video, in file order."""
    texts: dict[str, list[str]] = {}
    for moment in moments:
        texts.setdefault(moment.video_id, []).extend([moment.text] if moment.text else [])
    return texts


@register("qvhighlights", "QVHighlights", ("qvhighlights", "QVHighlights", "moment_detr/data"))
def read_qvhighlights(files: DatasetFiles, split: str) -> Contents:
    """Read QVHighlights: videos of 150 s; each query describes a part of one.

    The test annotations with the described spans (``highlight_test_with_gt.jsonl``) are also read.
    ``eaglenet evaluate STORE --moments FILE`` evaluates moments.
    """
    names = [f"highlight_{split}_release.jsonl"]
    if split == "test":
        names.append("highlight_test_with_gt.jsonl")
    path = files.find(*names)
    captions = captions_of_entries(
        "qvhighlights", path, read_json_lines(path), video="vid", caption="query", title="line"
    )
    return "QVHighlights partially relevant video retrieval", *files.records(captions, captions)


@register(
    "tgif",
    "TGIF",
    ("splits", "data/splits", "tgif", "TGIF", "TGIF-Release/data", "TGIF-Release/data/splits"),
)
def read_tgif(files: DatasetFiles, split: str) -> Contents:
    """Read TGIF: animated GIFs, each of whose captions is a query.

    The id of a GIF is the file name in its URL.
    """
    path = files.find("tgif-v1.0.tsv")
    rows = read_columns(path, ("url", "sentence"))
    captions_by_url = captions_of_entries(
        "tgif", path, rows, video="url", caption="sentence", title="line"
    )
    captions: dict[str, list[str]] = {}
    duplicates = []
    for url in read_list(files.find(f"{split}.txt")):
        name = file_stem(url)
        if name in captions:
            duplicates.append(VideoProblem(url, "another address has the same file name"))
        else:
            captions[name] = captions_by_url.get(url, [])
    videos, left_out = files.records(captions, captions)
    return "TGIF", videos, [*left_out, *duplicates]


def file_stem(url: str) -> str:
    """Return the file name in a URL without its extension.

    >>> file_stem("https://38.media.tumblr.com/9f6c25cc/tumblr_mevmyaKtDf1rgvhr8o1_500.gif")
    'tumblr_mevmyaKtDf1rgvhr8o1_500'
    """
    try:
        path = urlsplit(url).path
    except ValueError:
        path = url
    return stem_of(path.rpartition("/")[2]) or url


LSMDC_FILES = {
    "train": "LSMDC16_annos_training.csv",
    "val": "LSMDC16_annos_val.csv",
    "test": "LSMDC16_challenge_1000_publictect.csv",  # The spelling of its authors.
}
LSMDC_COLUMNS = ("clip", "start", "end", "extracted_start", "extracted_end", "sentence")


@register("lsmdc", "LSMDC", ("lsmdc", "LSMDC", "LSMDC16", "lsmdc2016"))
def read_lsmdc(files: DatasetFiles, split: str) -> Contents:
    """Read LSMDC: clips of movies, with lines of their audio description as captions."""
    path = files.find(LSMDC_FILES[split])
    rows = read_columns(path, LSMDC_COLUMNS)
    captions = captions_of_entries(
        "lsmdc", path, rows, video="clip", caption="sentence", title="line"
    )
    ids = dict.fromkeys(row["clip"] for _, row in rows)
    return ("LSMDC16 public test" if split == "test" else "LSMDC16"), *files.records(ids, captions)


YOUCOOK2 = {
    "train": "YouCook2 training clips",
    "val": "YouCook2 clips held out of training",
    "test": "YouCook2 validation clips",
}
Step = tuple[str, tuple[str, ...], tuple[float, float]]
"""Id of a clip, its captions (none or one), and its start and end in seconds."""


@register("youcook2", "YouCook2", ("youcook2", "YouCook2", "YouCookII", "YouCookII/annotations"))
def read_youcook2(files: DatasetFiles, split: str, *, hold_out: int = 100) -> Contents:
    """Read YouCook2: steps of recipes, each a clip of a cooking video with one caption.

    ``test`` is the official validation split, on which results are published; the captions of the
    official test split are not public. ``hold_out`` counts videos (of 1,333), so that all steps of
    a video are in one split.
    """
    path = files.find("youcookii_annotations_trainval.json", "youcookii_annotations.json")
    steps = read_steps(path, "validation" if split == "test" else "training")
    ids = list(steps)
    if split != "test":
        ids = training_ids("youcook2", split, ids, hold_out)
    clips: list[VideoRecord] = []
    left_out: list[VideoProblem] = []
    for video_id in ids:
        file = files.videos.find(video_id)
        for clip_id, captions, window in steps[video_id]:
            if captions:
                clips.append(VideoRecord(clip_id, captions, file, window))
            else:
                left_out.append(VideoProblem(clip_id, NO_CAPTION))
    return YOUCOOK2[split], clips, left_out


def read_steps(path: Path, subset: str) -> dict[str, list[Step]]:
    """Read ``{"database": {ID: {"subset", "annotations": [{"id", "segment", "sentence"}]}}}``."""
    content = read_json(path)
    database = content.get("database") if isinstance(content, dict) else None
    if not isinstance(database, dict):
        raise DatasetError(f"{path}: expected an object of videos under 'database'")
    steps: dict[str, list[Step]] = {}
    for video_id, entry in database.items():
        where = f"{path}: video {video_id!r}"
        if not isinstance(entry, dict) or not isinstance(entry.get("annotations"), list):
            raise DatasetError(f"{where} needs a list under 'annotations', and 'subset'")
        if entry.get("subset") == subset:
            steps[video_id] = [
                _read_step(video_id, step, f"{where}, annotation {number}")
                for number, step in enumerate(entry["annotations"])
            ]
    if not steps:
        raise DatasetError(f"{path}: no video has the subset {subset!r}")
    return steps


def _read_step(video_id: str, step: Any, where: str) -> Step:
    try:
        number, caption = step["id"], step["sentence"]
        start, end = map(float, step["segment"])
    except (TypeError, KeyError, ValueError, OverflowError):
        raise DatasetError(
            f"{where} needs the keys 'id', 'sentence' and 'segment' with two numbers"
        ) from None
    if not 0 <= start < end or not math.isfinite(end):
        raise DatasetError(f"{where}: invalid segment {start:g} to {end:g} s")
    captions, _ = clean_captions([caption], where)
    clip_id = f"{video_id}_{number}"
    check_id(clip_id, where)
    return clip_id, captions, (start, end)
