"""Search in transcripts: rank clips by matching lines, and fuse this with the ranking by frames.

Lines match word by word, windows of lines by meaning.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from eaglenet.search.hit import Modality, Moment, TranscriptMatch
from eaglenet.search.query import PREFIX, TranscriptQuery
from eaglenet.store.records import Clip, LineHit, LineQuery, Phrase, TranscriptKind, WindowHit
from eaglenet.store.snapshot import Snapshot
from eaglenet.store.transcripts import stem_words
from eaglenet.transcripts.lines import (
    MIN_COSINE,
    Analysis,
    Term,
    analyse,
    chance_cosine,
    hybrid_strength,
    meaning_strength,
    phrase_spans,
)
from eaglenet.transcripts.stems import STEMMERS, inflections

KINDS: dict[Modality, tuple[TranscriptKind, ...]] = {
    "speech": ("subtitle", "speech"),
    "screen-text": ("text",),
    "descriptions": ("description",),
}
"""Kinds of transcript lines per modality."""
MAX_LINES = 300
"""Maximum matching lines per query."""
MAX_WINDOWS = 100
"""Maximum windows of lines per query."""
MAX_FILTERED_LINES = 20_000
"""Maximum lines to read per query if a filter, or the exact form of a phrase, excludes most."""
MAX_READ_CHARACTERS = 1_000_000
"""Maximum characters of lines to read per query: a line may have 2,000."""
MAX_CONTENTS = 500
"""Maximum files in a condition of the index; if there are more, lines are filtered afterwards."""
LINES_PER_HIT = 3
"""Maximum lines that a hit shows."""
MIN_SECONDS = 1.0
"""Minimum duration of a moment."""
MIN_COVERAGE = 0.7
"""Coverage below which a match is ignored beside frames: texts share common words by chance."""
RANK_OFFSET = 60
"""Constant of reciprocal rank fusion for ranks by frames (Cormack, Clarke and Buettcher 2009)."""
TRANSCRIPT_WEIGHT = 2.0
"""Weight of the first rank among transcripts, times its strength: a match of one term counts as
much as the first rank by frames, a match of three counts more."""

Spellings: TypeAlias = tuple[str, ...]
"""Spellings of one term of a query."""


@dataclass(frozen=True)
class ClipTranscript:
    """Clip and its matching lines.

    coverage: fraction of the query that the lines contain, by weight of its terms.
    strength: coverage, reduced if few terms match, combined with the match by meaning.
    modalities: modalities of the lines, that of the best line first.
    cosine: cosine of the window that is nearest in meaning; 0 if none is near.
    """

    clip: Clip
    coverage: float
    strength: float
    lines: tuple[TranscriptMatch, ...]
    modalities: tuple[Modality, ...]
    cosine: float = 0.0

    @property
    def row(self) -> int:
        return self.clip.row

    def is_significant(self, num_windows: int) -> bool:
        """Return whether the match is too strong to be chance, so that it may outrank frames."""
        return self.coverage >= MIN_COVERAGE or self.cosine >= chance_cosine(num_windows)

    def moment(self, duration: float) -> Moment:
        """Return the span of the best line in a file of this duration."""
        line = self.lines[0]
        start = min(line.start, max(duration - MIN_SECONDS, 0.0))
        end = max(min(line.end, duration), min(start + MIN_SECONDS, duration))
        return Moment(start, end, (start + end) / 2)


def rank_clips(
    snapshot: Snapshot,
    query: TranscriptQuery,
    modalities: Sequence[Modality],
    *,
    content_ids: Sequence[int] | None = None,
    negatives: Sequence[TranscriptQuery] = (),
    corrects_spelling: bool = False,
    meaning: Meaning | None = None,
) -> list[ClipTranscript]:
    """Rank the clips with matching lines.

    content_ids: files that pass the filters; None: all.
    negatives: lines that contain one of them do not match.
    corrects_spelling: replace words that are in no line by similarly spelled ones.
    meaning: windows of lines that are near to it match as well; see
        :func:`eaglenet.transcripts.lines.hybrid_strength`.

    A line belongs to the clip whose middle is nearest. Lines of a clip count together, because a
    sentence may span several. The strength of a clip is

        c (1 - 2^-m),   c = sum of w_t over the terms it has / sum over all terms of the query,

    with w_t = log(1 + (n - n_t + 1/2) / (n_t + 1/2)) for a term that n_t of the n lines have, and
    m the first sum divided by the largest w_t: the number of rare terms that match. Clips with a
    line that contains the whole query verbatim come first.
    """
    kinds = tuple(kind for modality in modalities for kind in KINDS.get(modality, ()))
    query = _add_inflections(snapshot, query)
    negatives = [_add_inflections(snapshot, negative) for negative in negatives]
    lines = _find_lines(snapshot, query, kinds, content_ids)
    if corrects_spelling:
        new_query = _correct_spelling(snapshot, query, lines)
        if new_query != query:
            query, lines = new_query, _find_lines(snapshot, new_query, kinds, content_ids)
    lines = [line for line in lines if not any(_has_all(line.analysis, each) for each in negatives)]
    counts = Counter(term for line in lines for term in line.terms)
    weights = {
        term: math.log1p((len(lines) - counts[term] + 0.5) / (counts[term] + 0.5))
        for term in query.terms
    }
    middles = [(line.hit.line.start + line.hit.line.end) / 2 for line in lines]
    contents = [line.hit.content_id for line in lines]
    clips = snapshot.clips_at(list(zip(contents, middles, strict=True)))
    by_clip: dict[Clip, list[_Line]] = {}
    for line, clip in zip(lines, clips, strict=True):
        if clip is not None:
            by_clip.setdefault(clip, []).append(line)
    matches = {clip: _match_clip(clip, lines, query, weights) for clip, lines in by_clip.items()}
    words = [term.text for term in analyse(query.plain).terms]
    verbatim = {
        clip
        for clip, lines in by_clip.items()
        if any(phrase_spans(line.analysis.terms, words) for line in lines)
    }
    if meaning is not None:
        for clip, window in _nearest_windows(
            snapshot, meaning, kinds, content_ids, negatives
        ).items():
            matches[clip] = _with_window(matches.get(clip), clip, window)
    # Stable: clips of equal strength keep the BM25 order of their best lines.
    return sorted(matches.values(), key=lambda match: (match.clip not in verbatim, -match.strength))


@dataclass(frozen=True)
class Meaning:
    """Vector of a query, and the identity of its encoder."""

    encoder: str
    vector: NDArray[np.float32]


def _nearest_windows(
    snapshot: Snapshot,
    meaning: Meaning,
    kinds: tuple[TranscriptKind, ...],
    content_ids: Sequence[int] | None,
    negatives: Sequence[TranscriptQuery],
) -> dict[Clip, WindowHit]:
    """Return the window of each clip that is nearest in meaning, nearest clip first."""
    hits = snapshot.find_windows(
        meaning.encoder,
        meaning.vector,
        MAX_WINDOWS,
        kinds=kinds,
        content_ids=content_ids,
        min_cosine=MIN_COSINE,
    )
    if negatives:
        analyses = [analyse(_text_of(hit)) for hit in hits]
        hits = [
            hit
            for hit, analysis in zip(hits, analyses, strict=True)
            if not any(_has_all(analysis, each) for each in negatives)
        ]
    middles = [(hit.lines[0].start + hit.lines[-1].end) / 2 for hit in hits]
    contents = [hit.content_id for hit in hits]
    clips = snapshot.clips_at(list(zip(contents, middles, strict=True)))
    nearest: dict[Clip, WindowHit] = {}
    for clip, hit in zip(clips, hits, strict=True):
        if clip is not None:
            nearest.setdefault(clip, hit)
    return nearest


def _text_of(window: WindowHit) -> str:
    return " ".join(line.text for line in window.lines)


def _with_window(match: ClipTranscript | None, clip: Clip, window: WindowHit) -> ClipTranscript:
    """Add the window nearest in meaning to a match by words."""
    strength = meaning_strength(window.cosine)
    window_match = TranscriptMatch(
        text=_text_of(window),
        start=window.lines[0].start,
        end=max(line.end for line in window.lines),
        kind=window.kind,
        language=window.lines[0].language,
        by_meaning=True,
    )
    if match is None:
        modalities = _modalities([window_match])
        return ClipTranscript(clip, 0.0, strength, (window_match,), modalities, window.cosine)
    texts = {line.text for line in window.lines}
    lines = match.lines
    # Show the window only if none of its lines is shown already.
    if not any(line.text in texts for line in lines):
        both = (window_match, *lines) if strength > match.strength else (*lines, window_match)
        lines = both[:LINES_PER_HIT]
    return replace(
        match,
        strength=hybrid_strength(match.strength, strength),
        lines=lines,
        modalities=_modalities(lines),
        cosine=window.cosine,
    )


def _modalities(lines: Iterable[TranscriptMatch]) -> tuple[Modality, ...]:
    """Return the modalities of lines, that of the first line first."""
    return tuple(
        dict.fromkeys(
            modality for line in lines for modality in KINDS if line.kind in KINDS[modality]
        )
    )


@dataclass(frozen=True)
class _Line:
    """Line, the terms of the query that it contains, and its words that match them."""

    hit: LineHit
    analysis: Analysis
    terms: frozenset[Spellings]
    words: tuple[Term, ...]

    @property
    def text(self) -> str:
        return self.hit.line.text


def _find_lines(
    snapshot: Snapshot,
    query: TranscriptQuery,
    kinds: tuple[TranscriptKind, ...],
    content_ids: Sequence[int] | None,
) -> list[_Line]:
    """Find lines by BM25 that are in ``content_ids`` and contain all phrases verbatim."""
    terms = tuple(dict.fromkeys(spelling for term in query.terms for spelling in term))
    line_query = LineQuery(terms, query.phrases, kinds=kinds)
    is_few = content_ids is not None and len(content_ids) <= MAX_CONTENTS
    contents = None if content_ids is None or is_few else set(content_ids)
    lines: list[tuple[LineHit, Analysis]] = []
    first, limit, num_characters = 0, MAX_LINES, 0
    while True:
        hits = snapshot.find_lines(line_query, limit, content_ids if is_few else None)
        for hit in hits[first:]:
            if contents is not None and hit.content_id not in contents:
                continue
            num_characters += len(hit.line.text)
            if len(lines) == MAX_LINES or num_characters > MAX_READ_CHARACTERS:
                break
            analysis = analyse(hit.line.text)
            # The index stems words: for the phrase "no entry" it also finds "no entries".
            if all(_spans(analysis, phrase) for phrase in query.phrases):
                lines.append((hit, analysis))
        is_enough = len(lines) == MAX_LINES or num_characters > MAX_READ_CHARACTERS
        if is_enough or len(hits) < limit or limit >= MAX_FILTERED_LINES:
            break
        first, limit = limit, limit * 4
    words = _find_words(query, [analysis for _, analysis in lines])
    return [
        _Line(hit, analysis, frozenset(terms), tuple(w for each in terms.values() for w in each))
        for (hit, analysis), terms in zip(lines, words, strict=True)
        if terms or query.phrases  # The index also stems prefixes, so that other words match.
    ]


def _find_words(
    query: TranscriptQuery, lines: Sequence[Analysis]
) -> list[dict[Spellings, list[Term]]]:
    """Return the words of each line that match terms of the query, by the stems of the index."""
    prefixes = [
        (spelling.removesuffix(PREFIX), term)
        for term in query.terms
        for spelling in term
        if spelling.endswith(PREFIX)
    ]
    whole = [
        (spelling, term) for term in query.terms for spelling in term if spelling[-1] != PREFIX
    ]
    # Stemming changes only the end of a word.
    beginnings = {spelling[:2] for spelling, _ in whole}
    words = {word.text for line in lines for word in _words(line) if word.text[:2] in beginnings}
    stems = stem_words({*words, *(spelling for spelling, _ in whole)})
    by_stem: dict[str, list[Spellings]] = {}
    for spelling, term in whole:
        by_stem.setdefault(stems[spelling], []).append(term)
    matches: list[dict[Spellings, list[Term]]] = []
    for line in lines:
        matches.append({})
        for word in _words(line):
            terms = list(by_stem.get(stems.get(word.text, ""), ()))
            terms += [term for prefix, term in prefixes if word.text.startswith(prefix)]
            for term in terms:
                matches[-1].setdefault(term, []).append(word)
    return matches


def _words(line: Analysis) -> Iterable[Term]:
    return (*line.terms, *line.alternatives)


def _add_inflections(snapshot: Snapshot, query: TranscriptQuery) -> TranscriptQuery:
    """Add words of the transcripts that have the stem of a term in their language.

    Not for English, whose words the index stems itself.
    """
    stemmers = sorted({STEMMERS[code] for code in snapshot.languages(STEMMERS)})
    if not stemmers:
        return query
    words = inflections([term[0] for term in query.terms], stemmers, snapshot.terms_beginning_with)
    terms = [
        tuple(dict.fromkeys((*term, *others)))
        for term, others in zip(query.terms, words, strict=True)
    ]
    return replace(query, terms=tuple(terms))


def _correct_spelling(
    snapshot: Snapshot, query: TranscriptQuery, lines: Sequence[_Line]
) -> TranscriptQuery:
    """Add similar words from the transcripts to terms that are in no line."""
    present = frozenset().union(*(line.terms for line in lines))
    terms = [
        term
        if term in present or term[0].endswith(PREFIX)
        else (*term, *snapshot.similar_terms(term[0]))
        for term in query.terms
    ]
    return replace(query, terms=tuple(terms))


def _has_all(analysis: Analysis, query: TranscriptQuery) -> bool:
    (matches,) = _find_words(query, [analysis])
    return len(matches) == len(query.terms) and all(
        _spans(analysis, phrase) for phrase in query.phrases
    )


def _spans(line: Analysis, phrase: Phrase) -> list[tuple[int, int]]:
    return phrase_spans(line.terms, phrase.terms, phrase.gap)


def _match_clip(
    clip: Clip, lines: Sequence[_Line], query: TranscriptQuery, weights: Mapping[Spellings, float]
) -> ClipTranscript:
    largest = max(weights.values(), default=1.0)
    # Every line here contains all phrases of the query.
    phrases = largest * sum(len(phrase.terms) for phrase in query.phrases)
    present = set().union(*(line.terms for line in lines))
    total = phrases + sum(weights[term] for term in present)
    coverage = total / (phrases + sum(weights.values()))
    strength = coverage * (1 - 2 ** (-total / largest))
    best: dict[str, TranscriptMatch] = {}
    for line in sorted(lines, key=lambda line: -sum(weights[term] for term in line.terms)):
        if len(best) < LINES_PER_HIT:
            best.setdefault(line.text.casefold(), _highlight(line, query))
    best_lines = tuple(best.values())
    return ClipTranscript(clip, coverage, strength, best_lines, _modalities(best_lines))


def _highlight(line: _Line, query: TranscriptQuery) -> TranscriptMatch:
    spans = [(word.start, word.end) for word in line.words]
    for phrase in query.phrases:
        spans += _spans(line.analysis, phrase)
    return TranscriptMatch(
        text=line.text,
        start=line.hit.line.start,
        end=line.hit.line.end,
        kind=line.hit.kind,
        language=line.hit.line.language,
        highlights=_join_spans(line.text, spans),
    )


def _join_spans(text: str, spans: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Join spans that overlap or have only spaces between them."""
    joined_spans: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined_spans and not text[joined_spans[-1][1] : start].strip():
            joined_spans[-1] = (joined_spans[-1][0], max(end, joined_spans[-1][1]))
        else:
            joined_spans.append((start, end))
    return tuple(joined_spans)


