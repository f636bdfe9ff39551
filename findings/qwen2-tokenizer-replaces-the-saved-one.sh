#!/usr/bin/env bash
# Packages: transformers 5.23.0, tokenizers 0.23.3. Behaviour: AutoTokenizer decides by config.json's model_type whether
# it loads a saved tokenizer. A folder that TokenizersBackend.save_pretrained wrote, with "tokenizer_class":
# "TokenizersBackend" and its own split of texts in tokenizer.json, has other tokens when it is loaded beside a
# config.json of the type qwen2: it becomes a Qwen2Tokenizer, whose split and normalisation come from the class. Beside a
# config of the type llama, or loaded by TokenizersBackend itself, the same files have the tokens that were saved.
# Fails if AutoTokenizer has the saved tokens for qwen2, or not for llama.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet transformers==5.23.0 tokenizers==0.23.3
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import json
import sys
from importlib.metadata import version
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, TokenizersBackend

letters = sorted(pre_tokenizers.ByteLevel.alphabet())
ids = {token: index for index, token in enumerate([*letters, "a-"])}
backend = Tokenizer(models.BPE(ids, [("a", "-")]))
backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # one word
backend.decoder = decoders.ByteLevel()
text = "a-b e\u0301"
print("transformers", version("transformers"), "tokenizers", version("tokenizers"))
found = {}
for kind in ("llama", "qwen2"):
    place = Path(kind)
    TokenizersBackend(tokenizer_object=backend).save_pretrained(place)
    (place / "config.json").write_text(json.dumps({"model_type": kind}))
    loaded = AutoTokenizer.from_pretrained(place)
    found[kind] = loaded.tokenize(text)
    print(kind, type(loaded).__name__, found[kind], "by TokenizersBackend:", TokenizersBackend.from_pretrained(place).tokenize(text))
saved = backend.encode(text).tokens
sys.exit(0 if found["llama"] == saved and found["qwen2"] != saved else 1)
PYTHON
