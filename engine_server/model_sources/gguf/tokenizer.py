"""The tokenizer that a GGUF file describes, with the ids of llama.cpp (src/llama-vocab.cpp).

transformers' reader leaves out what llama.cpp derives from the pre-tokenizer's name and from the texts of tokens.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from engine_server.model_sources.folder import TOKENIZER_CONFIG
from engine_server.model_sources.gguf.ends import SPECIAL_TEXTS
from engine_server.model_sources.gguf.pre_tokenizers import DEFAULT, PRE_TOKENIZERS

if TYPE_CHECKING:
    from transformers import TokenizersBackend

    from engine_server.model_sources.gguf.file import GgufFile

# Of the file's settings. transformers would give some architectures another split, whatever the file has.
CONVERTED = {"converted_from": "gguf"}
PREFIX = "tokenizer.ggml."
SPACE = "▁"
# llama.cpp's types of tokens.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
# A template's name becomes that of a file.
TEMPLATE_NAME = re.compile(r"\w[\w-]{0,63}", re.ASCII)
OWN_TOKENIZER = "the engine's --tokenizer FOLDER takes another tokenizer in its place"


class Defaults(NamedTuple):
    """What llama.cpp takes where the file has no key: whether BOS is added, and the ids of marks."""

    add_bos: bool
    bos: int | None
    eos: int
    unk: int | None = None


def read_tokenizer(file: GgufFile) -> TokenizersBackend:
    """Return the tokenizer with its chat templates.

    Raises ModelSourceError for one whose ids are not known to be llama.cpp's, and for keys that don't fit each other.
    """
    from transformers import TokenizersBackend

    tokens = _tokens(file)
    backend, defaults = _backend(file, tokens)
    backend.add_special_tokens([*_added_tokens(file, tokens, special=True)])
    backend.add_tokens([*_added_tokens(file, tokens, special=False)])
    marks = {
        name: _mark(file, key, default, tokens)
        for name, key, default in (
            ("bos_token", "bos", defaults.bos),
            ("eos_token", "eos", defaults.eos),
            ("unk_token", "unknown", defaults.unk),
            ("pad_token", "padding", None),
        )
    }
    add_bos = file.get(PREFIX + "add_bos_token", bool)
    first = _added_mark(file, "bos", defaults.add_bos if add_bos is None else add_bos, marks["bos_token"])
    last = _added_mark(file, "eos", bool(file.get(PREFIX + "add_eos_token", bool)), marks["eos_token"])
    ends = {mark: tokens.index(mark) for mark in (*first, *last)}
    backend.post_processor = processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, *first, "$B:1", *last],
        special_tokens=[*ends.items()],
    )
    kind: Any = TokenizersBackend
    tokenizer: TokenizersBackend = kind(
        tokenizer_object=backend, clean_up_tokenization_spaces=False, **marks, **CONVERTED
    )
    tokenizer.chat_template = read_templates(file)
    return tokenizer


def is_converted(folder: Path) -> bool:
    """Return True if the tokenizer in a folder is one of `read_tokenizer`, and to be loaded as it was saved."""
    try:
        settings = json.loads((folder / TOKENIZER_CONFIG).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(settings, dict) and settings.items() >= CONVERTED.items()


def read_templates(file: GgufFile) -> str | dict[str, str] | None:
    """Return the chat template, or all by their names if there are several. Raises ModelSourceError."""
    key = "tokenizer.chat_template"
    found = {"default": file.get(key, str)}
    for name in file.names(key + "."):
        if not TEMPLATE_NAME.fullmatch(name):
            raise file.error("a key's end after tokenizer.chat_template.", name, "letters, digits, _ and -")
        found[name] = file.get(f"{key}.{name}", str)
    templates = {name: text for name, text in found.items() if text is not None}
    return templates.get("default") if templates.keys() <= {"default"} else templates


def _tokens(file: GgufFile) -> list[str]:
    """Return the texts of all tokens, none twice. Raises ModelSourceError."""
    tokens = file.items(PREFIX + "tokens", str)
    if not tokens:
        raise file.error(PREFIX + "tokens", tokens, "the texts of the vocabulary")
    tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
    if len(set(tokens)) < len(tokens):
        twice = next(token for token, count in Counter(tokens).items() if count > 1)
        raise file.error(PREFIX + "tokens", twice, "each text once")
    return tokens


def _backend(file: GgufFile, tokens: list[str]) -> tuple[Tokenizer, Defaults]:
    model = file.get(PREFIX + "model", str)
    match model:
        case "gpt2":
            return _byte_level(file, tokens)
        case "llama":
            return _sentence_pieces(file, tokens)
        case "gemma4":
            return _gemma4(file, tokens)
        case _:
            raise file.error(PREFIX + "model", model, f"gpt2, llama or gemma4; {OWN_TOKENIZER}")


def _byte_level(file: GgufFile, tokens: list[str]) -> tuple[Tokenizer, Defaults]:
    name = file.get(PREFIX + "pre", str)
    pre = DEFAULT if name is None else PRE_TOKENIZERS.get(name)
    if pre is None:
        raise file.error(PREFIX + "pre", name, f"{', '.join(sorted(PRE_TOKENIZERS))}; {OWN_TOKENIZER}")
    backend = Tokenizer(BPE(_ids(tokens), _merges(file), ignore_merges=pre.ignore_merges))
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns]
    bytes_as_letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_as_letters])
    backend.decoder = decoders.ByteLevel()
    return backend, Defaults(pre.add_bos, pre.bos, eos=11)


def _sentence_pieces(file: GgufFile, tokens: list[str]) -> tuple[Tokenizer, Defaults]:
    from transformers.tokenization_utils_base import generate_merges

    scores = file.items(PREFIX + "scores", float)
    if scores is None or len(scores) < len(tokens):
        raise file.error(PREFIX + "scores", scores, f"{len(tokens)} numbers, one for each token")
    vocabulary = _ids(tokens)
    merges = generate_merges(vocabulary, dict(zip(tokens, scores, strict=False)))
    backend = Tokenizer(BPE(vocabulary, merges, byte_fallback=True))
    prefixed = file.get(PREFIX + "add_space_prefix", bool) is not False
    spaces = normalizers.Replace(" ", SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefixed else spaces
    backend.decoder = _decoder_of_pieces(prefixed)
    return backend, Defaults(add_bos=True, bos=1, eos=2, unk=0)


def _gemma4(file: GgufFile, tokens: list[str]) -> tuple[Tokenizer, Defaults]:
    """Return a tokenizer whose merges are those of whole lines."""
    backend = Tokenizer(BPE(_ids(tokens), _merges(file), byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", SPACE)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\n]+|\n+"), "isolated")
    backend.decoder = _decoder_of_pieces(prefixed=False)
    return backend, Defaults(add_bos=True, bos=None, eos=-1)


def _decoder_of_pieces(prefixed: bool) -> decoders.Decoder:
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefixed else steps)


def _ids(tokens: list[str]) -> dict[str, int]:
    return {token: token_id for token_id, token in enumerate(tokens)}


def _merges(file: GgufFile) -> list[tuple[str, str]]:
    """Return the pairs that are merged, the first ones first. Raises ModelSourceError."""
    lines = file.items(PREFIX + "merges", str)
    if lines is None:
        raise file.error(PREFIX + "merges", None, "pairs of texts")
    pairs: dict[tuple[str, str], None] = {}
    for line in lines:
        space = line.find(" ", 1)
        if space < 0:
            raise file.error(PREFIX + "merges", line, "two texts with a space between")
        pairs.setdefault((line[:space], line[space + 1 :]))
    return [*pairs]


def _added_tokens(file: GgufFile, tokens: list[str], special: bool) -> list[AddedToken]:
    """Return the tokens that a text names: special ones are those of control, unknown and known texts."""
    types = file.items(PREFIX + "token_type", int) or [NORMAL] * len(tokens)
    if len(types) < len(tokens):
        raise file.error(PREFIX + "token_type", types, f"{len(tokens)} numbers, one for each token")
    # llama.cpp knows by the model's name alone that Phi-3's marks take the white space after them.
    name = (file.get("general.name", str) or "").lower()
    strips = "phi-3" in name or "phi3" in name
    found = []
    for token, kind in zip(tokens, types, strict=False):
        is_special = kind in (CONTROL, UNKNOWN) or token in SPECIAL_TEXTS
        if is_special == special and (is_special or kind == USER_DEFINED):
            rstrip = strips and token not in ("<unk>", "<s>", "<|endoftext|>")
            found.append(AddedToken(token, special=special, normalized=False, rstrip=rstrip))
    return found


def _mark(file: GgufFile, key: str, default: int | None, tokens: list[str]) -> str | None:
    """Return the text of a mark by its key, or the default one if the vocabulary has it. Raises ModelSourceError."""
    token_id = file.get(f"{PREFIX}{key}_token_id", int)
    if token_id is not None and not 0 <= token_id < len(tokens):
        raise file.error(f"{PREFIX}{key}_token_id", token_id, f"a token, of 0 to {len(tokens) - 1}")
    if token_id is None:
        token_id = default
    return tokens[token_id] if token_id is not None and 0 <= token_id < len(tokens) else None


def _added_mark(file: GgufFile, name: str, wanted: bool, mark: str | None) -> list[str]:
    """Return what is added to a text at one end. Raises ModelSourceError for a mark that the file doesn't have."""
    if not wanted:
        return []
    if mark is None:
        raise file.error(f"{PREFIX}{name}_token_id", None, f"a token, which is added to each text ({name})")
    return [mark]
