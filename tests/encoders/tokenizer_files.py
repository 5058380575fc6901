"""Small ``tokenizer.json`` files with the structure of published ones.

Published files cannot be downloaded in tests. Normaliser, splitting, model and template are equal;
the vocabulary is small.
"""

from __future__ import annotations

import functools
import json
import string
from pathlib import Path

import tokenizers
from multilingual_texts import generated_sentences
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers


@functools.cache
def _sentences() -> tuple[str, ...]:
    return tuple(generated_sentences(300, seed=77))


@functools.cache
def siglip_file() -> str:
    """Write SigLIP's: a Unigram of lower-case text without punctuation, then </s>."""
    backend = tokenizers.Tokenizer(models.Unigram())
    punctuation = "[" + "".join("\\" + letter for letter in string.punctuation) + "]"
    backend.normalizer = normalizers.Sequence(
        [
            normalizers.Lowercase(),
            normalizers.Replace(Regex(punctuation), ""),
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Strip(),
        ]
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always")
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=2600, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(_sentences(), trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return str(backend.to_str())


@functools.cache
def gemma_file() -> str:
    """Write Gemma's: byte-pair encoding with byte fallback, spaces as U+2581, then <eos>."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    backend.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=special, show_progress=False, max_token_length=8
    )
    lower_sentences = [sentence.lower()[:40] for sentence in _sentences()[:150]]
    backend.train_from_iterator(lower_sentences, trainer)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    content = json.loads(backend.to_str())
    # Bytes are ordinary tokens of Gemma's vocabulary, not special ones.
    added_tokens = content["added_tokens"]
    content["added_tokens"] = [
        token for token in added_tokens if not token["content"].startswith("<0x")
    ]
    return json.dumps(content)


@functools.cache
def xlm_file() -> str:
    """Write XLM-R's: a Unigram of NFKC text split at spaces, between <s> and </s>."""
    backend = tokenizers.Tokenizer(models.Unigram())
    # The published file has SentencePiece's precompiled nmt_nfkc map, which these replace.
    backend.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always"),
        ]
    )
    trainer = trainers.UnigramTrainer(
        vocab_size=2900,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )
    backend.train_from_iterator(_sentences(), trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return str(backend.to_str())


def write_tokenizer(folder: Path, content: str, **settings: object) -> Path:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(content, "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
