"""A word with the real world for ``eaglenet demo``: one photograph that a dependency brings.

Of what is installed with the package, matplotlib alone has a photograph that anyone may use: its
sample ``grace_hopper.jpg``, a portrait by the United States Navy in the public domain. No
dependency brings real footage.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

SENTENCES = (
    "a dog runs on a beach",
    "a man plays a guitar on a stage",
    "a woman in a navy uniform in front of a flag",
    "food is cooked in a pan",
    "cars on a city street at night",
    "children play football",
)
"""The third is about the photograph."""
ABOUT = SENTENCES[2]
NO_PHOTOGRAPH = (
    "no real picture is shown: the only one that may be used comes with matplotlib, which is not "
    "installed (pip install 'eaglenet[train]'), and no dependency brings real footage"
)


def find_photograph() -> Path | None:
    """The sample of matplotlib, found without importing it; None where it is not installed."""
    spec = find_spec("matplotlib")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "mpl-data" / "sample_data" / "grace_hopper.jpg"
    return path if path.is_file() else None


def rank_sentences(photograph: Path) -> list[tuple[str, float]]:
    """Sentences and their scores for the photograph by the model ``small``, the best first."""
    import torch

    from eaglenet.methods.folder import load
    from eaglenet.search.models import DEFAULT_MODEL
    from eaglenet.video.inputs import clips_of_image

    method = load(DEFAULT_MODEL)
    method.eval()
    with torch.inference_mode():
        video = method.encode_video(clips_of_image(photograph, method.frame_spec))
        text = method.encode_text(method.tokenize(list(SENTENCES)))
        scores = method.score(text, video)[:, 0].tolist()
    return sorted(zip(SENTENCES, scores, strict=True), key=lambda pair: -pair[1])


def photograph_lines(ranked: list[tuple[str, float]]) -> list[str]:
    """What the demo says of it."""
    title = "one real photograph (a portrait by the US Navy, public domain), by the model small:"
    rows = [f"  {place}. {score:6.3f}  {text}" for place, (text, score) in enumerate(ranked, 1)]
    return [title, *rows, "no dependency brings real footage: your own folder shows more", ""]
