"""Small models of sentence-transformers with random weights, their processors and tokenizers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from eaglenet.encoders.sentence_transformer_files import sentence_transformers

SPECIAL = (
    "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
    "<|video_pad|>", "<|endoftext|>",
)  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for c in m.content %}"
    "{% if c.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif c.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ c.text }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The parts of Qwen3-VL's chat template that embedding uses."""
PROMPTS = {"query": "Find the video of the text.", "document": "Represent the input."}
SIDE = 64


def require_sentence_transformers(*, videos: bool) -> Any:
    """The package; the test is skipped where it, or torchvision for videos, is not installed."""
    if importlib.util.find_spec("sentence_transformers") is None:
        pytest.skip("sentence-transformers is not installed")
    if videos and importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    return sentence_transformers()


def _qwen(folder: Path) -> Any:
    """Qwen3-VL's architecture and processor, saved as transformers saves them."""
    from tokenizers import pre_tokenizers
    from transformers import (
        Qwen2Tokenizer,
        Qwen2VLImageProcessor,
        Qwen3VLConfig,
        Qwen3VLModel,
        Qwen3VLProcessor,
        Qwen3VLVideoProcessor,
    )

    letters = {letter: id for id, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Qwen2Tokenizer(vocab=letters, merges=[], pad_token="<|endoftext|>")
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL)})
    start, end, image, video = (tokenizer.convert_tokens_to_ids(each) for each in SPECIAL[2:6])
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 10000.0, "mrope_interleaved": True,
                "mrope_section": [4, 2, 2],
            },
        },
        vision_config={
            "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2,
            "out_hidden_size": 32, "deepstack_visual_indexes": [0], "num_position_embeddings": 16,
        },
        image_token_id=image, video_token_id=video,
        vision_start_token_id=start, vision_end_token_id=end,
    )  # fmt: skip
    torch.manual_seed(1)
    Qwen3VLModel(config).save_pretrained(folder)
    budget = {"shortest_edge": 32 * 32, "longest_edge": 16 * SIDE * SIDE}
    Qwen3VLProcessor(
        Qwen2VLImageProcessor(patch_size=16, merge_size=2, size=budget),
        tokenizer,
        Qwen3VLVideoProcessor(size=budget, cap_pixels_per_frame=False),
        chat_template=TEMPLATE,
    ).save_pretrained(folder)
    from sentence_transformers.base.modules import Transformer

    return Transformer(str(folder))


def make_qwen(folder: Path) -> Path:
    """Qwen3-VL-Embedding: the last token of Qwen3-VL, unit length, with prompts."""
    package = require_sentence_transformers(videos=True)
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    transformer = _qwen(folder / "transformer")
    modules = [transformer, Pooling(32, "lasttoken"), Normalize()]
    package.SentenceTransformer(modules=modules, prompts=PROMPTS, device="cpu").save(
        str(folder / "model")
    )
    return folder / "model"


def make_multi_vector(folder: Path) -> Path:
    """One vector per token of Qwen3-VL, in the manner of ColQwen."""
    package = require_sentence_transformers(videos=True)
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    torch.manual_seed(2)
    dense = Dense(
        32, 8, bias=False, activation_function=torch.nn.Identity(),
        module_input_name="token_embeddings", module_output_name="token_embeddings",
    )  # fmt: skip
    modules = [_qwen(folder / "transformer"), dense, MultiVectorMask()]
    package.MultiVectorEncoder(modules=modules, device="cpu").save(str(folder / "model"))
    return folder / "model"


