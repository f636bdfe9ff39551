"""Small tokenizers of the kinds that models have."""

import string
from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from engine_server.requests.messages import Vocabulary
from engine_server.structured.vocabulary import read_vocabulary

TEXT = ['{"name": "Zoë", "age": 31, "tags": ["blue", "green"]}', "the river ran 42 miles, then 7 more"] * 20
SPECIAL = ["<s>", "</s>", "<pad>"]
EOS = 1


def byte_level(marks: Sequence[str] = ("<think>",)) -> Tokenizer:
    """Return a tokenizer like GPT-2's. marks: texts that are tokens, and not special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=360, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in marks])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Return a tokenizer like Llama 2's: spaces are written as a character, unknown characters as bytes."""
    names = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    names += ["▁the", "▁river", "▁4", '":', '▁"', '{"', "}", *string.printable.replace("▁", "")[:94]]
    vocabulary = {name: index for index, name in enumerate(dict.fromkeys(names))}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<pad>", byte_fallback=True))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def word_piece() -> Tokenizer:
    """Return a tokenizer like BERT's: a token starts a word, or continues one."""
    letters = [*string.digits, *string.ascii_letters, *'{}[]":,.-']
    names = [*SPECIAL, "the", "river", "##ing", *letters, *(f"##{letter}" for letter in letters)]
    vocabulary = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="<pad>"))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


KINDS = {"byte level": byte_level, "byte fallback": byte_fallback, "WordPiece": word_piece}


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """Return the vocabulary for a model with a few logits more than the tokenizer has tokens."""
    return read_vocabulary(tokenizer, tokenizer.get_vocab_size() + 5, [EOS])
