"""`numamirror bench`: measure prompt processing and generation speed, as llama-bench does.

Knows what is measured and how often; the formats are in `numamirror.cli.bench_output`. Called by
`numamirror.cli.main`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from numamirror import report
from numamirror.cli import bench_output
from numamirror.cli.model_source import (
    loaded_model,
    model_type,
    n_file_bytes,
    n_params,
    prepared_model,
)
from numamirror.cli.parsing import Arguments
from numamirror.engine import Model
from numamirror.errors import RequestError

_TOKEN_SEED = 0  # the same random tokens in every run: results can be compared


@dataclass(frozen=True)
class Measurement:
    """What one row measures: a prompt of `n_prompt` tokens, or `n_gen` single ones."""

    n_prompt: int
    n_gen: int

    @property
    def name(self) -> str:
        """llama-bench's name for it: `pp512`, `tg128`."""
        return f"pp{self.n_prompt}" if self.n_prompt else f"tg{self.n_gen}"


def run(arguments: Arguments) -> int:
    """Measure; returns the exit code. Rows go to stdout as they are done."""
    own = arguments.own
    tests = [Measurement(n, 0) for n in own.n_prompt if n] + [
        Measurement(0, n) for n in own.n_gen if n
    ]
    if not tests:
        raise RequestError(
            "bench: nothing to measure",
            hint="give a prompt length with -p or a number of tokens with -n",
        )
    writer = bench_output.writer(own.output)
    for n_written, row in enumerate(_rows(arguments, tests)):
        if n_written == 0:  # a model that can't be loaded leaves stdout empty
            writer.begin()
        writer.row(row)
    writer.end()
    return 0


def _rows(arguments: Arguments, tests: list[Measurement]) -> Iterator[bench_output.Row]:
    ctx_size = max(test.n_prompt + test.n_gen for test in tests)
    for threads in arguments.own.threads or (None,):
        prepared = prepared_model(arguments, threads=threads, ctx_size=ctx_size)
        with loaded_model(arguments, prepared) as model:
            for test in tests:
                yield _row(arguments, model, test)


def _row(arguments: Arguments, model: Model, test: Measurement) -> bench_output.Row:
    n_repetitions: int = arguments.own.repetitions
    started = datetime.now(UTC)
    samples_ns = []
    is_shown = not arguments.own.quiet
    with report.progress(test.name, _repetition_progress, is_shown=is_shown) as progress:
        measure(model, test if test.n_prompt else Measurement(0, 1))  # warms up
        for done in range(n_repetitions):
            progress(done, n_repetitions)
            samples_ns.append(measure(model, test))
    n_tokens = test.n_prompt + test.n_gen
    samples_ts = [1e9 * n_tokens / elapsed_ns for elapsed_ns in samples_ns]
    file = model.model_file
    return bench_output.Row(
        model_filename=str(file.paths[0]),
        model_type=model_type(file),
        model_size=n_file_bytes(file),
        model_n_params=n_params(file),
        isa=model.isa,
        pages=model.pages,
        n_threads=model.n_threads_batch if test.n_prompt else model.n_threads,
        n_ubatch=model.options.ubatch_size,
        type_k=model.options.cache_type_k,
        type_v=model.options.cache_type_v,
        n_prompt=test.n_prompt,
        n_gen=test.n_gen,
        test=test.name,
        test_time=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        avg_ns=round(statistics.fmean(samples_ns)),
        stddev_ns=round(_deviation(samples_ns)),
        avg_ts=statistics.fmean(samples_ts),
        stddev_ts=_deviation(samples_ts),
        samples_ns=samples_ns,
        samples_ts=samples_ts,
    )


def measure(model: Model, test: Measurement) -> int:
    """Run a test once on a fresh sequence; returns nanoseconds."""
    random = np.random.default_rng(_TOKEN_SEED)
    ids = random.integers(0, model.n_vocab, test.n_prompt + test.n_gen).tolist()
    sequence = model.new_sequence()
    try:
        start = time.perf_counter_ns()
        if test.n_prompt:
            sequence.extend(ids)
        else:
            for token in ids:
                sequence.extend([token])
        return max(time.perf_counter_ns() - start, 1)
    finally:
        sequence.close()


def _deviation(samples: list[int] | list[float]) -> float:
    return float(statistics.stdev(samples)) if len(samples) > 1 else 0.0


def _repetition_progress(done: int, total: int, seconds: float) -> str:
    return f"{done} of {total} repetitions, {seconds:.0f} s"
