"""What a loaded model answers to arguments that are none, and what it says about itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numamirror
import pytest
from numamirror.cli.model_source import notes
from numamirror.engine import Model, prepare
from numamirror.errors import RequestError
from numamirror.gguf_file import open_model


@pytest.fixture(scope="module")
def model(tiny_model_path: Path) -> Iterator[Model]:
    with numamirror.load(tiny_model_path, ctx_size=64, threads=1) as loaded:
        yield loaded


def test_what_is_no_path_is_refused() -> None:
    with pytest.raises(RequestError, match=r"path is 5, expected the path of a \.gguf file"):
        numamirror.load(5)  # type: ignore[arg-type]


NO_IDS: list[Any] = [[1.7], "12", [True], [-1], [2**40], None]


@pytest.mark.parametrize("ids", NO_IDS)
def test_what_are_no_token_ids_is_refused(model: Model, ids: Any) -> None:  # noqa: ANN401
    calls: list[Callable[[Any], object]] = [
        model.logits,
        model.detokenize,
        model.new_sequence().extend,
    ]
    if not isinstance(ids, str):
        calls.append(lambda prompt: numamirror.generate(model, prompt))
    for call in calls:
        with pytest.raises(RequestError, match="expected"):
            call(ids)


@pytest.mark.parametrize("token", [1.7, "1", True, -1, 2**40])
def test_a_pass_over_no_token_is_refused(model: Model, token: Any) -> None:  # noqa: ANN401
    with pytest.raises(RequestError, match=r"token\[0\] is "):
        model.forward([(0, 0, token, True)])


def test_what_is_no_text_is_refused(model: Model) -> None:
    with pytest.raises(RequestError, match="text is None, expected a text"):
        model.tokenize(None)  # type: ignore[arg-type]


def test_a_model_is_prepared_first_and_loaded_of_that(tiny_model_path: Path) -> None:
    prepared = prepare(open_model(tiny_model_path), ctx_size=32)
    ids = prepared.text.tokenize("hello")
    with Model(prepared) as loaded:
        assert loaded.n_ctx == prepared.limits.n_ctx == 32
        assert loaded.tokenize("hello") == ids
        assert loaded.load_seconds > 0


def test_threads_that_share_a_cpu_are_noted(model: Model, tiny_model_path: Path) -> None:
    assert notes(model) == []
    cpu = model.threads.pins[0][0]
    with numamirror.load(tiny_model_path, ctx_size=64, threads=2, cpu_range=str(cpu)) as crowded:
        assert [note.split(";")[0] for note in notes(crowded)] == ["threads: 2, cpus allowed: 1"]
