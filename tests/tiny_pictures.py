"""Small random models that take pictures, in folders as such models are published."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

Family = Literal[
    "llava",
    "smolvlm",
    "idefics3",
    "internvl",
    "mistral3",
    "llava_next",
    "llava_onevision",
    "lighton_ocr",
    "aya_vision",
    "deepseek_vl",
    "deepseek_vl_hybrid",
    "janus",
    "exaone4_5",
    "hyperclovax_vision_v2",
]
FAMILIES: tuple[Family, ...] = get_args(Family)

VOCABULARY = 320
# Ids 0, 1 and 2, before those of the bytes.
SPECIAL = ["<s>", "</s>", "<pad>"]
TILE = 28
PATCH = 7
ROWS_OF_A_TILE = (TILE // PATCH // 2) ** 2

TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "tie_word_embeddings": False,
}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": TILE,
    "patch_size": PATCH,
    "initializer_range": 0.2,
}
ROW_TAGS = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
IDEFICS_TOKENS = ["<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", *ROW_TAGS]
# Heights and widths to which a picture may be scaled before it is cut into tiles.
GRIDS = [[TILE, 2 * TILE], [2 * TILE, TILE], [2 * TILE, 2 * TILE]]
TILED = {"size": {"longest_edge": 2 * TILE}, "max_image_size": {"longest_edge": TILE}}


@dataclass(frozen=True)
class Parts:
    """The parts of a family's models."""

    text_type: str
    processor: str
    processor_settings: dict[str, Any]
    image_processor: str
    image_settings: dict[str, Any]
    # Added to the tokenizer; the first one stands for a row of a picture.
    tokens: list[str]
    # Of the model.
    settings: dict[str, Any]
    # None: the family's own.
    vision_type: str | None = None
    # Of the encoder.
    vision_settings: dict[str, Any] = field(default_factory=dict)
    # What the template writes for a picture, where that is another one.
    template_token: str | None = None
    # Attributes of the tokenizer.
    named_tokens: dict[str, str] = field(default_factory=dict)


