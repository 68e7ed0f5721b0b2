"""Options of a load: what counts, what is refused, in which words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numamirror.errors import RequestError
from numamirror.load_options import LoadOptions, read_options, read_template


def test_minus_one_thread_is_automatic() -> None:
    options = read_options({"threads": -1, "threads_batch": -1})
    assert options == LoadOptions()
    assert options.threads is options.threads_batch is None


def test_numbers_of_numpy_and_paths_will_do() -> None:
    options = read_options({"ctx_size": np.int64(64), "chat_template_file": Path("x")})
    assert options.ctx_size == 64


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("ctx_size", "4096", "a whole number from 0 to 16777216"),
        ("ctx_size", 4096.0, "a whole number"),
        ("ctx_size", -1, "a whole number from 0"),
        ("threads", 0, "a whole number from 1"),
        ("threads", -2, "a whole number from 1"),
        ("threads", True, "a whole number from 1"),
        ("threads_batch", 0, "a whole number from 1 to 4096"),
        ("threads_batch", 4097, "a whole number from 1 to 4096"),
        ("ubatch_size", None, "a whole number from 1"),
        ("ubatch_size", 0, "a whole number from 1"),
        ("parallel", 1.5, "a whole number from 1"),
        ("cache_type_k", "q8_0", "one of f16, f32"),
        ("cache_type_v", 16, "one of f16, f32"),
        ("cpu_range", 3, "ranges of cpu numbers"),
        ("chat_template_file", 3, "a path"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: Any, expected: str) -> None:  # noqa: ANN401
    message = f"^{re.escape(f'{name} is {value!r}, expected {expected}')}"
    with pytest.raises(RequestError, match=message):
        read_options({name: value})


def test_a_template_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"^chat-template-file nofile: no such file"):
        read_template("nofile")
    path = tmp_path / "latin1"
    path.write_bytes(b"caf\xe9")
    with pytest.raises(RequestError, match=r"latin1: not utf-8 text"):
        read_template(path)