def make_omni(folder: Path) -> Path:
    """e5-omni: the last token of Qwen2.5-Omni's thinker, which also reads audio."""
    package = require_sentence_transformers(videos=True)
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
    from tokenizers import pre_tokenizers
    from transformers import (
        MODEL_MAPPING,
        Qwen2_5OmniProcessor,
        Qwen2_5OmniThinkerConfig,
        Qwen2_5OmniThinkerForConditionalGeneration,
        Qwen2Tokenizer,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
        WhisperFeatureExtractor,
    )

    if Qwen2_5OmniThinkerConfig not in MODEL_MAPPING:
        pytest.skip("this version of transformers opens no thinker of Qwen2.5-Omni")
    letters = {letter: id for id, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    kinds = {"image": "IMAGE", "video": "VIDEO", "audio": "AUDIO"}
    kinds |= {f"{sense}_{end}": f"{sense}_{end}" for sense in ("vision", "audio")
              for end in ("bos", "eos")}  # fmt: skip
    tokenizer = Qwen2Tokenizer(
        vocab=letters,
        merges=[],
        pad_token="<|endoftext|>",
        extra_special_tokens={f"{name}_token": f"<|{token}|>" for name, token in kinds.items()},
    )
    turns = {"additional_special_tokens": list(SPECIAL[:2])}
    tokenizer.add_special_tokens(turns, replace_extra_special_tokens=False)
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{token}|>") for name, token in kinds.items()}
    config = Qwen2_5OmniThinkerConfig(
        audio_config={
            "num_mel_bins": 16, "encoder_layers": 1, "encoder_attention_heads": 2,
            "encoder_ffn_dim": 32, "d_model": 16, "n_window": 4, "max_source_positions": 16,
            "output_dim": 32,
        },
        vision_config={
            "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2,
            "out_hidden_size": 32, "window_size": 56, "fullatt_block_indexes": [1],
        },
        text_config={
            "vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
            "pad_token_id": tokenizer.pad_token_id,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2],
            },
        },
        image_token_id=ids["image"], video_token_id=ids["video"], audio_token_id=ids["audio"],
        vision_start_token_id=ids["vision_bos"], vision_end_token_id=ids["vision_eos"],
        audio_start_token_id=ids["audio_bos"], audio_end_token_id=ids["audio_eos"],
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(5)
    Qwen2_5OmniThinkerForConditionalGeneration(config).save_pretrained(folder / "transformer")
    template = TEMPLATE
    for token, name in (("vision_start", "vision_bos"), ("vision_end", "vision_eos"),
                        ("image_pad", "IMAGE"), ("video_pad", "VIDEO")):  # fmt: skip
        template = template.replace(f"<|{token}|>", f"<|{name}|>")
    budget = {"shortest_edge": 28 * 28, "longest_edge": 16 * 56 * 56}
    Qwen2_5OmniProcessor(
        Qwen2VLImageProcessor(size=budget),
        Qwen2VLVideoProcessor(size=budget),
        WhisperFeatureExtractor(feature_size=16),
        tokenizer,
        chat_template=template,
    ).save_pretrained(folder / "transformer")
    modules = [Transformer(str(folder / "transformer")), Pooling(32, "lasttoken"), Normalize()]
    package.SentenceTransformer(modules=modules, device="cpu").save(str(folder / "model"))
    return folder / "model"


def make_videoprism(folder: Path, *, is_full: bool = False) -> Path:
    """VideoPrism-LvT in transformers' own layout, which has no modules.json.

    ``is_full``: the size of the published model B, except for the tokenizer.
    """
    require_sentence_transformers(videos=True)
    from transformers import (
        LlavaOnevisionVideoProcessor,
        VideoPrismClipModel,
        VideoPrismConfig,
        VideoPrismProcessor,
        VideoPrismTokenizer,
    )

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    pieces += [(letter, -3.0) for letter in "abcdefghijklmnopqrstuvwxyz"]
    tokenizer = VideoPrismTokenizer(vocab=pieces, extra_ids=0)
    width = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    small = VideoPrismConfig(
        text_config={**width, "vocab_size": len(tokenizer), "num_hidden_layers": 2},
        vision_config={
            **width, "image_size": 36, "num_frames": 4, "num_spatial_layers": 1,
            "num_temporal_layers": 1, "num_auxiliary_layers": 1,
        },
    )  # fmt: skip
    config = VideoPrismConfig(text_config={}, vision_config={}) if is_full else small
    torch.manual_seed(3)
    VideoPrismClipModel(config).save_pretrained(folder)
    side = config.vision_config.image_size
    size = {"height": side, "width": side}
    processor = LlavaOnevisionVideoProcessor(size=size, do_normalize=False)
    VideoPrismProcessor(processor, tokenizer).save_pretrained(folder)
    return folder


