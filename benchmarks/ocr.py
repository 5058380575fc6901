"""On-screen text over real footage: recall of known texts and processor time per second of video.

    python benchmarks/ocr.py                        # 24 s of 720p, four sizes of letters
    PYTHONPATH=OTHER/src python benchmarks/ocr.py   # another version of the package

The background is the footage of ``eaglenet demo``. Every text is visible for two seconds, white
with a black outline; every other scene has no text. A text counts as read if a line is at least 87%
similar.
"""

from __future__ import annotations

import argparse
import difflib
import json
import random
import tempfile
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import ImageDraw, ImageFont

from common import save_result
from eaglenet.transcripts.ocr import OcrModel, TextTracker, distinct_frames

CLIPS = Path(__file__).parents[1] / "src" / "eaglenet" / "cli" / "demo_clips"
BACKGROUNDS = ("rally_car", "cat_on_patio", "rocket_launch", "city_at_night", "cockatoo")
SIZES = (16, 22, 30, 44)
"""Font sizes in pixels at 720p."""
WORDS = (
    "platform departure museum closed river crossing bakery fresh bread report director camera "
    "weather tomorrow bridge village harbour market station library winter ticket concert garden"
)
RATE, WIDTH, HEIGHT = 2, 1280, 720


def make_film(path: Path, seconds: int, backgrounds: Sequence[str]) -> list[tuple[int, str]]:
    """Write the film; return its texts with their sizes."""
    chance = random.Random(0)
    texts: list[tuple[int, str]] = []
    footage = [_decode(CLIPS / f"{name}.mp4") for name in backgrounds]
    with av.open(str(path), "w") as container:
        stream = container.add_stream(
            "libx264", rate=RATE, options={"crf": "20", "preset": "veryfast"}
        )
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for scene in range(seconds // 2):
            frames = footage[scene % len(footage)]
            labels = []
            if scene % 2 == 0:
                for size, top in zip(chance.sample(SIZES, 2), (60, 610), strict=True):
                    text = " ".join(chance.sample(WORDS.split(), 3))
                    labels.append((size, (chance.randint(40, 400), top), text))
                    texts.append((size, text))
            for number in range(2 * RATE):
                image = frames[number * len(frames) // (2 * RATE)].to_image()
                canvas = image.resize((WIDTH, HEIGHT))
                for size, corner, text in labels:
                    font: Any = ImageFont.load_default(size)
                    drawing = ImageDraw.Draw(canvas)
                    drawing.text(corner, text, "white", font, stroke_width=2, stroke_fill="black")
                frame = av.VideoFrame.from_ndarray(np.asarray(canvas), format="rgb24")
                frame.pts, frame.time_base = scene * 2 * RATE + number, Fraction(1, RATE)
                container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return texts


def _decode(path: Path) -> list[Any]:
    with av.open(str(path)) as container:
        return list(container.decode(video=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=24, help="length of the film")
    parser.add_argument("--backgrounds", nargs="+", default=BACKGROUNDS, help="clips by name")
    parser.add_argument("--save", action="store_true", help="write results/ocr-cpu.json")
    options = parser.parse_args()
    model, tracker = OcrModel(), TextTracker()
    with tempfile.TemporaryDirectory() as folder:
        film = Path(folder) / "film.mp4"
        known_texts = make_film(film, options.seconds, options.backgrounds)
        model.read(distinct_frames(film, 0.0, 4.0))  # Loads the models.
        start = time.process_time()
        frames = distinct_frames(film, 0.0, float("inf"))
        middle, clock = time.process_time(), time.perf_counter()
        lines = [
            line
            for frame, texts in zip(frames, model.read(frames), strict=True)
            for line in tracker.feed(frame, texts)
        ]
        lines += tracker.finish()
        end, clock = time.process_time(), time.perf_counter() - clock
    counts: dict[int, list[int]] = {size: [0, 0] for size in SIZES}
    line_texts = [line.text.lower().replace(" ", "") for line in lines]
    for size, text in known_texts:
        letters = text.replace(" ", "")
        ratios = [difflib.SequenceMatcher(None, letters, line).ratio() for line in line_texts]
        counts[size][0] += max(ratios, default=0.0) >= 0.87
        counts[size][1] += 1
    report = {
        "seconds": options.seconds,
        "backgrounds": list(options.backgrounds),
        "frames": len(frames),
        "decode_core_seconds_per_second": round((middle - start) / options.seconds, 3),
        "read_core_seconds_per_second": round((end - middle) / options.seconds, 3),
        "read_seconds_per_second": round(clock / options.seconds, 3),
        "found": {f"{size} px": f"{right} of {count}" for size, (right, count) in counts.items()},
        "other_lines": max(0, len(lines) - sum(right for right, _ in counts.values())),
    }
    print(json.dumps(report, indent=1))
    if options.save:
        save_result("ocr", report)


if __name__ == "__main__":
    main()
