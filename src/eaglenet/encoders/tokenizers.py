"""Tokenizers from model files: ``tokenizer.json``, CLIP's tables, SentencePiece."""

from __future__ import annotations

import json
import string
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from eaglenet.core import untrusted
from eaglenet.core.errors import CheckpointError, ModelNotFoundError, UsageError
from eaglenet.core.settings import from_plain
from eaglenet.core.types import Tokenizer, Tokens
from eaglenet.encoders.weights import read_json, read_optional_json

# Any ``tokenizer.json``: Unigram, WordPiece or byte-pair encoding.

FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"
OWN = "eaglenet"
"""Our key in ``tokenizer_config.json``, which marks files that :meth:`save` wrote."""


@dataclass(frozen=True)
class TokenizerSettings:
    """Settings that ``tokenizer.json`` lacks.

    context_length: maximum tokens per text, including start and end.
    pad_id: id of the padding after the end.
    """

    context_length: int
    pad_id: int = 0


class JsonTokenizer:
    """Converts texts to :class:`Tokens`, with the start and end tokens of the file."""

    def __init__(self, backend: tokenizers.Tokenizer, settings: TokenizerSettings) -> None:
        self.settings = settings
        # Truncation and padding happen here: in the library they are state shared by threads.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._start, self._end = _start_and_end_tokens(backend)

    @classmethod
    def from_file(cls, path: Path, settings: TokenizerSettings) -> JsonTokenizer:
        """Read a ``tokenizer.json``."""
        return cls(read_backend(path), settings)

    @staticmethod
    def is_saved_in(folder: Path) -> bool:
        """Return whether :meth:`save` wrote the tokenizer of this folder."""
        settings = read_optional_json(folder / SETTINGS)
        return settings is not None and OWN in settings

    @classmethod
    def load(cls, folder: Path) -> JsonTokenizer:
        """Read a tokenizer that :meth:`save` wrote."""
        plain = read_json(folder / SETTINGS)[OWN]
        return cls.from_file(folder / FILE, from_plain(TokenizerSettings, plain))

    def save(self, folder: str | Path) -> None:
        """Write ``tokenizer.json`` and the settings that transformers needs to read it."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._backend.save(str(folder / FILE))
        (folder / SETTINGS).write_text(json.dumps(self._hub_settings(), indent=2) + "\n")

    def _hub_settings(self) -> dict[str, Any]:
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": self.settings.context_length,
            "pad_token": self._backend.id_to_token(self.settings.pad_id),
            OWN: asdict(self.settings),
        }

    @property
    def vocabulary_size(self) -> int:
        return int(self._backend.get_vocab_size())

    def __call__(self, texts: Sequence[str], max_length: int | None = None) -> Tokens:
        """Tokenize into ``max_length`` columns, by default the maximum of the tower."""
        limit = self.settings.context_length
        width = limit if max_length is None else max_length
        num_special = len(self._start) + len(self._end)
        if not num_special <= width <= limit:
            raise UsageError(
                f"max_length {width}: this model takes {num_special} to {limit} tokens"
            )
        if isinstance(texts, str):
            texts = [texts]
        encodings = self._backend.encode_batch_fast(
            [valid_unicode(text) for text in texts], add_special_tokens=False
        )
        rows, lengths = [], []
        for encoding in encodings:
            tokens = [*self._start, *encoding.ids[: width - num_special], *self._end]
            lengths.append(len(tokens))
            rows.append(tokens + [self.settings.pad_id] * (width - len(tokens)))
        # One tensor of all rows, since a tensor per row takes longer than the tokenizer.
        ids = torch.tensor(rows, dtype=torch.int64).reshape(len(rows), width)
        mask = torch.arange(width) < torch.tensor(lengths)[:, None]
        return Tokens(ids, mask)


def read_backend(path: Path) -> tokenizers.Tokenizer:
    """Read a ``tokenizer.json`` with the library."""
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # The library raises plain Exception.
        raise CheckpointError(f"{path}: not a tokenizer ({error})") from error


def valid_unicode(text: str) -> str:
    """Make a text encodable: join surrogate pairs, replace lone surrogates by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _start_and_end_tokens(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """Return the tokens that the template of the file adds before and after a text."""
    plain = backend.encode("a", add_special_tokens=False).ids
    whole = backend.encode("a").ids
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return whole[:start], whole[start + len(plain) :]
    raise CheckpointError("the tokenizer changes a text when it adds start and end tokens")


START, END, WORD_END = "<|startoftext|>", "<|endoftext|>", "</w>"
CONTEXT_LENGTH = 77
PATTERN = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d"
    r"|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)
TABLE_MERGES = 49152 - 256 - 2
"""Number of merges of OpenAI's table that its models use; the rest is ignored."""

MAX_TOKENS = 10_000_000
TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
"""Options of a token in ``tokenizer.json``."""

Merge = tuple[str, str]


class ClipTokenizer(JsonTokenizer):
    """Converts texts to :class:`Tokens`: start, tokens, end, then zeros.

    Args:
        vocabulary: token -> id. CLIP needs an end token with the largest id.
        merges: pairs of tokens, most frequent first.
        added_tokens: further tokens that are never split, as in ``tokenizer.json``.
    """

    def __init__(
        self,
        vocabulary: Mapping[str, int],
        merges: Sequence[Merge],
        *,
        added_tokens: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        for token in (START, END):
            if token not in vocabulary:
                raise CheckpointError(f"the vocabulary has no {token!r}; expected CLIP's")
        self.start_id = vocabulary[START]
        self.end_id = vocabulary[END]
        try:
            backend = _pipeline(vocabulary, merges)
            backend.add_special_tokens(_special_tokens(added_tokens))
        except Exception as error:  # The library raises plain Exception.
            raise CheckpointError(f"the vocabulary and its merges do not fit: {error}") from error
        backend.post_processor = processors.RobertaProcessing(
            (END, self.end_id), (START, self.start_id), trim_offsets=False, add_prefix_space=False
        )
        super().__init__(backend, TokenizerSettings(CONTEXT_LENGTH))
        self._start, self._end = [self.start_id], [self.end_id]

    def __call__(self, texts: Sequence[str], max_length: int | None = 32) -> Tokens:
        """Tokenize into ``max_length`` columns; truncate longer texts before the end token."""
        return super().__call__(texts, max_length)

    @classmethod
    def from_folder(cls, folder: str | Path) -> ClipTokenizer:
        """Read ``tokenizer.json``, or ``vocab.json`` and ``merges.txt``, or OpenAI's table."""
        folder = Path(folder)
        if (folder / FILE).is_file():
            return cls._from_tokenizer_json(folder / FILE)
        if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
            with _naming_file(folder / "vocab.json"):
                vocabulary = untrusted.read_object(folder / "vocab.json", untrusted.MAX_VOCABULARY)
            with _naming_file(folder / "merges.txt"):
                lines = untrusted.read_text(folder / "merges.txt", untrusted.MAX_VOCABULARY).split(
                    "\n"
                )
                return cls._from_untrusted(vocabulary, [_pair(line) for line in lines[1:] if line])
        for table in sorted(folder.glob("bpe_simple_vocab_16e6.txt*")):
            return cls.from_table(table)
        raise ModelNotFoundError(
            f"no vocabulary in {folder}: looked for tokenizer.json, vocab.json with merges.txt, "
            "and bpe_simple_vocab_16e6.txt.gz; copy the one of the checkpoint into it"
        )

    @classmethod
    def _from_tokenizer_json(cls, path: Path) -> ClipTokenizer:
        with _naming_file(path):
            content = untrusted.read_object(path, untrusted.MAX_VOCABULARY)
            model = content.get("model")
            if not isinstance(model, dict):
                raise ValueError("it describes no model")
            if model.get("type", "BPE") != "BPE" or model.get("end_of_word_suffix") != WORD_END:
                raise ValueError(
                    f"not CLIP's byte-pair encoding (model {model.get('type')!r:.60}, "
                    f"word end {model.get('end_of_word_suffix')!r:.60})"
                )
            if not {"merges", "vocab"} <= set(model):
                raise ValueError("its model has no vocab or no merges")
            merges = [_pair(m) if isinstance(m, str) else tuple(m) for m in model["merges"]]
            return cls._from_untrusted(model["vocab"], merges, content.get("added_tokens") or ())

    @classmethod
    def _from_untrusted(cls, vocabulary: Any, merges: Any, added_tokens: Any = ()) -> ClipTokenizer:
        _check_vocabulary(vocabulary, merges, added_tokens)
        return cls(vocabulary, merges, added_tokens=added_tokens)

    @classmethod
    def from_table(cls, path: str | Path) -> ClipTokenizer:
        """Read OpenAI's ``bpe_simple_vocab_16e6.txt.gz``."""
        path = Path(path)
        with _naming_file(path):
            data = untrusted.read_bytes(path, untrusted.MAX_VOCABULARY)
            if path.suffix == ".gz":
                data = untrusted.gunzip(data, untrusted.MAX_VOCABULARY)
            lines = data.decode("utf-8").split("\n")[1 : TABLE_MERGES + 1]
            return cls.from_merges([_pair(line) for line in lines])

    @classmethod
    def from_merges(cls, merges: Sequence[Merge]) -> ClipTokenizer:
        """Create a tokenizer with CLIP's ids: bytes, bytes that end a word, merges, start, end."""
        alphabet = _byte_alphabet()
        tokens = alphabet + [letter + WORD_END for letter in alphabet]
        tokens += dict.fromkeys("".join(merge) for merge in merges)
        tokens += [START, END]
        return cls({token: index for index, token in enumerate(tokens)}, merges)

    def _hub_settings(self) -> dict[str, Any]:
        return {
            "tokenizer_class": "CLIPTokenizer",
            "bos_token": START,
            "eos_token": END,
            "pad_token": END,
            "unk_token": END,
            "model_max_length": CONTEXT_LENGTH,
        }


def _pipeline(vocabulary: Mapping[str, int], merges: Sequence[Merge]) -> Any:
    """Return a backend that works like that of transformers: words, then bytes, then merges."""
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=dict(vocabulary),
            merges=list(merges),
            continuing_subword_prefix="",
            end_of_word_suffix=WORD_END,
            fuse_unk=False,
            unk_token=END,
        )
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


@contextmanager
def _naming_file(path: Path) -> Iterator[None]:
    """Add the file name to errors in a vocabulary."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: damaged, or not a vocabulary ({error})") from error


def _check_vocabulary(vocabulary: Any, merges: Any, added_tokens: Any) -> None:
    """Check ids, merges and added tokens, since the library does not."""
    if not isinstance(vocabulary, Mapping):
        raise CheckpointError("the vocabulary is not a table of tokens and ids")
    for token, number in vocabulary.items():
        is_number = isinstance(number, int) and not isinstance(number, bool)
        if not is_number or not 0 <= number < MAX_TOKENS or not _is_text(token):
            raise CheckpointError(f"the vocabulary gives {token!r:.60} the id {number!r:.60}")
    if len(set(vocabulary.values())) != len(vocabulary):
        raise CheckpointError("the vocabulary gives one id to several tokens")
    for merge in merges:
        if len(merge) != 2 or not all(map(_is_text, merge)):
            raise CheckpointError(f"a merge is {merge!r:.60}; expected two tokens")
    if not isinstance(added_tokens, Sequence):
        raise CheckpointError("added_tokens is not a list")
    for token in added_tokens:
        if not isinstance(token, Mapping) or not _is_text(token.get("content")):
            raise CheckpointError(f"an added token is {token!r:.60}; expected its content")
        if not all(isinstance(token.get(name, False), bool) for name in TOKEN_FLAGS):
            raise CheckpointError(f"an added token has an option that is not a bool: {token!r:.60}")


def _is_text(value: Any) -> bool:
    """Return whether a token is text without lone surrogates."""
    return isinstance(value, str) and (value.isascii() or value == valid_unicode(value))


def _special_tokens(tokens: Sequence[Mapping[str, Any]]) -> list[Any]:
    flags: dict[str, dict[str, Any]] = {START: {}, END: {}}
    for token in tokens:
        content = str(token["content"])
        flags[content] = {name: token[name] for name in TOKEN_FLAGS if name in token}
    return [
        tokenizers.AddedToken(content, special=True, **({"normalized": False} | options))
        for content, options in flags.items()
    ]


def _byte_alphabet() -> list[str]:
    """Return GPT-2's characters for bytes: printable bytes, then replacements of the others."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(byte) for byte in printable] + [chr(256 + n) for n in range(256 - len(printable))]


def _pair(line: str) -> Merge:
    first, second = line.split()
    return first, second


def read_tokenizer(folder: Path) -> Tokenizer | None:
    """Read the tokenizer that was saved in a model folder; None if there is none."""
    if not (folder / FILE).is_file():
        return None
    if JsonTokenizer.is_saved_in(folder):
        return JsonTokenizer.load(folder)
    return ClipTokenizer.from_folder(folder)


# SentencePiece's file (``spiece.model``), converted for the tokenizer library.

SPIECE = "spiece.model"
SPACE = "\u2581"
SPIECE_END = "</s>"
PIECES, TRAINER, NORMALIZER = 1, 2, 3
"""Fields of the file."""
PIECE, SCORE, KIND = 1, 2, 3
"""Fields of a piece."""
MODEL_KIND, BYTE_FALLBACK, UNKNOWN = 3, 35, 40
"""Fields of the trainer."""
TABLE, PREFIX = 2, 3
"""Fields of the normaliser."""
UNIGRAM = 1
CONTROL, USER_DEFINED = 3, 4
"""Kinds of pieces that are never split."""

CASED, IGNORED = r"[\p{Lu}\p{Ll}\p{Lt}]", r"[\p{M}\p{Cf}\p{Lm}\p{Sk}'.:\u00b7\u2018\u2019]"
FINAL_SIGMA = rf"(?<={CASED}|{CASED}{IGNORED}|{CASED}{IGNORED}{IGNORED})\u03a3(?!{IGNORED}*{CASED})"
"""A capital sigma at the end of a word, which has its own lower-case letter; the library converts
letters one by one."""

Value = int | bytes
Fields = dict[int, list[Value]]


def read_sentencepiece(path: Path) -> tokenizers.Tokenizer:
    """Read SigLIP's tokenizer from a ``spiece.model``."""
    try:
        fields = _fields(untrusted.read_bytes(path, untrusted.MAX_VOCABULARY))
        pieces = [_fields(_bytes(piece)) for piece in fields.get(PIECES, [])]
        trainer, normalizer = (_message(fields, name) for name in (TRAINER, NORMALIZER))
        kind = _number(trainer, MODEL_KIND, UNIGRAM)
        if kind != UNIGRAM or not _number(normalizer, PREFIX, 1):
            raise ValueError(
                f"a model of kind {kind}; SigLIP's are Unigram models with a space before each text"
            )
        vocabulary = [
            (_bytes(piece[PIECE][0]).decode(), struct.unpack("<f", _bytes(piece[SCORE][0]))[0])
            for piece in pieces
        ]
        backend = tokenizers.Tokenizer(
            models.Unigram(
                vocabulary,
                unk_id=_number(trainer, UNKNOWN, 0),
                byte_fallback=bool(_number(trainer, BYTE_FALLBACK, 0)),
            )
        )
        backend.add_tokens(
            [
                tokenizers.AddedToken(
                    name, normalized=False, special=_number(piece, KIND, 1) == CONTROL
                )
                for (name, _), piece in zip(vocabulary, pieces, strict=True)
                if _number(piece, KIND, 1) in (CONTROL, USER_DEFINED)
            ]
        )
        table = normalizer.get(TABLE, [b""])[0]
        backend.normalizer = siglip_normalizer(_bytes(table))
        end = backend.token_to_id(SPIECE_END)
        if end is None:
            raise ValueError(f"it has no {SPIECE_END}")
    except Exception as error:  # The file is damaged; the library raises plain Exception.
        raise CheckpointError(f"{path}: not a SentencePiece model of SigLIP ({error})") from error
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    backend.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {SPIECE_END}", special_tokens=[(SPIECE_END, end)]
    )
    return backend


