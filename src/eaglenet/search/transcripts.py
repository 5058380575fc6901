"""Search in transcripts: rank clips by their matching lines, and fuse this with other rankings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.types import Modality, Moment, TranscriptKind, TranscriptMatch
from eaglenet.search.query import TranscriptQuery
from eaglenet.search.store.snapshot import Snapshot
from eaglenet.search.store.words import WordIndex, WordQuestion, WordRow
from eaglenet.transcripts.lines import Analysis, analyse, phrase_spans

KINDS: dict[Modality, tuple[TranscriptKind, ...]] = {
    "speech": ("subtitle", "speech"),
    "screen-text": ("text",),
}
"""Kinds of transcript lines per modality."""
MAX_LINES = 300
"""Lines that are read per query."""
MAX_FILTERED_LINES = 20_000
"""The same where a filter excludes most lines."""
MAX_CONTENTS = 500
"""Most files in the filter of the index; beyond it, lines are filtered afterwards."""
SHOWN_LINES = 3
"""Lines per clip in a hit."""
MIN_SECONDS = 1.0
"""Shortest moment."""
MIN_COVERAGE = 0.7
"""Coverage below which a match is ignored in a ranking with other modalities: texts share common
words by chance."""
RANK_OFFSET = 60
"""How slowly ranks by frames lose weight (Cormack, Clarke and Buettcher 2009)."""
TRANSCRIPT_WEIGHT = 2.0
"""Weight of the first rank among transcripts, times its strength: a match of one term counts as
much as the first rank by frames, a match of three counts more."""

Term: TypeAlias = tuple[str, ...]
"""Spellings of one term of a query."""


@dataclass(frozen=True)
class ClipTranscript:
    """The matching lines of a clip.

    coverage: fraction of the query that they contain, by weight. strength: coverage, reduced if
    few terms matched. modalities: that of the best line first.
    """

    row: int
    coverage: float
    strength: float
    lines: tuple[TranscriptMatch, ...]
    modalities: tuple[Modality, ...]

    def moment(self, duration: float) -> Moment:
        """Span of the best line, within a file of this duration."""
        line = self.lines[0]
        start = min(line.start, max(duration - MIN_SECONDS, 0.0))
        end = max(min(line.end, duration), min(start + MIN_SECONDS, duration))
        return Moment(start, end, (start + end) / 2)


def rank_clips(
    index: WordIndex,
    query: TranscriptQuery,
    snapshot: Snapshot,
    modalities: Sequence[Modality],
    *,
    allowed: NDArray[np.bool_] | None = None,
    negatives: Sequence[TranscriptQuery] = (),
) -> list[ClipTranscript]:
    """Rank the clips with matching lines. ``allowed`` is a mask over the snapshot's files.

    A line belongs to the clip whose middle it is nearest to. Lines of a clip count together,
    because a sentence may span several. The strength of a clip is

        c (1 - 2^-m),   c = sum of w_t over the terms it has / sum over all terms of the query,

    with w_t = log(1 + (n - n_t + 1/2) / (n_t + 1/2)) for a term that n_t of the n lines have, and
    m the first sum in units of the largest w_t: the number of telling terms that match.
    """
    lines = [
        (line, analysis)
        for line in _find_lines(index, query, snapshot, modalities, allowed)
        for analysis in [analyse(line.words)]
        if not any(_has_all(analysis, negative) for negative in negatives)
    ]
    weights = _weigh_terms(query, [analysis for _, analysis in lines])
    clips: dict[int, list[tuple[WordRow, Analysis]]] = {}
    for line, analysis in lines:
        row = _row_of_line(snapshot, line)
        if row is not None:
            clips.setdefault(row, []).append((line, analysis))
    ranked = [_match_clip(row, lines, query, weights) for row, lines in clips.items()]
    # Stable: clips of equal strength keep the BM25 order of their best lines.
    return sorted(ranked, key=lambda clip: -clip.strength)


def _find_lines(
    index: WordIndex,
    query: TranscriptQuery,
    snapshot: Snapshot,
    modalities: Sequence[Modality],
    allowed: NDArray[np.bool_] | None,
) -> list[WordRow]:
    """Find matching lines of allowed files by BM25."""
    kinds = tuple(kind for modality in modalities for kind in KINDS.get(modality, ()))
    terms = tuple(dict.fromkeys(spelling for term in query.terms for spelling in term))
    if not kinds or not (terms or query.phrases):
        return []
    line_query = WordQuestion(terms, query.phrases, kinds)
    if allowed is None:
        return index.find(line_query, MAX_LINES)
    contents = [snapshot.files.contents[number] for number in np.flatnonzero(allowed).tolist()]
    if len(contents) <= MAX_CONTENTS:
        return index.find(line_query, MAX_LINES, contents) if contents else []
    allowed_contents, limit = set(contents), MAX_LINES
    while True:
        lines = index.find(line_query, limit)
        allowed_lines = [line for line in lines if line.content in allowed_contents]
        is_enough = len(allowed_lines) >= MAX_LINES or len(lines) < limit
        if is_enough or limit >= MAX_FILTERED_LINES:
            return allowed_lines[:MAX_LINES]
        limit *= 4


def _row_of_line(snapshot: Snapshot, line: WordRow) -> int | None:
    """Row of the clip that a line belongs to; None if its file is not in the snapshot."""
    rows = snapshot.rows_of_content(line.content)
    if not len(rows):
        return None
    middle = (line.start + line.end) / 2
    starts, ends = snapshot.columns["start"][rows], snapshot.columns["end"][rows]
    return int(rows[np.minimum(middle - starts, ends - middle).argmax()])


def _spellings(analysis: Analysis) -> set[str]:
    return {term.text for term in (*analysis.terms, *analysis.alternatives)}


def _has_all(analysis: Analysis, query: TranscriptQuery) -> bool:
    spellings = _spellings(analysis)
    return all(not spellings.isdisjoint(term) for term in query.terms) and all(
        phrase_spans(analysis.terms, phrase) for phrase in query.phrases
    )


def _weigh_terms(query: TranscriptQuery, lines: Sequence[Analysis]) -> dict[Term, float]:
    counts: Counter[Term] = Counter()
    for analysis in lines:
        spellings = _spellings(analysis)
        counts.update(term for term in query.terms if not spellings.isdisjoint(term))
    return {
        term: math.log1p((len(lines) - counts[term] + 0.5) / (counts[term] + 0.5))
        for term in query.terms
    }


def _match_clip(
    row: int,
    lines: Sequence[tuple[WordRow, Analysis]],
    query: TranscriptQuery,
    weights: Mapping[Term, float],
) -> ClipTranscript:
    matches = [
        {term for term in query.terms if not _spellings(analysis).isdisjoint(term)}
        for _, analysis in lines
    ]
    largest = max(weights.values(), default=1.0)
    # Every line here contains all phrases of the query.
    phrases = largest * sum(map(len, query.phrases))
    total = phrases + sum(weights[term] for term in set().union(*matches))
    coverage = total / (phrases + sum(weights.values()))
    strength = coverage * (1 - 2 ** (-total / largest))
    values = [-sum(weights[term] for term in terms) for terms in matches]
    best: dict[str, TranscriptMatch] = {}
    for number in sorted(range(len(lines)), key=values.__getitem__):
        line, analysis = lines[number]
        if len(best) < SHOWN_LINES:
            best.setdefault(line.words.casefold(), _highlight(line, analysis, query))
    modalities = dict.fromkeys(
        modality for line in best.values() for modality in KINDS if line.kind in KINDS[modality]
    )
    return ClipTranscript(row, coverage, strength, tuple(best.values()), tuple(modalities))


def _highlight(line: WordRow, analysis: Analysis, query: TranscriptQuery) -> TranscriptMatch:
    spellings = {spelling for term in query.terms for spelling in term}
    spans = [
        (term.start, term.end)
        for term in (*analysis.terms, *analysis.alternatives)
        if term.text in spellings
    ]
    for phrase in query.phrases:
        spans += phrase_spans(analysis.terms, phrase)
    return TranscriptMatch(
        text=line.words,
        start=line.start,
        end=line.end,
        kind=line.kind,
        language=line.language,
        highlights=_join_spans(line.words, spans),
    )


def _join_spans(text: str, spans: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Join spans that overlap or have only spaces between them."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and not text[joined[-1][1] : start].strip():
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return tuple(joined)


def fuse_scores(visual: Sequence[int], strengths: Mapping[int, float]) -> dict[int, float]:
    """Fuse a ranking by frames and one by transcripts; scores are at most 1.

        s(v) = (61 / (60 + r_visual(v)) + 2 strength(v) / r_transcript(v)) / 3

    Ranks among transcripts lose weight quickly: lines that match about equally well are told apart
    by their order, which ranks by frames, nearly equal over hundreds of clips, would shuffle.

    ``visual``: rows, best first. ``strengths``: strengths by row, best first.
    """
    total = 1 + TRANSCRIPT_WEIGHT
    scores = {
        row: (RANK_OFFSET + 1) / (RANK_OFFSET + rank) / total for rank, row in enumerate(visual, 1)
    }
    for rank, (row, strength) in enumerate(strengths.items(), 1):
        scores[row] = scores.get(row, 0.0) + TRANSCRIPT_WEIGHT * strength / rank / total
    return scores


def explain_no_match(query: TranscriptQuery, modalities: Sequence[Modality], num_lines: int) -> str:
    """Say why no line matches, and what to try; empty if frames were searched too."""
    is_visual = "visual" in modalities
    if is_visual and not query.has_only_phrases:
        return ""
    what = "this phrase" if query.has_only_phrases else "these words"
    if not num_lines:
        reason = f"{what} can match speech and on-screen text only, and this store has neither"
    else:
        lines = "line" if num_lines == 1 else "lines"
        reason = f"{num_lines:,} {lines} of speech and on-screen text, none with {what}"
    if query.has_only_phrases:
        also = " and search frames too" if is_visual else ""
        return f"{reason}; remove the quotation marks to match words in any order{also}"
    return f"{reason}; frames were not searched: add visual to --in"
