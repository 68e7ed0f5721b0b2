"""`numamirror perplexity`: measure the perplexity of a text, by llama-perplexity's rule.

Knows the rule and the lines that scripts read; knows nothing of how logits come about. Called by
`numamirror.cli.main`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from numamirror import report
from numamirror.cli.model_source import loaded_model, prepared_model
from numamirror.cli.parsing import Arguments
from numamirror.cli.text_source import text_of
from numamirror.engine import Model
from numamirror.errors import NumaMirrorError, RequestError
from numamirror.text import TextSide

_ROWS_AT_ONCE = 32  # rows widened to float64 together: bounds scratch at any vocabulary


@dataclass(frozen=True)
class Estimate:
    """A perplexity and its standard error."""

    perplexity: float
    error: float


def run(arguments: Arguments) -> int:
    """Measure; returns the exit code.

    The running values and the final line go to stdout, in llama-perplexity's form.
    """
    text = text_of(arguments)
    if arguments.own.chunks == 0:
        raise RequestError("--chunks: found 0, expected at least 1, or -1 for all")
    n_ctx: int = arguments.load["ctx_size"]
    estimate = None
    is_shown = not arguments.own.quiet
    prepared = prepared_model(arguments)
    chunks = chunks_of(prepared.text, text, n_ctx, arguments.own.chunks)
    with (
        loaded_model(arguments, prepared) as model,
        report.progress("measuring", report.token_progress, is_shown=is_shown) as progress,
    ):
        for index, estimate in enumerate(estimates(model, chunks), start=1):
            sys.stdout.write(f"[{index}]{estimate.perplexity:.4f},")
            sys.stdout.flush()
            progress(index * n_ctx, len(chunks) * n_ctx)
    if estimate is not None:
        sys.stdout.write(
            f"\nFinal estimate: PPL = {estimate.perplexity:.4f} +/- {estimate.error:.5f}\n"
        )
    return 0


def chunks_of(tokens: TextSide, text: str, n_ctx: int, n_chunks_wanted: int) -> list[list[int]]:
    """The text's tokens in whole chunks of `n_ctx`; what is left over at the end is not measured.

    Args:
        tokens: Gives the tokens.
        text: What to measure.
        n_ctx: Tokens a chunk.
        n_chunks_wanted: Chunks at most, one or more; -1 for all.

    Raises:
        NumaMirrorError: The text is too short for two chunks.
    """
    ids = tokens.tokenize(text)
    if len(ids) < 2 * n_ctx:
        raise NumaMirrorError(
            f"the text has {len(ids)} tokens, expected at least {2 * n_ctx} for chunks of {n_ctx}",
            hint="take a longer text, or a smaller --ctx-size",
        )
    n_chunks = len(ids) // n_ctx
    if n_chunks_wanted > 0:
        n_chunks = min(n_chunks, n_chunks_wanted)
    return [ids[index * n_ctx : (index + 1) * n_ctx] for index in range(n_chunks)]


def estimates(model: Model, chunks: list[list[int]]) -> Iterator[Estimate]:
    """The estimate after each chunk.

    Every chunk is evaluated afresh, its first token replaced by BOS where the model wants one. The
    tokens of its second half are scored: logits at positions n/2 to n-2, each against the next
    token, so that each has at least half a chunk before it.

    Source: perplexity() in llama.cpp's tools/perplexity/perplexity.cpp.
    """
    tokenizer = model.tokenizer
    starts_with_bos = tokenizer is not None and model.tokenize("")[:1] == [tokenizer.bos_id]
    total = total_of_squares = 0.0
    count = 0
    for chunk in chunks:
        bos = [tokenizer.bos_id] if tokenizer is not None and starts_with_bos else chunk[:1]
        logits = model.logits([*bos, *chunk[1:]])
        half = len(chunk) // 2
        losses = negative_log_likelihoods(logits[half:-1], chunk[half + 1 :])
        total += float(losses.sum())
        total_of_squares += float((losses**2).sum())
        count += len(losses)
        yield _estimate(total, total_of_squares, count)


def negative_log_likelihoods(
    logits: npt.NDArray[np.float32], ids: list[int]
) -> npt.NDArray[np.float64]:
    """-log softmax(logits)[id] of each row, in float64.

    Shapes: logits: f32[n, n_vocab]; ids: n numbers; returns f64[n].
    """
    losses = np.empty(len(ids))
    for start in range(0, len(ids), _ROWS_AT_ONCE):
        rows = logits[start : start + _ROWS_AT_ONCE].astype(np.float64)
        rows -= rows.max(axis=1, keepdims=True)
        wanted = np.asarray(ids[start : start + len(rows)])
        picked = rows[np.arange(len(rows)), wanted]
        losses[start : start + len(rows)] = np.log(np.exp(rows).sum(axis=1)) - picked
    return losses


def _estimate(total: float, total_of_squares: float, count: int) -> Estimate:
    mean = total / count
    variance = total_of_squares / count - mean * mean
    perplexity = math.exp(mean)
    spread = math.sqrt(variance / (count - 1)) if variance > 0 and count > 1 else 0.0
    return Estimate(perplexity, spread * perplexity)
