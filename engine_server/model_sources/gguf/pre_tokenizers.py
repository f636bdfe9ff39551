"""How byte-level vocabularies in GGUF files split a text into words, by `tokenizer.ggml.pre`.

Each name has the ids of llama.cpp over the texts of tests/model_sources/gguf_texts.py, which
tests/model_sources/gguf_digests.py has checked. The patterns are those that the models' authors published, or, where
llama.cpp reads them otherwise, with its meaning: it ignores the case of contractions in ASCII alone, and asks of a
letter in mixed case only that it is no small, or no capital, letter of ASCII; and a range has no white space.
"""

from typing import NamedTuple

CONTRACTIONS = "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
# A word in which small letters follow capital ones, and one of capital letters.
MIXED = r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+"
CAPITALS = r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*"
SYMBOLS_AND_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
ASCII_PUNCTUATION = r"!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|{LETTERS}|\p{{N}}{{1,3}}|{SYMBOLS}|{SPACES}"
QWEN2 = rf"{CONTRACTIONS}|{LETTERS}|\p{{N}}|{SYMBOLS}|{SPACES}"
QWEN35 = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACES}"
)
GPT4O = (
    rf"{MIXED}(?:{CONTRACTIONS})?|{CAPITALS}(?:{CONTRACTIONS})?|\p{{N}}{{1,3}}|{SYMBOLS_AND_SLASHES}|{SPACES}"
)
TEKKEN = rf"{MIXED}|{CAPITALS}|\p{{N}}|{SYMBOLS_AND_SLASHES}|{SPACES}"
BAILING = rf"{CONTRACTIONS}|{LETTERS}|\p{{N}}|{SYMBOLS}|\s*[\r\n]|\s+(?!\S)|\s+"
SEED = rf"{CONTRACTIONS}|{LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{SPACES}"
JAIS2 = (
    rf"{CONTRACTIONS}|{LETTERS}|\p{{N}}{{1,3}}|{SYMBOLS}|\s*[\r\n]+"
    r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)"
    r"|\s{1,2}(?!\S)|\s"
)
EXAONE_MOE = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
# The words between marks of sentences.
POEM = r" ?[^(\s|.,!?…。，、।۔،)]+"
# Cased letters, which DeepSeek lists one by one.
CASED = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdb"
    "ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
EAST_ASIAN = r"[一-龥ࠀ-一가-퟿&&\S]+"
DEEPSEEK3_WORDS = (
    rf"[{ASCII_PUNCTUATION}][A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}"
)
KANA_AND_HAN = "[一-龥぀-ゟ゠-ヿ]+"


class PreTokenizer(NamedTuple):
    """A split of texts into words, and what llama.cpp does with such a vocabulary unless the file says otherwise."""

    # Each cuts the pieces of the one before it: its matches are pieces, and the texts between them.
    patterns: tuple[str, ...]
    # A word that is in the vocabulary is one token, whatever the merges.
    ignore_merges: bool = False
    add_bos: bool = False
    # The token of BOS where the file has no key.
    bos: int | None = 11


GPT2_DIGITS = PreTokenizer((r"\p{N}", GPT2))
PLAIN_GPT2 = PreTokenizer((GPT2,))
DIGIT = PreTokenizer((QWEN2,))
DEEPSEEK3 = PreTokenizer((r"\p{N}{1,3}", KANA_AND_HAN, DEEPSEEK3_WORDS))
LLAMA = PreTokenizer((LLAMA3,), ignore_merges=True, add_bos=True)
# That of a file without a name.
DEFAULT = PreTokenizer((r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))

PRE_TOKENIZERS = {
    "default": DEFAULT,
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
        LLAMA,
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe"), PreTokenizer((LLAMA3,))),
    "chatglm-bpe": PreTokenizer((LLAMA3,), bos=None),
    "glm4": PreTokenizer((LLAMA3,), ignore_merges=True, bos=None),
    "minicpm5": PreTokenizer(
        (r"\p{N}{1,3}", rf"{CONTRACTIONS}|{LETTERS}|\p{{N}}+|{SYMBOLS}|{SPACES}"), ignore_merges=True
    ),
    "jais-2": PreTokenizer((JAIS2,)),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"),
        DIGIT,
    ),
    "qwen35": PreTokenizer((QWEN35,)),
    "ufakzeka": PreTokenizer((rf"{LETTERS}|\p{{N}}|{SYMBOLS}|{SPACES}",)),
    "laguna": PreTokenizer((r"[^\n]+|\n+", QWEN2)),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), PreTokenizer((BAILING,))),
    "seed-coder": PreTokenizer((SEED,)),
    "exaone-moe": PreTokenizer((EXAONE_MOE,)),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), PreTokenizer((GPT4O,))),
    "tekken": PreTokenizer((TEKKEN,), ignore_merges=True, add_bos=True),
    **dict.fromkeys(
        (
            "gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "modern-bert", "mpt", "olmo", "jais", "trillion",
            "granite-docling", "exaone4", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "jina-v1-en",
            "jina-v2-code", "roberta-bpe",
        ),
        PLAIN_GPT2,
    ),
    **dict.fromkeys(
        ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"),
        GPT2_DIGITS,
    ),
    "falcon": PreTokenizer((r"[\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]")),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{CASED}]+",
            r"\s?[!-/:-~！-／：-～‘-‟、-。]+",
            r"\s+$",
            EAST_ASIAN,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EAST_ASIAN, r"\p{N}")),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), DEEPSEEK3),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), PreTokenizer((POEM,))),
    "viking": PreTokenizer((POEM, r"\p{N}")),
    "superbpe": PreTokenizer((r"\p{N}+", "(?=([0-9]{3})+(?![0-9]))")),
    "chameleon": PreTokenizer(
        (
            "<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]", GPT2,
        ),
        add_bos=True,
    ),
}  # fmt: skip
