"""The vocabulary of a GGUF file with model kind `gpt2`: pieces, their kinds, special ids.

Holds the checked `tokenizer.ggml.*` values and the rules by which llama.cpp finds the tokens that
end a generation. Does not encode or decode. Called by `tokenizer` and `chat_template`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

from gguf.constants import Keys

from numamirror.errors import ModelFileError, UnsupportedError
from numamirror.gguf_metadata import Metadata, describe_value, shown

KNOWN_MODELS = ("gpt2",)
NO_VOCABULARY = ("no_vocab", "none")

_TOKENS, _TYPES, _MERGES = Keys.Tokenizer.LIST, Keys.Tokenizer.TOKEN_TYPE, Keys.Tokenizer.MERGES

_EOT_NAMES = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
    "<EOT>", "_<EOT>", "[EOT]", "<end_of_utterance>", "<｜end▁of▁sentence｜>",  # noqa: RUF001
)  # fmt: skip
_END_NAMES = (
    *_EOT_NAMES, "<|eom_id|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "[EOS]",
    "<eos>", "<turn|>", "<|tool_response>",
)  # fmt: skip
_FILL_IN_NAMES = (
    (Keys.Tokenizer.FIM_PAD_ID, ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]")),
    (
        Keys.Tokenizer.FIM_REP_ID,
        ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    ),
    (Keys.Tokenizer.FIM_SEP_ID, ("<|file_sep|>",)),
)
_HARMONY = ({"<|return|>", "<|call|>"}, {"<|call|>", "<|flush|>"}, {"<|calls|>", "<|flush|>"})


class TokenKind(IntEnum):
    """GGUF's `token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """What `tokenizer.ggml.*` says, checked.

    Attributes:
        pieces: Text of each token as the file has it (normal tokens in the byte alphabet).
        ids: Piece to id.
        controls: Ids that only a template or the caller may write: control and unknown tokens.
        user_defined: Ids whose text is always matched whole.
        silent: Ids without text: unused, byte and undefined kinds.
        merges: Pairs of pieces, best first.
        pre: `tokenizer.ggml.pre`, "default" when the file has none.
        bos_id: First token of a text, if the file names one.
        eos_id: Last token of a text, if the file names one.
        end_ids: Tokens that end a generation.
    """

    pieces: list[str]
    ids: Mapping[str, int]
    controls: frozenset[int]
    user_defined: frozenset[int]
    silent: frozenset[int]
    merges: list[tuple[str, str]]
    pre: str
    bos_id: int | None
    eos_id: int | None
    end_ids: frozenset[int]


def read_vocabulary(metadata: Metadata) -> Vocabulary | None:
    """Reads and checks the vocabulary of a file.

    Args:
        metadata: The file's metadata.

    Returns:
        The vocabulary, or None when the file has none.

    Raises:
        UnsupportedError: The tokenizer is of a kind that is not known here.
        ModelFileError: A key is missing or contradicts another; the message names it.
    """
    if not _has_vocabulary(metadata):
        return None
    pieces = read_pieces(metadata)
    ids = {piece: token for token, piece in enumerate(pieces)}
    if len(ids) != len(pieces):
        raise _duplicate(pieces)
    kinds = _read_kinds(metadata, len(pieces))
    end_ids = _end_ids(metadata, ids, kinds)
    controls = _of_kinds(kinds, TokenKind.CONTROL, TokenKind.UNKNOWN) | end_ids
    silent = _of_kinds(kinds, TokenKind.UNDEFINED, TokenKind.UNUSED, TokenKind.BYTE)
    return Vocabulary(
        pieces=pieces,
        ids=MappingProxyType(ids),
        controls=controls,
        user_defined=_of_kinds(kinds, TokenKind.USER_DEFINED) - controls,
        silent=silent - controls,
        merges=_read_merges(metadata),
        pre=metadata.get_str(Keys.Tokenizer.PRE, "default"),
        bos_id=read_id(metadata, Keys.Tokenizer.BOS_ID, len(pieces)),
        eos_id=read_id(metadata, Keys.Tokenizer.EOS_ID, len(pieces)),
        end_ids=end_ids,
    )


def _has_vocabulary(metadata: Metadata) -> bool:
    """Whether the file has one; refuses a kind that is not known."""
    model = metadata.get_str(Keys.Tokenizer.MODEL, NO_VOCABULARY[0])
    if model in NO_VOCABULARY:
        return False
    if model not in KNOWN_MODELS:
        raise UnsupportedError(
            f"{Keys.Tokenizer.MODEL} is {shown(model)}, known: {', '.join(KNOWN_MODELS)}"
        )
    return True


def read_pieces(metadata: Metadata) -> list[str]:
    """Text of each token; an empty one gets the name that llama.cpp gives it.

    Raises:
        ModelFileError: The list is missing, empty or holds something else than strings.
    """
    pieces = metadata.get_strs(_TOKENS)
    if not pieces:
        raise ModelFileError(f"{_TOKENS} is empty, expected at least one token")
    if "" in pieces:
        return [piece or f"[EMPTY_{token}]" for token, piece in enumerate(pieces)]
    return pieces


def read_id(metadata: Metadata, key: str, n_tokens: int) -> int | None:
    """A special token's id, None when the file does not name one.

    Raises:
        ModelFileError: It is no integer or not below `n_tokens`.
    """
    return metadata.get_int(key, maximum=n_tokens - 1) if key in metadata else None


def _read_kinds(metadata: Metadata, n_tokens: int) -> tuple[int, ...]:
    if _TYPES in metadata and not hasattr(metadata[_TYPES], "__len__"):
        raise ModelFileError(f"{_TYPES} is {describe_value(metadata[_TYPES])}, expected an array")
    return metadata.get_ints(_TYPES, n_tokens, TokenKind.NORMAL)


def _of_kinds(kinds: tuple[int, ...], *wanted: TokenKind) -> frozenset[int]:
    return frozenset(token for token, kind in enumerate(kinds) if kind in wanted)


def _read_merges(metadata: Metadata) -> list[tuple[str, str]]:
    merges = []
    for rank, merge in enumerate(metadata.get_strs(_MERGES)):
        left, _, right = merge.partition(" ")
        if not left or not right or " " in right:
            raise ModelFileError(
                f"{_MERGES}[{rank}] is {shown(merge)}, expected two pieces with a space between"
            )
        merges.append((left, right))
    return merges


def _duplicate(pieces: list[str]) -> ModelFileError:
    seen: dict[str, int] = {}
    for token, piece in enumerate(pieces):
        if piece in seen:
            return ModelFileError(
                f"{_TOKENS} has {shown(piece)} twice, at {seen[piece]} and {token}, expected once"
            )
        seen[piece] = token
    raise AssertionError("called for pieces that are all different")


def _end_ids(metadata: Metadata, ids: Mapping[str, int], kinds: tuple[int, ...]) -> frozenset[int]:
    """Tokens that end a generation: those that the keys name, and well-known names.

    As llama.cpp, the well-known names count whatever kind the file gives them. "</s>" counts only
    as a control token: as a normal one it is the end of a struck-out text in HTML.

    Source: llama.cpp, `src/llama-vocab.cpp`, `special_eog_ids`.
    """
    found = {ids[name] for name in _END_NAMES if name in ids}
    struck = ids.get("</s>")
    if struck is not None and kinds[struck] == TokenKind.CONTROL and "<|tool_response>" not in ids:
        found.add(struck)
    for key, names in _FILL_IN_NAMES:
        token = read_id(metadata, key, len(ids))
        named = [ids[name] for name in names if name in ids]
        found.update(named[:1] if token is None else [token])
    for key in (Keys.Tokenizer.EOS_ID, Keys.Tokenizer.EOT_ID, Keys.Tokenizer.EOM_ID):
        token = read_id(metadata, key, len(ids))
        if token is not None:
            found.add(token)
    # in these families <|end|> closes a message, not the answer
    if any(names <= ids.keys() for names in _HARMONY) and "<|end|>" in ids:
        found.discard(ids["<|end|>"])
    return frozenset(found)