def siglip_normalizer(table: bytes) -> normalizers.Normalizer:
    """Return SigLIP's normaliser: lower case, no punctuation, single spaces, the file's table."""
    punctuation = "[" + "".join("\\" + letter for letter in string.punctuation) + "]"
    steps: list[normalizers.Normalizer] = [
        normalizers.Replace(Regex(FINAL_SIGMA), "\u03c2"),
        normalizers.Lowercase(),
        normalizers.Replace(Regex(punctuation), ""),
        normalizers.Replace(Regex(r"[\s\x1c-\x1f]+"), " "),
        normalizers.Strip(),
    ]
    if table:
        steps += [
            normalizers.Precompiled(table),
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Strip(),
        ]
    return normalizers.Sequence(steps)


def _message(fields: Fields, number: int) -> Fields:
    return _fields(_bytes(fields.get(number, [b""])[0]))


def _number(fields: Fields, number: int, default: int) -> int:
    value = fields.get(number, [default])[-1]
    if not isinstance(value, int):
        raise ValueError(f"field {number} is not a number")
    return value


def _bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number instead of text")
    return value


def _fields(content: bytes) -> Fields:
    """Return the fields of a protobuf message by number; fields may repeat."""
    fields: Fields = {}
    for number, value in _read(content):
        fields.setdefault(number, []).append(value)
    return fields


def _read(content: bytes) -> Iterator[tuple[int, Value]]:
    position = 0
    while position < len(content):
        key, position = _varint(content, position)
        kind = key & 7
        if kind == 0:
            value, position = _varint(content, position)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            size, position = _varint(content, position)
        if size is None or position + size > len(content):
            raise ValueError("truncated, or not a protocol buffer")
        yield key >> 3, content[position : position + size]
        position += size


def _varint(content: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if position >= len(content):
            break
        byte = content[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise ValueError("truncated, or not a protocol buffer")
