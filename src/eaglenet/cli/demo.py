"""``eaglenet demo`` with real clips, and ``eaglenet data demo-world`` with a synthetic world."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from eaglenet.cli.options import AsJson, Output
from eaglenet.core.errors import UsageError, program_command, shell_quote
from eaglenet.core.progress import Progress, show_progress
from eaglenet.core.settings import option

if TYPE_CHECKING:
    from eaglenet.methods.base import Method
    from eaglenet.research.data.demo.dataset import DemoSplit
    from eaglenet.research.data.demo.world import Scene
    from eaglenet.search.engine import Engine
    from eaglenet.search.hit import Hit

CLIPS = Path(__file__).parent / "demo_clips"
"""Twelve videos and images under free licences; LICENSES.md beside them names their sources."""


class Example(NamedTuple):
    """A query of the demo, and the name of the file that it describes."""

    query: str
    file: str


EXAMPLES = (
    Example("a rocket on its launch pad", "rocket_launch.mp4"),
    Example("a racing car drives past a cafe", "rally_car.mp4"),
    Example("a cat walks across the patio", "cat_on_patio.mp4"),
    Example("skyscrapers at night", "city_at_night.mp4"),
    Example("camping with a tent and a car", "tent.jpg"),
)
RESULTS = 3
MAX_WORDS = 32


def demo(output: Output = Path("demo"), as_json: AsJson = False) -> None:
    """Index twelve real clips with `small`, search them, and draw the hits as one image.

    Needs no network. A second run indexes only new files.
    """
    from eaglenet.indexing.model import DEFAULT_MODEL
    from eaglenet.search.engine import Engine

    if not CLIPS.is_dir():
        raise UsageError(f"{CLIPS}: the clips of the demo are missing; install the package again")
    start = time.perf_counter()
    say = _printer(as_json)
    with show_progress(quiet=as_json) as announce:
        report = _index([CLIPS], output, DEFAULT_MODEL, announce(""))
    say(f"{report['clips']} clips in {output}/store ({report['indexed']} new files)\n")
    engine = Engine.open(output / "store")
    hits = _search(engine, EXAMPLES, output)

    def describe(example: Example, hit: Hit) -> str:
        time_of_best = f" at {hit.moment.best:.1f} s" if hit.duration else ""
        return f"{hit.score:.3f}  {Path(hit.path).name}{time_of_best}"

    _show(output, start, EXAMPLES, hits, {"store": report}, describe, as_json)
    program, store = program_command(), shell_quote(output / "store")
    say(
        f"""Your own videos:
  {program} index FOLDER
  {program} search "a dog on a beach"
