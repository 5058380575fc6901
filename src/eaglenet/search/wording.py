"""Hints on the wording of a query: another language than the model's, negation, and length."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from eaglenet.search.grammar import SUBTRACTED_WEIGHT, AnyQuery, ComposedQuery, Part, TemporalQuery
from eaglenet.search.model import SearchModel
from eaglenet.search.options import SearchOptions
from eaglenet.search.query import Query, normalise_quotes

ENGLISH = "the a an of with and are his her their at from by while into its"
"""Words that are much more frequent in English than in other languages."""
DISTINCTIVE_WORDS = {
    "German": "der das dem und mit auf ein eine einen einem einer eines ist nicht von zu zum zur "
    "im beim vom aus bei nach vor hinter neben unter zwei spielt spielen l\u00e4uft f\u00e4hrt "
    "hund katze mann frau m\u00e4dchen junge kinder leute wasser schnee strand wald "
    "kein keine keinen ohne pferd v\u00f6gel blumen b\u00e4ume schneemann schlitten klavier "
    "gitarre tanzen singen schwimmen lachen lacht weint rutsche schaukel badewanne berge fluss "
    "wolken kerzen fu\u00dfball flugzeug gro\u00dfmutter gro\u00dfvater schwester tochter hunde "
    "katzen stra\u00dfe k\u00fcche pfannkuchen schwimmbad sonnenuntergang kinderwagen",
    "French": "les une dans avec sur est sont qui aux sous chez deux homme femme enfant enfants "
    "fille gar\u00e7on chien voiture plage neige maison joue "
    "anniversaire g\u00e2teau mariage piscine oiseau oiseaux cheval chevaux fleurs arbre arbres "
    "v\u00e9lo montagne rivi\u00e8re b\u00e9b\u00e9 m\u00e8re p\u00e8re s\u0153ur fr\u00e8re "
    "chiens nuages bateau bougies",
    "Spanish": "una unos unas con est\u00e1 est\u00e1n sobre desde hacia hombre mujer "
    "ni\u00f1o ni\u00f1a ni\u00f1os perro gato coche playa nieve jugando juega corre "
    "cumplea\u00f1os piscina p\u00e1jaro caballo \u00e1rbol \u00e1rboles bicicleta atardecer "
    "r\u00edo beb\u00e9 hermano hermana perros gatos nubes bailando cantando nadando",
    "Italian": "gli della delle nel nella sul sulla che sono uomo donna bambino bambina "
    "ragazzo ragazza gatto macchina spiaggia neve gioca corre "
    "senza compleanno matrimonio uccello alberi bicicletta tramonto montagna fiume bambini "
    "fratello sorella gatti nuvole chitarra ballano cantano nuotano",
    "Portuguese": "uma est\u00e1 dois homem mulher menino menina crian\u00e7a cachorro "
    "c\u00e3o carro praia neve jogando correndo n\u00e3o "
    "anivers\u00e1rio casamento p\u00e1ssaro cavalo \u00e1rvore \u00e1rvores montanha cozinha "
    "irm\u00e3o irm\u00e3 m\u00e3e av\u00f3 cachorros nuvens dan\u00e7ando crian\u00e7as",
    "Dutch": "het een naar zijn wordt twee vrouw jongen meisje kinderen hond kat speelt loopt "
    "zonder taart bruiloft zwembad speeltuin vuurwerk fiets paard bloemen bomen vlinder "
    "zonsondergang sneeuwpop dochter zoon broer honden katten straat keuken vliegtuig dansen "
    "zingen zwemmen glijbaan schommel kerstboom kaarsen sneeuw",
}
"""Words that do not exist in English: two decide, or one in a text without ``ENGLISH`` words."""
SHARED_WORDS = {
    "German": "die den des am sie",
    "French": "le la un de du des et en au il elle",
    "Spanish": "el la los las un de del en y que por para al dos",
    "Italian": "il lo la un di con al del su da due",
    "Portuguese": "os um de do da dos das em no na que com",
    "Dutch": "de en met op van aan bij uit door",
}
"""Words that also occur in names or in English: two decide in a text without ``ENGLISH`` words."""
COMPOUND_PARTS = {
    "German": "kuchen geburtstag weihnacht hochzeit feuerwerk fahrrad spielplatz schmetterling "
    "regenbogen",
    "Dutch": "verjaardag",
}
"""Parts of compounds (``Geburtstagskuchen``) that no English word and no usual name contains."""
_WORDS = [
    (
        name,
        set(DISTINCTIVE_WORDS[name].split()),
        set(words.split()),
        re.compile("|".join(COMPOUND_PARTS.get(name, "$^").split())),
    )
    for name, words in SHARED_WORDS.items()
]
_LETTERS = re.compile(r"[^\W\d_]+")


def language_hint(query: AnyQuery, model: str, options: SearchOptions) -> str:
    """Return a hint if a query is in a language that the model does not know, else ``""``.

    ``model``: its name in the store. The hint concerns frames; transcripts match word by word in
    any language.
    """
    language = language_of(" ".join(texts_of(query)))
    if not language or "visual" not in options.modalities:
        return ""
    # Imported here because most queries do not need the table of models.
    from eaglenet.encoders.catalogue import CARDS

    card = CARDS.get(model)
    if card is None or card.languages != "English":
        return ""
    return (
        f"this looks like {language}, and {card.name} knows English only: describe the moment in "
        "English, or index with a multilingual model (list them: eaglenet models)"
    )


def language_of(text: str) -> str:
    """Return the language of a text; empty if it may be English.

    >>> language_of("Segelboot auf dem See"), language_of("a dog on the beach")
    ('German', '')
    """
    words = {word.casefold() for word in _LETTERS.findall(text)}
    letters = "".join(words)
    is_latin = [
        letter.isascii() or unicodedata.name(letter, "").startswith("LATIN") for letter in letters
    ]
    if len(letters) > 1 and 2 * sum(is_latin) < len(letters):
        return "another language"
    counts = [
        (
            sum(word in distinctive or bool(parts.search(word)) for word in words),
            len(words & common),
            name,
        )
        for name, distinctive, common, parts in _WORDS
    ]
    num_distinctive, num_common, name = max(counts, key=lambda count: (sum(count[:2]), count[:2]))
    is_english = bool(words.intersection(ENGLISH.split()))
    is_other = num_distinctive >= 2 or (not is_english and (num_distinctive or num_common >= 2))
    return name if is_other else ""


@dataclass(frozen=True)
class Negation:
    """A text that says what not to show, and the query that means it.

    word: the negation, as typed. text: what is left to search for; may be empty. negatives: what
    the text excludes. is_dated: the text has a date, which a query of several parts cannot have.
    """

    word: str
    text: str
    negatives: tuple[str, ...]
    is_dated: bool = False

    @property
    def reason(self) -> str:
        """Why the text may find the opposite; what to do if nothing is left to search for."""
        names = " and ".join(f"'{negative}'" for negative in self.negatives)
        rule = f"'{self.word}' hardly matters to a model, which may find {names} all the same"
        return rule if self.text else f"{rule}: describe what should be there instead"

    @property
    def query(self) -> str:
        """The query in the grammar that ranks what is excluded lower; may be empty."""
        if not self.text or self.is_dated:
            return ""
        negatives = (Part(Query(negative), -SUBTRACTED_WEIGHT) for negative in self.negatives)
        return ComposedQuery((Part(Query(self.text)), *negatives)).title

    @property
    def hint(self) -> str:
        advice = f"; to rank such moments lower, write: {self.query}" if self.query else ""
        return f"{self.reason}{advice}"


MAX_NEGATIVES = 8
_NEGATION = re.compile(
    r"\b(?:(?P<nobody>nobody|no one|no-one)(?:\s+(?:is|are|was|were)\b)?"
    r"|no|without|except(?: for)?|excluding"
    r"|(?<!do )(?<!does )(?<!did )(?<!can )(?<!could )(?<!will )(?<!would )(?<!should )(?<!may )"
    r"(?<!must )not|isn['\u2019]t|aren['\u2019]t)(?![\w'\u2019.-])",
    re.IGNORECASE,
)
_NOT_EXCLUDED = re.compile(
    # Idioms, what signs forbid, and what frames cannot show.
    r"\s+(?:longer|matter|doubt|wonder|idea|way|time|problem|end|only|just|even|yet|far|sure|very"
    r"|too|so|quite|to|be|been|all|a doubt|fear|trace|effort|parking|smoking|entry|entrance|exit"
    r"|stopping|standing|swimming|diving|fishing|trespassing|littering|loitering|turns?|left turn"
    r"|right turn|u-turn|outlet|where|further|vacancy|signal|sound|audio|voice|music|words|visible"
    r"|seen|shown|before|previously|much|avail|\d+)\b",
    re.IGNORECASE,
)
_WRITING = re.compile(
    r"\b(?:signs?|says?|saying|reads?|reading|text|titled?|called|named|lyrics|slogan|label\w*)\b",
    re.IGNORECASE,
)
"""Words beside which a negation is often part of what is written."""
_PREPOSITIONS = (
    "at|in|on|near|under|over|behind|beside|during|by|inside|outside|along|through|around|into"
    "|onto|from|before|after"
)
_PHRASE_END = re.compile(
    # "3.5" and "10:30" go on.
    r"\s*(?:[;!?()]|[,:](?!\d)|\.(?!\w))|\s+(?:but|while|then|who|which|that|because|is|are|was|were|\w+ing)\b"
    r"|\s+(?:and|or)(?=\s+(?:with|no|not|without|nobody|\w+ing)\b)"
    # "no shoes on is" is about shoes.
    rf"|\s+(?:{_PREPOSITIONS})(?=\s+\w)(?!\s+(?:is|are|was|were|\w+ing)\b)",
    re.IGNORECASE,
)
"""End of what a negation excludes; not before the second word."""
_OTHER_THING = re.compile(
    r"\s+and(?=\s+(?:a|an|the|some|many|several|one|two|three)\s+\w)", re.IGNORECASE
)
"""Another end after a word without an article: "no people and a boat", but "a hat and a coat"."""
_LEADING = (
    "but and or with there that who which where is are was were has have having wearing for to if "
    "about whether"
)
"""Words that lead to a negation, and mean nothing without it."""
_SUBJECTS = "it he she they it's he's she's they're there's that's"
"""Words that say nothing about frames if nothing else is left: "it's not raining"."""
_ARTICLE = re.compile(r"(?:any|the|a|an|other|more)\s+", re.IGNORECASE)
_FIRST_WORD = re.compile(
    # "looking at" is one word.
    rf"\s*(?:(?:any|the|a|an|other|more)\s+)?[\w'\u2019]+(?:(?<=ing)\s+(?:{_PREPOSITIONS})\b)?",
    re.IGNORECASE,
)
_VERB = re.compile(r"(?<!\bfew)\s+(?=[a-z]+[^'\u2019\Wsui]s\b)", re.IGNORECASE)
"""Another end after a word with "a": "without a shirt plays", but "no street lights"."""
_PREDICATE = re.compile(r"(?:is|are|was|were|can|could|has|have)\b", re.IGNORECASE)
_BACKWARD = re.compile(rf"(?:{_PREPOSITIONS})\s+(?:it|them|him|her|there)(?:\s+|$)", re.IGNORECASE)
"""Reference to what is left: "a beach with nobody on it"."""
_EDGES = " ,;:.!?()-"


def find_negation(text: str) -> Negation | None:
    """Return the negation in an English text; None if there is none, or it may be a name or quoted.

    >>> find_negation("a man without a hat on a beach")
    Negation(word='without', text='a man on a beach', negatives=('hat',))
    """
    text = " ".join(text.split())
    if '"' in normalise_quotes(text) or _WRITING.search(text) or language_of(text):
        return None
    word, negatives, rest = "", list[str](), text
    while len(negatives) < MAX_NEGATIVES and (match := _search_negation(rest)) is not None:
        stop, is_other = _end_of_excluded(rest, match)
        phrase = rest[match.end() : stop].strip(_EDGES)
        article = _ARTICLE.match(phrase)
        phrase = phrase[article.end() :] if article else phrase
        negatives.append(f"people {phrase}".strip() if match["nobody"] else phrase)
        word = word or match["nobody"] or match[0]
        tail = rest[stop:].lstrip(_EDGES)
        backward = _BACKWARD.match(tail)
        tail = tail[backward.end() :] if backward else tail
        first_part = _trim(rest[: match.start()])
        if not first_part and _PREDICATE.match(tail):
            # "no dogs are on a beach": the rest says something about what is excluded.
            negatives[-1], tail = f"{negatives[-1]} {tail}".rstrip(_EDGES), ""
        if not (is_other and first_part) and tail.lower().startswith(("but ", "and ", "or ")):
            tail = tail.partition(" ")[2]
        rest = f"{first_part} {tail}".strip()
    if not negatives:
        return None
    return Negation(word, _trim(rest), tuple(dict.fromkeys(negatives)))


def _end_of_excluded(text: str, match: re.Match[str]) -> tuple[int, bool]:
    """Return the end of what a negation excludes, and whether another thing follows."""
    first = _FIRST_WORD.match(text, match.end())
    # A preposition right after the negation belongs to what is excluded: "not at night".
    position = match.end() if first is None else first.end()
    end = _PHRASE_END.search(text, match.end() if match["nobody"] else position)
    if match["nobody"] and end and end.start() < position:
        end = _PHRASE_END.search(text, position) if end[0].endswith("ing") else end
    stop = end.start() if end else len(text)
    article = _ARTICLE.match(text[match.end() : stop].lstrip())
    if article is None:
        other = _OTHER_THING.search(text, position, stop + 1)
        return (stop, False) if other is None else (other.start(), True)
    is_one = article[0].lower().startswith(("a ", "an "))
    has_verb = is_one and _VERB.match(text, position, stop) is not None
    return (position if has_verb else stop), False


def _search_negation(text: str) -> re.Match[str] | None:
    for match in _NEGATION.finditer(text):
        following = text[match.end() :].strip()
        # "No Country for Old Men" is a title.
        article = _ARTICLE.match(following)
        subject = following[article.end() :] if article else following
        is_title = match[0][0].isupper() and subject[:1].isupper()
        has_subject = match["nobody"] is not None or following[:1].isalnum()
        has_subject = has_subject and not _NEGATION.match(following)
        if has_subject and not is_title and not _NOT_EXCLUDED.match(text, match.end()):
            return match
    return None


def _trim(text: str) -> str:
    """Remove words from the end of a text that led to its negation: ``a man who is``."""
    words = text.strip(_EDGES).split()
    leading_words = {"", *_LEADING.split()}
    while words and words[-1].strip(_EDGES).lower() in leading_words:
        words.pop()
    if len(words) == 1 and words[0].lower().replace("\u2019", "'") in _SUBJECTS.split():
        return ""
    return " ".join(words).strip(_EDGES)


def negation_in(query: AnyQuery, options: SearchOptions) -> Negation | None:
    """Return the negation in a plain text that frames are compared with; None if there is none."""
    if not isinstance(query, Query) or query.negatives or options.literal:
        return None
    if query.text is None or "visual" not in options.modalities:
        return None
    negation = find_negation(query.text)
    if negation is None or query.dates is None:
        return negation
    text = f"{negation.text} {query.dates.phrase}" if negation.text else ""
    return replace(negation, text=text, is_dated=True)


MIN_CUT_LENGTH = 16
"""Characters of the shortest text that may be longer than a model reads."""


def long_text_notice(text: str, model: SearchModel) -> str:
    """Say after which words a text is cut; empty if the model reads all of it."""
    # A full stop that is cut off changes nothing.
    end = max((index for index, char in enumerate(text, start=1) if char.isalnum()), default=0)
    text = text[:end]
    if not model.is_cut(text):
        return ""
    words = text.split()
    num_read = bisect_left(range(1, len(words)), True, key=lambda n: model.is_cut(_first(words, n)))
    rest = f"what comes after '... {' '.join(words[:num_read][-3:])}'" if num_read else "its end"
    return (
        f"the text is longer than the model reads: {rest} was ignored when frames were ranked; "
        "search for a shorter text"
    )


def _first(words: Sequence[str], count: int) -> str:
    return " ".join(words[:count])


def texts_of(query: AnyQuery) -> Iterator[str]:
    """Yield the texts of a query that frames are compared with."""
    if isinstance(query, Query):
        is_phrase = query.transcript is not None and query.transcript.has_only_phrases
        if query.text is not None and not is_phrase:
            yield query.text
        return
    steps = query.steps if isinstance(query, TemporalQuery) else (query,)
    for step in steps:
        assert isinstance(step, ComposedQuery)
        yield from (part.query.text for part in step.parts if part.query.text is not None)