# Of families with the encoder of Qwen2.5-VL: the class and the settings of images, the tokens, and further settings.
OF_QWEN = (
    "Qwen2VLImageProcessorPil",
    {"size": {"shortest_edge": TILE**2, "longest_edge": 4 * TILE**2}, "patch_size": PATCH},
    ["<|image_pad|>", "<|video_pad|>"],
    {"tie_word_embeddings": False},
)
VISION_OF_QWEN: dict[str, Any] = {
    "depth": 2,
    "num_heads": 2,
    "out_hidden_size": 64,
    "fullatt_block_indexes": [1],
    "window_size": 4 * PATCH,
}
PARTS: dict[Family, Parts] = {
    "llava": Parts(
        "llama",
        "LlavaProcessor",
        {"patch_size": PATCH, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"},
        "CLIPImageProcessorPil",
        {"size": {"shortest_edge": TILE}, "crop_size": {"height": TILE, "width": TILE}},
        ["<image>"],
        {"vision_feature_layer": -2},
        vision_type="clip_vision_model",
    ),
    "smolvlm": Parts(
        "llama",
        "SmolVLMProcessor",
        {"image_seq_len": ROWS_OF_A_TILE},
        "SmolVLMImageProcessorPil",
        TILED,
        IDEFICS_TOKENS,
        {"scale_factor": 2},
    ),
    "idefics3": Parts(
        "llama",
        "Idefics3Processor",
        {"image_seq_len": ROWS_OF_A_TILE},
        "Idefics3ImageProcessorPil",
        TILED,
        IDEFICS_TOKENS,
        {"scale_factor": 2},
    ),
    "internvl": Parts(
        "qwen2",
        "InternVLProcessor",
        {"image_seq_length": ROWS_OF_A_TILE},
        "GotOcr2ImageProcessorPil",
        {"size": {"height": TILE, "width": TILE}, "max_patches": 4, "crop_to_patches": True},
        ["<IMG_CONTEXT>", "<img>", "</img>", "<video>"],
        {"downsample_ratio": 0.5, "image_seq_length": ROWS_OF_A_TILE, "tie_word_embeddings": False},
        named_tokens={
            "context_image_token": "<IMG_CONTEXT>",
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "video_token": "<video>",
        },
    ),
    "mistral3": Parts(
        "mistral",
        "PixtralProcessor",
        {"patch_size": PATCH, "spatial_merge_size": 2},
        "PixtralImageProcessorPil",
        {"size": {"longest_edge": 8 * PATCH}, "patch_size": {"height": PATCH, "width": PATCH}},
        ["[IMG]", "[IMG_BREAK]", "[IMG_END]"],
        {"spatial_merge_size": 2, "tie_word_embeddings": False},
        vision_type="pixtral",
    ),
    "llava_next": Parts(
        "mistral",
        "LlavaNextProcessor",
        {"patch_size": PATCH, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"},
        "LlavaNextImageProcessorPil",
        {
            "size": {"shortest_edge": TILE},
            "crop_size": {"height": TILE, "width": TILE},
            "image_grid_pinpoints": GRIDS,
        },
        ["<image>"],
        {"vision_feature_layer": -2, "image_grid_pinpoints": GRIDS},
        vision_type="clip_vision_model",
    ),
    "llava_onevision": Parts(
        "qwen2",
        "LlavaOnevisionProcessor",
        {
            "num_image_tokens": (TILE // PATCH) ** 2,
            "vision_feature_select_strategy": "full",
            "vision_aspect_ratio": "anyres_max_2",
        },
        "LlavaOnevisionImageProcessorPil",
        {"size": {"height": TILE, "width": TILE}, "image_grid_pinpoints": GRIDS},
        ["<image>", "<video>"],
        {"image_grid_pinpoints": GRIDS, "vision_aspect_ratio": "anyres_max_2"},
        vision_type="siglip_vision_model",
        vision_settings={"vision_use_head": False},
    ),
    "lighton_ocr": Parts(
        "qwen3",
        "LightOnOcrProcessor",
        {"patch_size": PATCH, "spatial_merge_size": 2},
        "PixtralImageProcessorPil",
        {"size": {"longest_edge": 16 * PATCH}, "patch_size": {"height": PATCH, "width": PATCH}},
        ["<|image_pad|>", "<|vision_pad|>", "<|vision_end|>"],
        {"spatial_merge_size": 2, "tie_word_embeddings": False},
        vision_type="pixtral",
        vision_settings={"image_size": 16 * PATCH},
        named_tokens={
            "image_token": "<|image_pad|>",
            "image_break_token": "<|vision_pad|>",
            "image_end_token": "<|vision_end|>",
        },
    ),
    "aya_vision": Parts(
        "cohere2",
        "AyaVisionProcessor",
        {"patch_size": PATCH, "downsample_factor": 2, "img_size": TILE},
        "GotOcr2ImageProcessorPil",
        {"size": {"height": TILE, "width": TILE}, "max_patches": 4, "crop_to_patches": True},
        ["<|IMG_PATCH|>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_LINE_BREAK|>"],
        {"downsample_factor": 2, "tie_word_embeddings": False},
        vision_type="siglip_vision_model",
        vision_settings={"vision_use_head": False},
        template_token="<image>",
    ),
    "deepseek_vl": Parts(
        "llama",
        "DeepseekVLProcessor",
        {"num_image_tokens": (TILE // PATCH) ** 2},
        "DeepseekVLImageProcessorPil",
        {"size": {"height": TILE, "width": TILE}, "min_size": PATCH},
        ["<image_placeholder>"],
        {"tie_word_embeddings": False},
        vision_type="siglip_vision_model",
        vision_settings={"vision_use_head": False},
        named_tokens={"image_token": "<image_placeholder>"},
    ),
    "deepseek_vl_hybrid": Parts(
        "llama",
        "DeepseekVLHybridProcessor",
        {"num_image_tokens": (TILE // PATCH) ** 2},
        "DeepseekVLHybridImageProcessorPil",
        {
            "size": {"height": TILE, "width": TILE},
            "high_res_size": {"height": 2 * TILE, "width": 2 * TILE},
            "min_size": PATCH,
        },
        ["<image_placeholder>"],
        {
            "tie_word_embeddings": False,
            "high_res_vision_config": {
                **VISION,
                "image_size": 2 * TILE,
                "mlp_dim": 48,
                "output_channels": 8,
                "global_attn_indexes": [1],
                "window_size": 3,
            },
        },
        vision_type="siglip_vision_model",
        vision_settings={"vision_use_head": False},
        named_tokens={"image_token": "<image_placeholder>"},
    ),
    "exaone4_5": Parts(
        "exaone4",
        "Exaone4_5_Processor",
        {},
        *OF_QWEN,
        vision_settings={**VISION_OF_QWEN, "num_key_value_heads": 1},
    ),
    "hyperclovax_vision_v2": Parts(
        "hyperclovax",
        "HyperCLOVAXVisionV2Processor",
        {},
        *OF_QWEN,
        vision_settings=VISION_OF_QWEN,
    ),
    "janus": Parts(
        "llama",
        "JanusProcessor",
        {"num_image_tokens": (TILE // PATCH) ** 2},
        "JanusImageProcessorPil",
        {"size": {"height": TILE, "width": TILE}, "min_size": PATCH},
        ["<image_placeholder>", "<begin_of_image>", "<end_of_image>"],
        {
            "tie_word_embeddings": False,
            "vq_config": {
                "base_channels": 32,
                "channel_multiplier": [1],
                "num_res_blocks": 1,
                "num_embeddings": 8,
                "projection_dim": 64,
                "latent_channels": 32,
                "embed_dim": 8,
                "image_token_embed_dim": 64,
            },
        },
        vision_settings={"projection_dim": 64, "num_image_tokens": (TILE // PATCH) ** 2},
        named_tokens={
            "image_token": "<image_placeholder>",
            "boi_token": "<begin_of_image>",
            "eoi_token": "<end_of_image>",
        },
    ),
}
TEMPLATE = (
    "<s>{% for message in messages %}{{ message['role'] }}: {% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "PICTURE{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tiny_models(factory: pytest.TempPathFactory) -> Callable[[Family], Path]:
    """Return a function that returns the folder of a family's model, which is written once."""
    return cache(lambda family: tiny_model(family, factory.mktemp(family)))


def tiny_model(family: Family, folder: Path) -> Path:
    """Write a model with float32 weights, the same ones each time, its processor and its tokenizer to `folder`."""
    parts = PARTS[family]
    tokenizer = tokenizer_with(parts.tokens, parts.named_tokens)
    tokenizer.chat_template = TEMPLATE.replace("PICTURE", parts.template_token or parts.tokens[0])
    tokenizer.save_pretrained(folder)
    vision_type = {} if parts.vision_type is None else {"model_type": parts.vision_type}
    config = transformers.AutoConfig.for_model(
        family,
        text_config={"model_type": parts.text_type, **TEXT},
        vision_config={**vision_type, **VISION, **parts.vision_settings},
        image_token_id=tokenizer.convert_tokens_to_ids(parts.tokens[0]),
        **parts.settings,
    )
    random_model(config).save_pretrained(folder)
    getattr(transformers, parts.image_processor)(**parts.image_settings).save_pretrained(folder)
    processor = {"processor_class": parts.processor, **parts.processor_settings}
    (folder / "processor_config.json").write_text(json.dumps(processor))
    return folder


def random_model(config: Any) -> transformers.PreTrainedModel:
    """Return a model whose pictures have embeddings as large as those of its text, so that they change what follows."""
    torch.manual_seed(0)
    kind: Any = transformers.AutoModelForImageTextToText
    model: transformers.PreTrainedModel = kind.from_config(config).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:  # otherwise all 1, or 0
                weight.uniform_(0.5, 1.5)
            elif any(part in name for part in ("projector", "connector", "position_embedding", "alpha")):
                weight.normal_(0.0, 0.5)
    return model


def tokenizer_with(added: list[str], named: dict[str, str]) -> transformers.PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens are bytes, the special ones and `added`; named: attributes for some of them."""
    names = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    kind: Any = transformers.PreTrainedTokenizerFast
    made: transformers.PreTrainedTokenizerFast = kind(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        extra_special_tokens=named,
    )
    made.add_special_tokens({"additional_special_tokens": added}, replace_extra_special_tokens=False)
    return made