def make_perception_av(folder: Path, *, num_frames: int | None = None) -> Path:
    """Perception Encoder AV with its audio branches, as transformers saves it.

    ``num_frames``: the processor samples this number, as those of the 16-frame models do.
    """
    require_sentence_transformers(videos=True)
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import (
        PeAudioFeatureExtractor,
        PeAudioVideoConfig,
        PeAudioVideoModel,
        PeAudioVideoProcessor,
        PeVideoVideoProcessor,
        PreTrainedTokenizerFast,
    )

    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "[CLS]", "[SEP]", "[PAD]", "[UNK]"]
    ids = {name: number for number, name in enumerate(names)}
    backend = Tokenizer(models.BPE(vocab=ids, merges=[], unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    ends = [(name, ids[name]) for name in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=ends
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]",
        unk_token="[UNK]", model_max_length=64, model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip
    width = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "head_dim": 16}
    config = PeAudioVideoConfig(
        text_config={
            "model_type": "modernbert", "vocab_size": len(names), "hidden_size": 24,
            "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2,
            "pad_token_id": ids["[PAD]"], "bos_token_id": ids["[CLS]"],
            "cls_token_id": ids["[CLS]"], "sep_token_id": ids["[SEP]"],
            "eos_token_id": ids["[SEP]"],
        },
        audio_video_config={
            **width, "num_hidden_layers": 1,
            "audio_config": {
                **width, "num_hidden_layers": 2,
                "dac_config": {
                    "encoder_hidden_size": 8, "downsampling_ratios": [2, 4], "codebook_dim": 8,
                },
            },
            "video_config": {
                **width, "num_hidden_layers": 3,
                "vision_config": {
                    "architecture": "vit_pe_core_large_patch14_336", "num_classes": 20,
                    "global_pool": "map",
                    "model_args": {"embed_dim": 64, "depth": 2, "img_size": [28, 28]},
                },
            },
        },
    )  # fmt: skip
    torch.manual_seed(6)
    model = PeAudioVideoModel(config)
    with torch.no_grad():
        model.video_model.text_video_logit_scale.fill_(10.0)
        model.video_model.text_video_logit_bias.fill_(-10.0)
    model.save_pretrained(folder)
    half = [0.5, 0.5, 0.5]
    videos = PeVideoVideoProcessor(
        size={"height": 28, "width": 28}, image_mean=half, image_std=half, do_resize=True,
        do_rescale=True, do_normalize=True, do_convert_rgb=True,
        do_sample_frames=num_frames is not None, num_frames=num_frames,
    )  # fmt: skip
    PeAudioVideoProcessor(PeAudioFeatureExtractor(), videos, tokenizer).save_pretrained(folder)
    return folder


def make_clip(folder: Path) -> Path:
    """CLIP, which reads images and no videos."""
    package = require_sentence_transformers(videos=False)
    from tokenizers import pre_tokenizers
    from transformers import (
        CLIPConfig,
        CLIPImageProcessorPil,
        CLIPModel,
        CLIPProcessor,
        CLIPTokenizer,
    )

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*letters, *(f"{letter}</w>" for letter in letters)]
    names += ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=40)
    width = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
    }
    config = CLIPConfig(
        text_config={
            **width, "vocab_size": len(names), "max_position_embeddings": 40,
            "bos_token_id": len(names) - 2, "eos_token_id": len(names) - 1,
        },
        vision_config={**width, "image_size": 24, "patch_size": 8},
        projection_dim=12,
    )  # fmt: skip
    torch.manual_seed(4)
    CLIPModel(config).save_pretrained(folder / "transformer")
    images = CLIPImageProcessorPil(
        size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24}
    )
    CLIPProcessor(images, tokenizer).save_pretrained(folder / "transformer")
    package.SentenceTransformer(str(folder / "transformer"), device="cpu").save(
        str(folder / "model")
    )
    return folder / "model"


def make_text_model(folder: Path) -> Path:
    """A model that reads text alone."""
    package = require_sentence_transformers(videos=False)
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"a": 0, "cat": 1, "[UNK]": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    modules = [StaticEmbedding(words, embedding_dim=4)]
    package.SentenceTransformer(modules=modules, device="cpu").save(str(folder))
    return folder
