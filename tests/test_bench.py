"""What `bench` measures, and the forms its rows take."""

from __future__ import annotations

import csv
import io
import json
from typing import Any, cast

import pytest
from numamirror.cli import bench_output
from numamirror.cli.bench import Measurement, measure
from numamirror.engine import Model


class CountingModel:
    """Counts what is asked of its sequences."""

    n_vocab = 50

    def __init__(self) -> None:
        self.calls: list[list[list[int]]] = []
        self.n_closed = 0

    def new_sequence(self) -> CountingSequence:
        self.calls.append([])
        return CountingSequence(self)


class CountingSequence:
    """Tells its model of every call."""

    def __init__(self, model: CountingModel) -> None:
        self.model = model

    def extend(self, ids: list[int]) -> None:
        self.model.calls[-1].append(ids)

    def close(self) -> None:
        self.model.n_closed += 1


def measured(model: CountingModel, what: Measurement) -> int:
    return measure(cast("Model", model), what)


def a_row(**changes: object) -> bench_output.Row:
    values: dict[str, Any] = {
        "model_filename": "a,b.gguf",
        "model_type": "llama 135M Q4_1",
        "model_size": 3 << 29,
        "model_n_params": 134_515_008,
        "isa": "avx2",
        "pages": "4K",
        "n_threads": 2,
        "n_ubatch": 512,
        "type_k": "f16",
        "type_v": "f16",
        "n_prompt": 512,
        "n_gen": 0,
        "test": "pp512",
        "test_time": "2026-01-01T00:00:00Z",
        "avg_ns": 10,
        "stddev_ns": 1,
        "avg_ts": 132.129,
        "stddev_ts": 0.551,
        "samples_ns": [9, 11],
        "samples_ts": [131.0, 133.0],
    }
    return bench_output.Row(**(values | changes))


def written(
    format_name: str, rows: list[bench_output.Row], capsys: pytest.CaptureFixture[str]
) -> str:
    writer = bench_output.writer(format_name)
    writer.begin()
    for row in rows:
        writer.row(row)
    writer.end()
    return capsys.readouterr().out


def test_a_prompt_is_one_call_and_generation_one_call_a_token() -> None:
    model = CountingModel()
    assert measured(model, Measurement(16, 0)) > 0
    assert measured(model, Measurement(0, 5)) > 0
    prompt, generation = model.calls
    assert [len(ids) for ids in prompt] == [16]
    assert [len(ids) for ids in generation] == [1] * 5
    assert model.n_closed == 2
    assert all(0 <= token < model.n_vocab for token in prompt[0])


def test_tokens_are_the_same_in_every_run() -> None:
    model = CountingModel()
    measured(model, Measurement(16, 0))
    measured(model, Measurement(16, 0))
    assert model.calls[0] == model.calls[1]


def test_names_are_those_of_llama_bench() -> None:
    assert [Measurement(512, 0).name, Measurement(0, 128).name] == ["pp512", "tg128"]


def test_json_has_the_fields_that_scripts_read(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(written("json", [a_row(), a_row(n_prompt=0, n_gen=128)], capsys))
    assert [row["n_gen"] for row in rows] == [0, 128]
    assert {"n_prompt", "n_gen", "avg_ts", "stddev_ts", "n_threads", "avg_ns"} <= set(rows[0])


def test_json_lines_are_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = written("jsonl", [a_row(), a_row()], capsys).splitlines()
    assert [json.loads(line)["avg_ts"] for line in lines] == [132.129, 132.129]


def test_csv_reads_back(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = csv.DictReader(io.StringIO(written("csv", [a_row()], capsys)))
    assert row["model_filename"] == "a,b.gguf"
    assert float(row["avg_ts"]) == 132.129


def test_markdown_is_an_aligned_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = written("md", [a_row()], capsys).splitlines()
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells == [
        "llama 135M Q4_1",
        "1.50 GiB",
        "134.52 M",
        "CPU",
        "2",
        "avx2",
        "4K",
        "pp512",
        "132.13 ± 0.55",
    ]
    assert len({len(line) for line in lines}) == 1
