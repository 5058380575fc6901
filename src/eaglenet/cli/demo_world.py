"""`eaglenet data demo-world`: render the synthetic world, evaluate, index, search, draw."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eaglenet.cli.terminal import show_progress
from eaglenet.core.errors import UsageError, program_command, shell_quote
from eaglenet.core.progress import Progress, report_progress

if TYPE_CHECKING:
    from eaglenet.core.types import Hit
    from eaglenet.methods.base import Method
    from eaglenet.research.data.demo.dataset import DemoSplit
    from eaglenet.research.data.demo.world import Scene


MAX_WORDS = 32
RESULTS = 3


def register(app: typer.Typer) -> None:
    """Add the command to `eaglenet data`."""
    app.command("demo-world")(demo_world)


def demo_world(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the results.")] = Path(
        "demo-world"
    ),
    clips: Annotated[int, typer.Option(min=8, help="Clips of the test world to render.")] = 240,
    model: Annotated[str, typer.Option(help="The shipped model, or one trained here.")] = "demo",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Render the demo world, evaluate the model `demo` on it, index, search, draw the results.

    Needs no network. What is already in the folder is not made again.
    """
    import torch

    from eaglenet.models.folder import load
    from eaglenet.research.data.demo.dataset import render_world
    from eaglenet.video import decoding

    started = time.perf_counter()
    # The model's tensors are small: on shared cores threads waiting for each other take longer
    # than the work (17 s with one thread, 118 s with two, under other load).
    torch.set_num_threads(1)
    say: Callable[[str], None] = (lambda text: None) if as_json else print
    method = load(model)
    # The reports below count what was left out; the loader need not say it too.
    with show_progress(quiet=as_json) as announce, decoding.without_skip_warnings():
        progress = announce("")
        world = render_world(output / "world", "test", clips, progress=progress)
        say(f"world:  {len(world)} H.264 clips and {len(world.texts)} sentences in {output}/world")
        scores = _evaluate(method, world, output, progress)
        say(f"\n{scores}\n")
        indexed = _index(method, model, world, output, progress)
        say(f"store:  {indexed['clips']} clips in {output}/store ({indexed['indexed']} new)\n")
    asked = choose_sentences(world)
    answers = _search(method, asked, output, len(world))
    for line in _answer_lines(asked, answers):
        say(line)
    seconds = time.perf_counter() - started
    if as_json:
        print(
            json.dumps(
                {
                    "clips": len(world),
                    "evaluation": scores.to_dict(),
                    "store": indexed,
                    "answers": [
                        {
                            "sentence": sentence,
                            "right": right,
                            "hits": [asdict(hit) for hit in hits],
                        }
                        for (sentence, right), hits in zip(asked, answers, strict=True)
                    ],
                    "picture": str(output / "results.png"),
                    "page": str(output / "results.html"),
                    "seconds": round(seconds, 1),
                }
            )
        )
        return
    say(f"wrote {output}/results.png and {output}/results.html ({seconds:.0f} s in all)\n")
    say(next_steps(asked[0][0], output / "store"))


def next_steps(sentence: str, store: Path) -> str:
    """Return commands to try on the rendered world."""
    program = program_command()
    return f"""{program} search {shell_quote(sentence)} --store {shell_quote(store)}
{program} serve --store {shell_quote(store)}          a page to search in, on this machine only
{program} train eaglenet --data demo --output runs/demo    train it yourself, in minutes"""


def choose_sentences(world: DemoSplit) -> list[tuple[str, str]]:
    """Three sentences and the files that they are about, by position and not by how well they do.

    One motion; two things in order; and the same two things in the other order, which only a model
    that sees time can tell apart.
    """
    single = _first(world, "single")
    ordered = _first(world, "sequence")
    twin = next(scene for scene in world.scenes if scene.scene_id == ordered.twin_id)
    return [(scene.captions[0], f"{scene.scene_id}.mp4") for scene in (single, ordered, twin)]


def _first(world: DemoSplit, kind: str) -> Scene:
    for scene in world.scenes:
        if scene.kind == kind and scene.twin_id is not None:
            return scene
    raise UsageError(f"no clip of kind {kind!r} in {len(world)} clips; ask for more with --clips")


def _evaluate(method: Method, world: DemoSplit, output: Path, progress: Progress | None) -> Any:
    """Every sentence against every clip, from the decoded files."""
    import torch

    from eaglenet.research.data.frame_cache import FrameCache
    from eaglenet.research.data.sources import cached_source
    from eaglenet.research.training.distributed import World
    from eaglenet.research.training.epochs import evaluate_source

    folder = output / "frames" / f"{len(world)}-clips"
    cache = FrameCache.build(world, method.frame_spec, folder, progress=progress)
    source = cached_source(world, cache, method.tokenize, MAX_WORDS)
    return evaluate_source(method, source, World(device=torch.device("cpu")))


def _index(
    method: Method, model: str, world: DemoSplit, output: Path, progress: Progress | None
) -> dict[str, Any]:
    from eaglenet.indexing.index import IndexOptions, index_videos

    def report(state: Any) -> None:
        report_progress(progress, "indexing", state.done + state.skipped, state.total)

    paths = [video.path for video in world.videos if video.path is not None]
    # One process: the clips are three seconds long, and starting workers takes longer than they.
    done = index_videos(
        paths,
        output / "store",
        model,
        options=IndexOptions(workers=0),
        on_progress=report,
        method=method,
    )
    return asdict(done)


def _search(
    method: Method, asked: list[tuple[str, str]], output: Path, num_clips: int
) -> Sequence[list[Hit]]:
    from eaglenet.search.engine import Engine
    from eaglenet.search.export import write_contact_sheet, write_page
    from eaglenet.search.hits import SearchResult
    from eaglenet.search.query import Query

    engine = Engine.open(output / "store", method)
    queries = [Query(sentence) for sentence, _ in asked]
    # Few clips: rank them all exactly.
    hits = engine.search_many(queries, RESULTS, shortlist=num_clips)
    right = {number: name for number, (_, name) in enumerate(asked)}
    results = [SearchResult(*pair) for pair in zip(queries, hits, strict=True)]
    write_contact_sheet(output / "results.png", engine, results, right)
    write_page(output / "results.html", engine, results)
    return hits


def _answer_lines(asked: list[tuple[str, str]], answers: Sequence[list[Hit]]) -> Iterator[str]:
    for (sentence, right), hits in zip(asked, answers, strict=True):
        yield f'"{sentence}"'
        for hit in hits:
            name = Path(hit.path).name
            mark = "right" if name == right else "wrong"
            best = f"best at {hit.moment.best:.1f} s"
            yield f"  {hit.rank}. {mark:5}  {hit.score:.3f}  {name}, {best}"
        yield ""
