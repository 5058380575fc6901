"""The report of an index run as Python and notebooks show it."""

from __future__ import annotations

from dataclasses import replace

from eaglenet.indexing.report import (
    MAX_LISTED,
    MAX_SHOWN,
    FileProblem,
    IndexReport,
    problem_lines,
)

REPORT = IndexReport(
    indexed=3,
    unchanged=4,
    aliases=1,
    dropped=0,
    missing=0,
    clips=1200,
    hours=0.5,
    elapsed=65.0,
    problems=(FileProblem("/v/<b>\x1b[2J.mp4", "the file is empty"),),
    damaged=(),
    images=1,
    other_files={".txt": 2},
    new_files=("/v/a.mp4", "/v/b.mp4", "/v/c.jpg"),
)


def test_a_report_is_short_and_readable() -> None:
    assert repr(REPORT) == (
        "<IndexReport: 2 videos and 1 image indexed (30 min in 0:01:05), 4 unchanged, "
        "1 copied or moved; 1 file not indexed>"
    )
    lines = str(REPORT).splitlines()
    assert "1,200 clips in the store" in lines
    assert lines[-2:] == ["1 file not indexed:", "  /v/<b>\\x1b[2J.mp4: the file is empty"]


def test_a_report_says_when_the_first_pass_was_done() -> None:
    lines = str(replace(REPORT, searchable_after=20.0)).splitlines()
    assert "all new files were searchable after 0:00:20" in lines


def test_files_with_one_problem_are_listed_below_it() -> None:
    problems = [FileProblem(f"/v/{n}.heic", "needs a package") for n in range(2)]
    lines = list(problem_lines("not indexed", [*problems, FileProblem("/v/a.mov", "empty")]))
    assert lines == [
        "3 files not indexed:",
        "  2 files: needs a package",
        "    /v/0.heic",
        "    /v/1.heic",
        "  /v/a.mov: empty",
    ]


def test_seconds_of_video_are_left_out_for_images_alone() -> None:
    report = replace(REPORT, indexed=1, images=1, hours=0.0)
    assert str(report).startswith("1 image indexed (in 0:01:05), 4 unchanged")


def test_many_problems_are_counted() -> None:
    problem = FileProblem("/v/a.mp4", "torn")
    lines = str(replace(REPORT, damaged=(problem,) * (MAX_SHOWN + 5))).splitlines()
    assert lines[-1] == "  and 5 more"
    assert len(lines) < MAX_SHOWN + 12


def test_a_notebook_shows_a_report_with_its_problems() -> None:
    page = replace(REPORT, other_files={".t&t": 2})._repr_html_()
    assert "2 .t&amp;t" in page
    assert "1,200 clips in the store<br>" in page
    assert "<summary>1 file not indexed</summary>" in page
    assert "<td>/v/&lt;b&gt;\\x1b[2J.mp4</td><td>the file is empty</td>" in page
    assert "<details>" not in replace(REPORT, problems=())._repr_html_()
    assert "2 .&lt;b&gt; (" in replace(REPORT, other_files={".<b>": 2})._repr_html_()
    many = replace(REPORT, problems=REPORT.problems * (MAX_LISTED + 5))._repr_html_()
    assert "1,005 files not indexed" in many
    assert many.count("<tr>") == MAX_LISTED + 1
    assert "and 5 more" in many