def fuse_scores(visual: Sequence[int], strengths: Mapping[int, float]) -> dict[int, float]:
    """Fuse a ranking by frames and one by transcripts; scores are at most 1.

        s(v) = (61 / (60 + r_visual(v)) + 2 strength(v) / r_transcript(v)) / 3

    The weight of transcripts falls quickly with their rank, so that ranks by frames, whose weights
    are nearly equal over hundreds of clips, do not reorder lines that match about equally well.

    ``visual``: rows by frames, best first. ``strengths``: strengths by row, best first.
    """
    total = 1 + TRANSCRIPT_WEIGHT
    scores = {
        row: (RANK_OFFSET + 1) / (RANK_OFFSET + rank) / total for rank, row in enumerate(visual, 1)
    }
    for rank, (row, strength) in enumerate(strengths.items(), 1):
        scores[row] = scores.get(row, 0.0) + TRANSCRIPT_WEIGHT * strength / rank / total
    return scores


def explain_no_match(query: TranscriptQuery, modalities: Sequence[Modality], num_lines: int) -> str:
    """Return why no line matches, and what to try; empty if frames were searched too."""
    is_visual = "visual" in modalities
    if is_visual and not query.has_only_phrases:
        return ""
    what = "this phrase" if query.has_only_phrases else "these words"
    if not num_lines:
        reason = f"{what} can match transcripts and descriptions only, and this store has none"
    else:
        lines = "line" if num_lines == 1 else "lines"
        reason = f"{num_lines:,} transcript {lines}, none with {what}"
    if query.has_only_phrases:
        also = " and search frames too" if is_visual else ""
        return f"{reason}; remove the quotation marks to match words in any order{also}"
    return f"{reason}; frames were not searched: search in visual, too"
