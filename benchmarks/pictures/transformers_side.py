"""transformers' own processor and generation of one token, in a process of its own.

It prints "ready", then reads the paths of picture files, a line each, and answers each with the seconds that it took.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image

from engine_server.modeling.pictures.processor import PictureProcessor

TEXT = "<|im_start|>user\n<image>What is it?<|im_end|>\n<|im_start|>assistant\n"


def main() -> None:
    folder = Path(sys.argv[1])
    processor = PictureProcessor.of_folder(
        folder
    )._processor  # SmolVLM's own class can't be made without torchvision
    kind: Any = transformers.AutoModelForImageTextToText
    model = kind.from_pretrained(folder, dtype=torch.bfloat16).eval()
    print("ready", flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        inputs = processor(images=[Image.open(line.strip()).convert("RGB")], text=TEXT, return_tensors="pt")
        with torch.inference_mode():
            model.generate(**inputs, max_new_tokens=1, do_sample=False, pad_token_id=0)
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main()
