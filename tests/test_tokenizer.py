"""Token ids equal llama.cpp's, bytes survive, and no text becomes a control token.

The goldens are llama.cpp's ids for texts that are hard to cut, for each kind of pre-tokenizer over
SmolLM2's vocabulary and a few more tokens.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numamirror.errors import ModelFileError, RequestError
from numamirror.gguf_file import open_model
from numamirror.gguf_metadata import Metadata, MetadataValue
from numamirror.tokenizer import Tokenizer
from tiny_tokenizer import BOS, EOS, MERGES, TOKENS, tiny, with_tokens

GOLDENS = json.loads((Path(__file__).parent / "goldens" / "tokenizer_smollm2.json").read_text())
KINDS = sorted(GOLDENS["kinds"])


@pytest.fixture(scope="module")
def real_metadata(real_model_path: Path) -> Metadata:
    return open_model(real_model_path).metadata


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def extended(real_metadata: Metadata, kind: str) -> Tokenizer:
    extra = GOLDENS["extra_tokens"]
    types = np.asarray(real_metadata["tokenizer.ggml.token_type"])
    changes: dict[str, MetadataValue] = {
        "tokenizer.ggml.pre": kind,
        "tokenizer.ggml.tokens": [
            *real_metadata.get_strs("tokenizer.ggml.tokens"),
            *(text for text, _ in extra),
        ],
        "tokenizer.ggml.token_type": np.append(types, [number for _, number in extra]),
    }
    values = {**real_metadata, **changes}
    del values["tokenizer.ggml.add_bos_token"]
    tokenizer = Tokenizer.from_metadata(Metadata(values, Path("extended.gguf")))
    assert tokenizer is not None
    return tokenizer


def test_ids_are_llama_cpps(extended: Tokenizer, kind: str) -> None:
    for text, parse_special, ids in GOLDENS["kinds"][kind]:
        assert extended.encode(text, parse_special=parse_special) == ids, (text, parse_special)


def test_long_texts_are_their_paragraphs(extended: Tokenizer) -> None:
    text = "The quick brown fox jumps over the lazy dog, 12 times.\n" * 4000
    ids = extended.encode(text, add_special=False)
    assert extended.decode(ids) == text
    assert len(ids) % 4000 == 0


def test_special_ids_of_the_real_model(real_metadata: Metadata) -> None:
    tokenizer = Tokenizer.from_metadata(real_metadata)
    assert tokenizer is not None
    assert (tokenizer.n_tokens, tokenizer.bos_id, tokenizer.eos_id) == (49152, 1, 2)
    assert tokenizer.end_ids == {0, 2, 4}  # llama.cpp's too; 4 is <reponame>
    assert not tokenizer.add_bos


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    tokenizer = tiny()
    assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


@given(st.text(), st.sampled_from(["smollm", "gpt-2", "default"]))
def test_texts_never_become_control_tokens(text: str, pre: str) -> None:
    tokenizer = tiny(pre=pre)
    for control in tokenizer.control_texts:
        ids = tokenizer.encode(text + control + text, add_special=False)
        assert not any(map(tokenizer.is_control, ids))
        assert tokenizer.decode(ids) == text + control + text


@given(st.lists(st.integers(0, len(TOKENS) - 1)), st.booleans())
def test_streamed_text_is_decoded_text(ids: list[int], skip_special: bool) -> None:
    tokenizer = tiny()
    stream = tokenizer.stream(skip_special)
    pieces = [stream.push(token) for token in ids]
    assert "".join(pieces) + stream.flush() == tokenizer.decode(ids, skip_special)


@given(st.text(min_size=1))
def test_streams_never_show_half_a_character(text: str) -> None:
    tokenizer = tiny()
    stream = tokenizer.stream()
    shown = ""
    for token in tokenizer.encode(text, add_special=False):
        shown += stream.push(token)
        assert text.startswith(shown)
    assert shown == text
    assert stream.flush() == ""


def test_a_stream_says_invalid_only_when_sure() -> None:
    tokenizer = tiny()
    first, _ = tokenizer.encode("ß", add_special=False)
    stream = tokenizer.stream()
    assert stream.push(first) == ""
    assert stream.push(first) == "\ufffd"
    assert stream.flush() == "\ufffd"


def test_bos_and_eos_as_the_file_asks() -> None:
    plain = tiny().encode("hi")
    both = tiny(add_bos_token=True, add_eos_token=True)
    assert both.encode("hi") == [BOS, *plain, EOS]
    assert both.encode("") == [BOS, EOS]
    assert both.encode("hi", add_special=False) == plain
    assert tiny(pre="llama-bpe").encode("hi")[0] == BOS
    assert tiny(pre="llama-bpe", add_bos_token=False).encode("hi")[0] != BOS
    assert not tiny(pre="llama-bpe", bos_token_id=None).add_bos


def test_control_tokens_are_read_when_asked() -> None:
    tokenizer = tiny()
    control = TOKENS[EOS]
    assert tokenizer.encode(f"{control}hi", parse_special=True)[0] == EOS
    assert tokenizer.decode([EOS]) == control
    assert tokenizer.decode([EOS], skip_special=True) == ""
    assert tokenizer.is_control(EOS)


def test_user_defined_tokens_are_always_matched_the_longest_first() -> None:
    tokenizer = with_tokens(("<think>", 4), ("bcd", 4), ("ab", 4))
    think, bcd, ab = range(len(TOKENS), len(TOKENS) + 3)
    assert tokenizer.encode("<think>") == [think]
    assert tokenizer.encode("abcd")[1:] == [bcd]
    assert tokenizer.encode("ab<think>") == [ab, think]
    assert not tokenizer.is_control(think)


def test_no_word_or_merge_makes_a_control_token() -> None:
    """Neither taking whole words (`ignore_merges`) nor a merge that the file has."""
    tokenizer = with_tokens(("EOT", 3), pre="llama-bpe")
    assert len(TOKENS) not in tokenizer.encode("EOT EOT")
    tokenizer = with_tokens(("zq", 3), merges=[*MERGES, "z q"])
    assert len(TOKENS) not in tokenizer.encode("zq zqzq")
    assert tokenizer.decode(tokenizer.encode("zq zqzq")) == "zq zqzq"


def test_twins_are_text_again_but_no_control_tokens() -> None:
    tokenizer = with_tokens(("<think>", 4))
    control = TOKENS[EOS]
    twin = {0xF0000: ord(control[0])}
    marked = control + "\U000f0000" + control[1:]
    ids = tokenizer.encode(marked, False, True, twin)
    assert [token for token in ids if tokenizer.is_control(token)] == [EOS]
    assert ids[1:] == tokenizer.encode(control, False)
    twin = {0xF0000: ord("<")}
    assert tokenizer.encode("\U000f0000think>", False, True, twin) == [len(TOKENS)]


def test_surrogates_are_joined_or_replaced() -> None:
    tokenizer = tiny()
    assert tokenizer.decode(tokenizer.encode("a\ud83d\ude00b")) == "a😀b"
    assert tokenizer.decode(tokenizer.encode("a\ud83db\ude00")) == "a\ufffdb\ufffd"


@pytest.mark.parametrize("token", [-1, len(TOKENS), 1 << 40])
def test_ids_out_of_range_are_refused(token: int) -> None:
    tokenizer = tiny()
    with pytest.raises(RequestError, match=rf"is {token}, expected 0 to"):
        tokenizer.decode([token])
    with pytest.raises(RequestError):
        tokenizer.stream(skip_special=True).push(token)


def test_unused_and_byte_kinds_have_no_text() -> None:
    tokenizer = with_tokens(("[PAD1]", 5), ("<0x41>", 6), ("odd", 0))
    n = len(TOKENS)
    assert tokenizer.decode([n, n + 1, n + 2]) == ""


def test_a_piece_outside_the_byte_alphabet_is_its_text() -> None:
    tokenizer = with_tokens(("日本 x", 1))
    assert tokenizer.piece(len(TOKENS)) == "日本 x".encode()


def test_a_byte_that_is_no_token_is_dropped_and_joins_nothing() -> None:
    tokens = ["a", "b", "ab"]
    tokenizer = tiny(
        tokens=tokens, token_type=None, merges=["a b"], bos_token_id=None, eos_token_id=None
    )
    assert tokenizer.encode("ab") == [2]
    assert tokenizer.encode("azb") == [0, 1]


def test_a_missing_id_that_is_needed_is_named() -> None:
    with pytest.raises(ModelFileError, match=r"add_eos_token is true.*eos_token_id is missing"):
        tiny(add_eos_token=True, eos_token_id=None)
