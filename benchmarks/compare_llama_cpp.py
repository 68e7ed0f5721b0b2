"""Speed side by side with llama.cpp: both engines in one process, in turn, and the paired ratios.

    pip install llama-cpp-python        # builds llama.cpp for this machine
    python benchmarks/compare_llama_cpp.py [MODEL] [--threads 1] [--prompt 256] [--generate 64]

Prompt and generation are what llama-bench measures: a prompt of random tokens on an empty context,
and single random tokens one after another, without sampling. A round runs the two engines one after
the other; the medians of rates and of the rounds' ratios are printed. Ratios are what to quote: the
machine's own speed moves, and it moves for both.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numamirror import default_model, load

Ids = list[int]
Run = Callable[[list[Ids]], float]
"""Feeds chunks of tokens to an empty context, one pass a chunk; gives the seconds."""

SEED = 7
N_TOKEN_IDS = 1024  # ids are drawn below this; every vocabulary has more


def timed(call: Callable[[], None]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def numamirror_runs(path: Path, n_threads: int, n_ctx: int) -> Run:
    """Loads the model here."""
    model = load(path, threads=n_threads, ctx_size=n_ctx)

    def run(chunks: list[Ids]) -> float:
        sequence = model.new_sequence()

        def feed() -> None:
            for chunk in chunks:
                sequence.extend(chunk)

        seconds = timed(feed)
        sequence.close()
        return seconds

    return run


def llama_cpp_runs(path: Path, n_threads: int, n_ctx: int) -> Run:
    """Loads the model in llama.cpp."""
    from llama_cpp import Llama

    model = Llama(
        str(path),
        n_ctx=n_ctx,
        n_batch=2048,
        n_threads=n_threads,
        n_threads_batch=n_threads,
        verbose=False,
    )

    def run(chunks: list[Ids]) -> float:
        model.reset()

        def feed() -> None:
            for chunk in chunks:
                model.eval(chunk)

        return timed(feed)

    return run


def compare(name: str, chunks: list[Ids], ours: Run, theirs: Run, rounds: int) -> None:
    """Runs the engines in turn and prints a line."""
    n_tokens = sum(map(len, chunks))
    for run in (ours, theirs):
        run(chunks)  # warm-up
    pairs = [(n_tokens / ours(chunks), n_tokens / theirs(chunks)) for _ in range(rounds)]
    ratios = [a / b for a, b in pairs]
    print(
        f"{name}: numamirror {statistics.median(a for a, _ in pairs):.1f}, "
        f"llama.cpp {statistics.median(b for _, b in pairs):.1f} tokens/s, "
        f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    )


def main() -> None:
    """Reads the command line and compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path, help="default: the packaged SmolLM2")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    a = parser.parse_args()
    path = a.model or default_model.find()
    ours = numamirror_runs(path, a.threads, a.prompt + a.generate)
    theirs = llama_cpp_runs(path, a.threads, a.prompt + a.generate)
    n_tokens = max(a.prompt, a.generate)
    ids: Ids = np.random.default_rng(SEED).integers(0, N_TOKEN_IDS, n_tokens).tolist()
    print(f"{path.name} on {processor()}, {a.threads} thread(s), {a.rounds} rounds")
    compare(f"prompt of {a.prompt}", [ids[: a.prompt]], ours, theirs, a.rounds)
    single = [[token] for token in ids[: a.generate]]
    compare(f"generation of {a.generate}", single, ours, theirs, a.rounds)


def processor() -> str:
    """The processor's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


if __name__ == "__main__":
    main()
