"""How a text is cut into words before byte pairs are merged: one table of `tokenizer.ggml.pre`.

Holds the patterns and builds the `tokenizers` object from them. Knows no special tokens: texts come
here without any. Called by `tokenizer`.

Source: llama.cpp, `src/llama-vocab.cpp`, `llm_tokenizer_bpe` (patterns) and `impl::load` (names,
`ignore_merges`, `add_bos`).
"""

from __future__ import annotations

from dataclasses import dataclass

import tokenizers
from gguf.constants import Keys
from tokenizers import models, pre_tokenizers

from numamirror.errors import ModelFileError, UnsupportedError
from numamirror.vocabulary import Vocabulary

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Unicode calls $+<=>^~| symbols, not punctuation
_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|]+"


@dataclass(frozen=True)
class PreKind:
    """One kind of pre-tokenizer.

    Attributes:
        patterns: Each cuts what the one before left; what lies between two matches is a word too.
        ignore_merges: A word that is a token is taken whole, whatever the merges say.
        add_bos: Whether texts start with BOS when the file does not say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_LLAMA3_KIND = PreKind((_LLAMA3,), ignore_merges=True, add_bos=True)

PRE_KINDS = {
    "default": PreKind((_PUNCTUATION, _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": PreKind((_GPT2,)),
    "llama-bpe": _LLAMA3_KIND,
    "llama-v3": _LLAMA3_KIND,
    "llama3": _LLAMA3_KIND,
    "smollm": PreKind((r"\p{N}", _GPT2)),
}
"""`tokenizer.ggml.pre` to what it means."""


def find_pre_kind(name: str) -> PreKind:
    """The kind that a file names.

    Raises:
        UnsupportedError: It is not known here.
    """
    if name not in PRE_KINDS:
        raise UnsupportedError(
            f"{Keys.Tokenizer.PRE} is {name!r:.80}, known: {', '.join(sorted(PRE_KINDS))}"
        )
    return PRE_KINDS[name]


def build_bpe(vocabulary: Vocabulary, kind: PreKind) -> tokenizers.Tokenizer:
    """Byte-level BPE over the vocabulary without its control tokens.

    Control tokens, and merges that would make one, are left out: no text can become one. A byte
    that is no token gets an id past the vocabulary, to be dropped by the caller: without one the
    library would drop it before merging and join its neighbours, which llama.cpp does not.

    Raises:
        ModelFileError: A merge needs a piece that is no token.
    """
    controls = {vocabulary.pieces[token] for token in vocabulary.controls}
    ids = {piece: token for piece, token in vocabulary.ids.items() if piece not in controls}
    for nth, character in enumerate(byte_alphabet()):
        ids.setdefault(character, len(vocabulary.pieces) + nth)
    merges = vocabulary.merges
    if any(_touches(merge, controls) for merge in merges):
        merges = [merge for merge in merges if not _touches(merge, controls)]
    try:
        model = models.BPE(vocab=ids, merges=merges, ignore_merges=kind.ignore_merges)
    except Exception as error:  # the library raises bare Exception
        raise ModelFileError(
            f"{Keys.Tokenizer.MERGES} does not fit {Keys.Tokenizer.LIST}: {error!s:.120}"
        ) from error
    bpe = tokenizers.Tokenizer(model)
    cuts = [pre_tokenizers.Split(tokenizers.Regex(p), "isolated") for p in kind.patterns]
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([*cuts, alphabet])
    return bpe


def _touches(merge: tuple[str, str], pieces: set[str]) -> bool:
    left, right = merge
    return left + right in pieces or left in pieces or right in pieces


def byte_alphabet() -> dict[str, int]:
    """Character to byte of GPT-2's alphabet: printable Latin-1 as itself, the rest from U+0100 up.

    Source: openai/gpt-2, `src/encoder.py`, `bytes_to_unicode`.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + n): byte for n, byte in enumerate(others)})
    return alphabet
