"""The text side of a model: its tokenizer and chat template, or why there is none.

Knows the file's metadata and no weights, so that text can be read and refused before anything is
loaded. Made by `engine.prepare`; `engine.Model` hands questions about text on to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from numamirror.chat_template import ChatTemplate
from numamirror.errors import ModelFileError, NumaMirrorError, UnsupportedError
from numamirror.gguf_metadata import Metadata
from numamirror.tokenizer import Tokenizer


class TextSide:
    """Tokenizer and template, each read when it is first asked for.

    A file whose tokenizer or template can't be used still runs; what needs them is refused.

    Args:
        metadata: The file's metadata.
        n_vocab: Width of the logits.
        template_source: A chat template to use in place of the file's.
    """

    def __init__(self, metadata: Metadata, n_vocab: int, template_source: str | None) -> None:
        self._metadata = metadata
        self._template_source = template_source
        self._n_vocab = n_vocab

    @property
    def n_vocab(self) -> int:
        """Width of the logits."""
        return self._n_vocab

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer; None when there is none that can be used."""
        found = self._tokenizer_or_reason
        return found if isinstance(found, Tokenizer) else None

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The chat template; None when there is none.

        Raises:
            ModelFileError: There is one that can't be used.
        """
        found = self._template_or_reason
        if isinstance(found, NumaMirrorError):
            raise found
        return found

    def require_tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            NumaMirrorError: There is none, with the reason.
        """
        found = self._tokenizer_or_reason
        if isinstance(found, NumaMirrorError):
            raise found
        return found

    def tokenize(
        self, text: str, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Token ids of a text; see `Model.tokenize`.

        Raises:
            RequestError: It is no text.
            NumaMirrorError: There is no usable tokenizer.
        """
        return self.require_tokenizer().encode(text, add_special, parse_special)

    def detokenize(self, ids: Iterable[int]) -> str:
        """The text of token ids.

        Raises:
            RequestError: One is no token id.
            NumaMirrorError: There is no usable tokenizer.
        """
        return self.require_tokenizer().decode(ids)

    @cached_property
    def _tokenizer_or_reason(self) -> Tokenizer | NumaMirrorError:
        try:
            tokenizer = Tokenizer.from_metadata(self._metadata)
        except NumaMirrorError as error:
            return error
        if tokenizer is None:
            return UnsupportedError(
                "the model has no tokenizer: text can't be read or written",
                hint="bench, plan and Model.logits work with token ids",
            )
        if tokenizer.n_tokens > self._n_vocab:
            return ModelFileError(
                f"tokenizer.ggml.tokens: {tokenizer.n_tokens} tokens for an embedding of "
                f"{self._n_vocab} rows"
            )
        return tokenizer

    @cached_property
    def _template_or_reason(self) -> ChatTemplate | NumaMirrorError | None:
        try:
            return ChatTemplate.from_metadata(self._metadata, self._template_source)
        except ModelFileError as error:
            return error
