"""Texts over which the tokenizers of GGUF files are compared with llama.cpp's, the same in each run."""

import random

SCRIPTS = (
    "The quick brown fox jumps over the lazy dog", "Größe für Füße", "œuvre naïve déjà-vu", "Zażółć gęślą jaźń",
    "Cafe\u0301 re\u0301sume\u0301 A\u030angstro\u0308m", "Việt Nam đẹp lắm", "İstanbul ışığı", "ǅungla ǈubav",
    "Съешь же ещё этих мягких французских булок", "Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία", "Հայաստան", "საქართველო",
    "ᲡᲐᲥᲐᲠᲗᲕᲔᲚᲝ", "السَّلَامُ عَلَيْكُمْ", "سلام دنیا", "שָׁלוֹם עוֹלָם", "שלום", "नमस्ते दुनिया",
    "বাংলা ভাষা", "தமிழ் மொழி", "తెలుగు", "ਪੰਜਾਬੀ", "සිංහල", "ภาษาไทยไม่มีช่องว่าง", "ພາສາລາວ", "ភាសាខ្មែរ",
    "မြန်မာဘာသာ", "ቋንቋ", "བོད་སྐད",
    "ᠮᠣᠩᠭᠣᠯ", "한국어 문장입니다", "\u1112\u1161\u11ab\u1100\u1173\u11af", "日本語の文章です",
    "カタカナ", "ﾊﾝｶｸ", "中文分词测试", "繁體中文，標點。", "𠀀𠀁",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "ＦＵＬＬｗｉｄｔｈ", "ⰀⰁⰂ", "ꦗꦮ", "ʰʷʲ", "ªº",
    "don't WON'T we'Re I'LL they'd it'S o'clock 'ſ ’s", "HTMLParser camelCase PascalCase SCREAMING_SNAKE iOS",
    "ÀÉÎ àéî ÀéÎ", "ЗАГЛАВНЫЕ строчные СмешАнные", "straße STRASSE ẞ",
)  # fmt: skip
NUMBERS = (
    "0",
    "7",
    "42",
    "123",
    "2024",
    "12345",
    "1234567890",
    "3.14159",
    "1,000,000",
    "1e-10",
    "0xFF",
    "50%",
    "$9.99",
    "٣٤٥",
    "१२३४",
    "〇一二三",
    "½ ¾",
    "Ⅷ ⅷ",
    "²³¹",
    "①②",
    "１２３４",
    "༣",
    "𝟘𝟙𝟚",
    "1st 2nd",
    "v1.2.3",
    "10-20",
    "12:34:56",
)
CODE = (
    "def f(x):\n    return x + 1\n", "if (a != b) { c++; } // done", "#include <stdio.h>\r\n", "for(;;){}\n\n\n",
    "SELECT * FROM t WHERE id=1;", "<div class=\"a\">&nbsp;</div>", "x->y::z",
    "a/b/c", "a//b", "https://example.com/?q=1&r=2",
    "user.name@example.com", "#hashtag @mention", "`code`",
    "```python\n", "{\"k\": [1, 2, null]}", "\\n \\t", "~/.bashrc",
    "a|b", "a^b", "$HOME", "{{x}}", "x=1;y=2", "!!!", "...",
    "---", "===", "/* */", "%d %s", "()[]{}", "'quoted'", "\"q\"",
    ".method", "#define", "-flag --option", "/path\n", "/\n/", "!\r\n",
)  # fmt: skip
SPACES = (
    " ", "  ", "   ", "    ", "     ", " " * 8, " " * 17, "\t",
    "\t\t", " \t ", "\n", "\n\n", "\n\n\n", " \n", "\n ", "  \n  ",
    "\r\n", "\r", "\r\n\r\n", " \r\n ", "\u00a0", "\u2003",
    "\u3000", "\u2028", "\u0085", "\u000b", "\u000c", "\u200b", "\u202f ",
)  # fmt: skip
SYMBOLS = (
    "😀", "👩‍👩‍👧‍👦", "👍🏽", "🇩🇪🇫🇷", "❤️", "☃", "→ ⇒",
    "≤ ≥ ≠", "∑∫√", "€ £ ¥ ₹", "© ® ™", "° ′ ″", "… – —", "“x” ‘y’ «z»",
    "、。！？", "（全角）", "・ー〜", "।", "؟ ، ؛", "۔", "¿ ¡",
    "\ufe0f", "\u0301", "\u20e3", "\u0000", "\u0001", "\u007f", "\ufeff",
    "\ufffd", "\ue000", "\U0010fffd", "±×÷", "§¶", "^ ` ~ ¨", "_", "▁", "Ġ Ċ", "〈〉", "︰﹏", "㍿", "⠿", "♪",
)  # fmt: skip
MARKS = (
    "<s>", "</s>", "<|mark|>", "<|plain|>", "<unk>", "<|im_end|>", "<|endoftext|>", "<|end", "<s", "<0x0A>", "[INST]",
    "<think>",
)  # fmt: skip
NUM_TEXTS = 2000


def texts() -> list[str]:
    """Return each fragment alone, those of scripts and code between spaces, and random sequences of fragments."""
    fragments = [*SCRIPTS, *NUMBERS, *CODE, *SPACES, *SYMBOLS, *MARKS]
    found = ["", *fragments, *(f" {text} " for text in (*SCRIPTS, *NUMBERS, *CODE, *SYMBOLS))]
    source = random.Random(0)
    kinds = (SCRIPTS, SCRIPTS, NUMBERS, CODE, SPACES, SPACES, SYMBOLS, MARKS)
    while len(found) < NUM_TEXTS:
        count = 2 + int(source.random() * 7)
        chosen = [kinds[int(source.random() * len(kinds))] for _ in range(count)]
        found.append("".join(_part(kind[int(source.random() * len(kind))], source) for kind in chosen))
    return found


def _part(text: str, source: random.Random) -> str:
    """Return the text, or its beginning."""
    return text if source.random() < 0.6 else text[: 1 + int(source.random() * len(text))]
