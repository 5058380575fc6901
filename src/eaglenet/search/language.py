"""Language detection: warns if a query is in a language that the model does not know."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from eaglenet.search.grammar import AnyQuery, ComposedQuery, TemporalQuery
from eaglenet.search.options import SearchOptions
from eaglenet.search.query import Query

ENGLISH = "the a an of with and are his her their at from by while into its"
"""Words that are much more frequent in English than in the other languages."""
DISTINCTIVE_WORDS = {
    "German": "der das dem und mit auf ein eine einen einem einer eines ist nicht von zu zum zur "
    "im beim vom aus bei nach vor hinter neben unter zwei spielt spielen l\u00e4uft f\u00e4hrt "
    "hund katze mann frau m\u00e4dchen junge kinder leute wasser schnee strand wald",
    "French": "les une dans avec sur est sont qui aux sous chez deux homme femme enfant enfants "
    "fille gar\u00e7on chien voiture plage neige maison joue",
    "Spanish": "una unos unas con est\u00e1 est\u00e1n sobre desde hacia hombre mujer "
    "ni\u00f1o ni\u00f1a ni\u00f1os perro gato coche playa nieve jugando juega corre",
    "Italian": "gli della delle nel nella sul sulla che sono uomo donna bambino bambina "
    "ragazzo ragazza gatto macchina spiaggia neve gioca corre",
    "Portuguese": "uma est\u00e1 dois homem mulher menino menina crian\u00e7a cachorro "
    "c\u00e3o carro praia neve jogando correndo n\u00e3o",
    "Dutch": "het een naar zijn wordt twee vrouw jongen meisje kinderen hond kat speelt loopt",
}
"""Words that do not exist in English: one is enough in a text without English words."""
SHARED_WORDS = {
    "German": "die den des am sie",
    "French": "le la un de du des et en au il elle",
    "Spanish": "el la los las un de del en y que por para al dos",
    "Italian": "il lo la un di con al del su da due",
    "Portuguese": "os um de do da dos das em no na que com",
    "Dutch": "de en met op van aan bij uit door",
}
"""Words that also occur in names or in English: two of them, or one beside a distinctive word."""
_WORDS = [
    (name, set(DISTINCTIVE_WORDS[name].split()), set(shared.split()))
    for name, shared in SHARED_WORDS.items()
]
_LETTERS = re.compile(r"[^\W\d_]+")


def language_hint(query: AnyQuery, model: str, options: SearchOptions) -> str:
    """Return a hint if a query is in a language that the model does not know, else ``""``.

    ``model``: its name in the store. The hint concerns frames; transcripts match word by word in
    any language.
    """
    language = language_of(" ".join(_texts(query)))
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
    counts = [(len(words & clear), len(words & shared), name) for name, clear, shared in _WORDS]
    num_clear, num_shared, name = max(counts, key=lambda count: (sum(count[:2]), count[:2]))
    is_english = bool(words.intersection(ENGLISH.split()))
    is_other = num_clear >= 2 or (not is_english and (num_clear or num_shared >= 2))
    return name if is_other else ""


def _texts(query: AnyQuery) -> Iterator[str]:
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