The clips of the demo:
  {program} search "a white parrot" --store {store}
  {program} serve --store {store}          a search page, on this machine only"""
    )


def demo_world(
    output: Output = Path("demo-world"),
    clips: int = option(240, "Render this many clips.", min=8),
    model: str = option("demo", "Use this model: a name, a model folder or a run."),
    as_json: AsJson = False,
) -> None:
    """Render the synthetic demo world; evaluate `demo` on it, index and search it.

    Needs no network. A second run uses the files of the first.
    """
    import torch

    from eaglenet.models.folder import load
    from eaglenet.research.data.demo.dataset import render_world
    from eaglenet.search.engine import Engine
    from eaglenet.video import decoding

    start = time.perf_counter()
    # The tensors are small: on shared cores, threads wait for each other longer than they work
    # (17 s with one thread, 118 s with two, under other load).
    torch.set_num_threads(1)
    say = _printer(as_json)
    method = load(model)
    # The reports below count skipped videos.
    with show_progress(quiet=as_json) as announce, decoding.without_skip_warnings():
        progress = announce("")
        world = render_world(output / "world", "test", clips, progress=progress)
        say(f"world:  {len(world)} H.264 clips and {len(world.texts)} captions in {output}/world")
        scores = _evaluate(method, world, output, progress)
        say(f"\n{scores}\n")
        paths = [video.path for video in world.videos if video.path is not None]
        report = _index(paths, output, model, progress, method)
        say(f"store:  {report['clips']} clips in {output}/store ({report['indexed']} new)\n")
    examples = choose_examples(world)
    engine = Engine.open(output / "store", method)
    # Few clips: rank them all exactly.
    hits = _search(engine, examples, output, is_marked=True, shortlist=len(world))

    def describe(example: Example, hit: Hit) -> str:
        name = Path(hit.path).name
        mark = "right" if name == example.file else "wrong"
        return f"{mark:5}  {hit.score:.3f}  {name}, best at {hit.moment.best:.1f} s"

    record = {"clips": len(world), "evaluation": scores.to_dict(), "store": report}
    _show(output, start, examples, hits, record, describe, as_json)
    program, store = program_command(), shell_quote(output / "store")
    say(
        f"""{program} search {shell_quote(examples[0].query)} --store {store}
{program} serve --store {store}          a search page, on this machine only
{program} train eaglenet --data demo --output runs/demo    train it yourself, in minutes"""
    )


def choose_examples(world: DemoSplit) -> list[Example]:
    """Choose three captions by their position in the world, not by the results of the model.

    The first describes one motion, the second two events, the third the same events in the other
    order, which only a model of time can tell apart.
    """
    single = _first(world, "single")
    sequence = _first(world, "sequence")
    twin = next(scene for scene in world.scenes if scene.scene_id == sequence.twin_id)
    scenes = (single, sequence, twin)
    return [Example(scene.captions[0], f"{scene.scene_id}.mp4") for scene in scenes]


def _first(world: DemoSplit, kind: str) -> Scene:
    for scene in world.scenes:
        if scene.kind == kind and scene.twin_id is not None:
            return scene
    raise UsageError(f"no clip of kind {kind!r} in {len(world)} clips; use more: --clips NUMBER")


def _evaluate(method: Method, world: DemoSplit, output: Path, progress: Progress | None) -> Any:
    """Score every caption with every clip, decoded from the video files."""
    import torch

    from eaglenet.research.data.frame_cache import FrameCache
    from eaglenet.research.data.sources import cached_source
    from eaglenet.research.training.distributed import World
    from eaglenet.research.training.epochs import evaluate_source

    folder = output / "frames" / f"{len(world)}-clips"
    cache = FrameCache.build(world, method.frame_spec, folder, progress=progress)
    source = cached_source(world, cache, method.tokenize, MAX_WORDS)
    world_of_one = World(device=torch.device("cpu"))
    return evaluate_source(method, source, world_of_one, progress=progress)


def _index(
    paths: Sequence[str | Path],
    output: Path,
    model: str,
    progress: Progress | None,
    method: Method | None = None,
) -> dict[str, Any]:
    from eaglenet.indexing.index import IndexOptions, index_videos
    from eaglenet.indexing.report import show_on

    # One process: starting workers takes longer than decoding a minute of video.
    options = IndexOptions(workers=0)
    return asdict(
        index_videos(
            paths,
            output / "store",
            model,
            options=options,
            on_progress=show_on(progress),
            method=method,
        )
    )


def _search(
    engine: Engine,
    examples: Sequence[Example],
    output: Path,
    *,
    is_marked: bool = False,
    **options: Any,
) -> Sequence[list[Hit]]:
    """Search, and write the hits as a page and as an image.

    is_marked: draw the right file of each example in green, all others in red.
    """
    from eaglenet.search.export import write_contact_sheet, write_page
    from eaglenet.search.hits import SearchResult
    from eaglenet.search.query import Query

    queries = [Query(example.query) for example in examples]
    hits = engine.search_many(queries, RESULTS, **options)
    results = [SearchResult(*pair) for pair in zip(queries, hits, strict=True)]
    write_page(output / "results.html", engine, results)
    files = {number: example.file for number, example in enumerate(examples)}
    write_contact_sheet(output / "results.png", engine, results, files if is_marked else None)
    return hits


def _printer(as_json: bool) -> Callable[[str], None]:
    return (lambda text: None) if as_json else print


def _show(
    output: Path,
    start: float,
    examples: Sequence[Example],
    hits: Sequence[Sequence[Hit]],
    record: dict[str, Any],
    describe: Callable[[Example, Hit], str],
    as_json: bool,
) -> None:
    """Print the hits of every example; as JSON, with ``record``."""
    seconds = time.perf_counter() - start
    if as_json:
        results = [
            {**example._asdict(), "hits": [asdict(hit) for hit in example_hits]}
            for example, example_hits in zip(examples, hits, strict=True)
        ]
        files = {"image": str(output / "results.png"), "page": str(output / "results.html")}
        print(json.dumps({**record, "results": results, **files, "seconds": round(seconds, 1)}))
        return
    for example, example_hits in zip(examples, hits, strict=True):
        print(f'"{example.query}"')
        for hit in example_hits:
            print(f"  {hit.rank}. {describe(example, hit)}")
        print()
    print(f"wrote {output}/results.png and {output}/results.html ({seconds:.0f} s in all)\n\n")
