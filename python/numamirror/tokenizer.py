"""Text to token ids and back, for the byte-level BPE vocabularies of GGUF files.

Control tokens are split off here, before the `tokenizers` library sees a text, and are not in its
vocabulary: without `parse_special` no text becomes one. User-defined tokens are always matched.
Both are looked for as llama.cpp does, the longest first over the whole text. Ids equal llama.cpp's;
like it, a byte that the vocabulary lacks is dropped. Knows no templates and no model. Called by
`engine`, `generate` and the commands.

Source: llama.cpp, `src/llama-vocab.cpp`, `tokenizer_st_partition`, `tokenize`, `token_to_piece`.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping

from gguf.constants import Keys

from numamirror.bounds import wrong
from numamirror.errors import ModelFileError
from numamirror.gguf_metadata import Metadata
from numamirror.pre_tokenizer import build_bpe, byte_alphabet, find_pre_kind
from numamirror.token_ids import checked_id, checked_ids
from numamirror.vocabulary import Vocabulary, read_vocabulary


class Tokenizer:
    """A tokenizer; made by `from_metadata`.

    Args:
        vocabulary: What the file says.
        add_bos: Whether texts start with BOS.
        add_eos: Whether texts end with EOS.

    Attributes:
        n_tokens: How many ids there are.
        bos_id: First token of a text, if the file names one.
        eos_id: Last token of a text, if the file names one.
        end_ids: Tokens that end a generation.
        add_bos: Whether `encode` starts with BOS.
        add_eos: Whether `encode` ends with EOS.
    """

    def __init__(self, vocabulary: Vocabulary, add_bos: bool, add_eos: bool) -> None:
        self._pieces = vocabulary.pieces
        self._controls = vocabulary.controls
        self._user_defined = vocabulary.user_defined
        self._silent = vocabulary.silent
        self._bpe = build_bpe(vocabulary, find_pre_kind(vocabulary.pre))
        self._alphabet = byte_alphabet()
        # by length in bytes, as llama.cpp; ids make the order of equals certain
        specials = sorted(
            vocabulary.controls | vocabulary.user_defined,
            key=lambda token: (-len(_to_bytes(self._pieces[token])), token),
        )
        self._specials = [(self._pieces[token], token) for token in specials]
        self._always = [pair for pair in self._specials if pair[1] in self._user_defined]
        self.n_tokens = len(self._pieces)
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.end_ids = vocabulary.end_ids
        self.add_bos = add_bos
        self.add_eos = add_eos

    @classmethod
    def from_metadata(cls, metadata: Metadata) -> Tokenizer | None:
        """The tokenizer of a file.

        Args:
            metadata: The file's metadata.

        Returns:
            The tokenizer, or None when the file has none.

        Raises:
            UnsupportedError: It is of a kind that is not known here; the rest of the file may be
                usable all the same.
            ModelFileError: A key is missing or contradicts another; the message names it.
        """
        vocabulary = read_vocabulary(metadata)
        if vocabulary is None:
            return None
        add_bos = metadata.get_bool(Keys.Tokenizer.ADD_BOS, False)
        if Keys.Tokenizer.ADD_BOS not in metadata:
            kind = find_pre_kind(vocabulary.pre)
            add_bos = kind.add_bos and vocabulary.bos_id is not None
        add_eos = metadata.get_bool(Keys.Tokenizer.ADD_EOS, False)
        for name, wanted, token in (
            ("bos", add_bos, vocabulary.bos_id),
            ("eos", add_eos, vocabulary.eos_id),
        ):
            if wanted and token is None:
                raise ModelFileError(
                    f"tokenizer.ggml.add_{name}_token is true, but tokenizer.ggml.{name}_token_id "
                    "is missing"
                )
        return cls(vocabulary, add_bos, add_eos)

    @property
    def control_texts(self) -> tuple[str, ...]:
        """The texts of all control tokens, longest first."""
        return tuple(text for text, token in self._specials if token in self._controls)

    def encode(
        self,
        text: str,
        add_special: bool = True,
        parse_special: bool = False,
        twins: Mapping[int, int] | None = None,
    ) -> list[int]:
        """Token ids of a text.

        Args:
            text: Any text; half of a surrogate pair counts as U+FFFD.
            add_special: Add BOS and EOS as the file asks.
            parse_special: Read control tokens in the text as what they are; else they are text.
            twins: Code points that stand for others and so never match a control token; they are
                put back once control tokens are found (see `chat_template`).

        Returns:
            The ids; none for an empty text, but for BOS and EOS.

        Raises:
            RequestError: It is no text.
        """
        if not isinstance(text, str):
            raise wrong("text", text, "a text")
        ids = [self.bos_id] if add_special and self.add_bos and self.bos_id is not None else []
        fragments = self._split(_whole(text), self._specials if parse_special else self._always)
        for fragment in fragments:
            if isinstance(fragment, int):
                ids.append(fragment)
            elif twins:
                ids += self._encode_twins(fragment.translate(twins))
            else:
                ids += self._merge(fragment)
        if add_special and self.add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of token ids; bytes that are no UTF-8 become U+FFFD.

        Args:
            ids: Token ids.
            skip_special: Leave control tokens out.

        Raises:
            RequestError: One is no token id.
        """
        checked = checked_ids(ids, self.n_tokens)
        pieces = [b"" if skip_special and self.is_control(t) else self.piece(t) for t in checked]
        return b"".join(pieces).decode("utf-8", "replace")

    def stream(self, skip_special: bool = False) -> TokenStream:
        """A decoder for ids that come one by one.

        Args:
            skip_special: Leave control tokens out.
        """
        return TokenStream(self, skip_special)

    def is_control(self, token: int) -> bool:
        """Whether a token is a control token: never part of a user's text.

        Raises:
            RequestError: The id is out of range.
        """
        return self._checked(token) in self._controls

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for; part of a character, perhaps.

        Raises:
            RequestError: The id is out of range.
        """
        token = self._checked(token)
        text = self._pieces[token]
        if token in self._silent:
            return b""
        if token in self._controls or token in self._user_defined:
            return _to_bytes(text)
        try:
            return bytes(map(self._alphabet.__getitem__, text))
        except KeyError:  # not in the byte alphabet: the text itself
            return _to_bytes(text)

    def _checked(self, token: int) -> int:
        return checked_id(token, self.n_tokens)

    def _encode_twins(self, text: str) -> list[int]:
        """Ids of a text that held twins: user-defined tokens could not be seen in it before."""
        ids: list[int] = []
        for fragment in self._split(text, self._always):
            ids += [fragment] if isinstance(fragment, int) else self._merge(fragment)
        return ids

    def _merge(self, text: str) -> list[int]:
        """Ids of a text without special tokens."""
        ids = self._bpe.encode(text, add_special_tokens=False).ids
        if max(ids, default=0) < self.n_tokens:
            return ids
        return [token for token in ids if token < self.n_tokens]

    @staticmethod
    def _split(text: str, specials: list[tuple[str, int]]) -> list[str | int]:
        """Cuts special tokens out: fragments of text, and ids between them."""
        fragments: list[str | int] = [text] if text else []
        for special, token in specials:
            if special not in text:
                continue
            cut: list[str | int] = []
            for fragment in fragments:
                if isinstance(fragment, int):
                    cut.append(fragment)
                    continue
                for nth, part in enumerate(fragment.split(special)):
                    cut += [token] if nth else []
                    cut += [part] if part else []
            fragments = cut
        return fragments


class TokenStream:
    """Text of ids that come one by one; never half a character.

    A byte that proves the ones before it wrong turns them into U+FFFD; until then they are held.

    Args:
        tokenizer: Gives the pieces.
        skip_special: Leave control tokens out.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The characters that are complete with this token.

        Raises:
            RequestError: The id is out of range.
        """
        if self._skip_special and self._tokenizer.is_control(token):
            return ""
        return self._decoder.decode(self._tokenizer.piece(token))

    def flush(self) -> str:
        """What is held, at the end: an incomplete character is U+FFFD."""
        return self._decoder.decode(b"", final=True)


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _whole(text: str) -> str:
    """The text with surrogate pairs joined and single surrogates replaced."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
