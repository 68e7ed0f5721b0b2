"""`numamirror generate`: continue a prompt and print the text.

The text goes to stdout as it comes, and nothing else does. Knows how a generation looks from the
outside; the loop itself is `numamirror.generate`. Called by `numamirror.cli.main`.
"""

from __future__ import annotations

import sys
import time
from contextlib import closing

from numamirror import report
from numamirror.cli.model_source import loaded_model, prepared_model
from numamirror.cli.parsing import Arguments
from numamirror.cli.text_source import text_of
from numamirror.engine import Model
from numamirror.generate import GenerationRecord, run_request
from numamirror.generation_request import GenerationRequest, make_request


def run(arguments: Arguments) -> int:
    """Generate; returns the exit code."""
    prompt = text_of(arguments)
    is_quiet = arguments.own.quiet
    prepared = prepared_model(arguments)
    request = make_request(prepared.text, prepared.limits.n_ctx, prompt, **arguments.generate)
    with loaded_model(arguments, prepared) as model:
        if not is_quiet:
            report.facts([("seed", str(request.settings.seed))])
            if not arguments.generate["raw"] and model.chat_template is None:
                report.note("the model has no chat template: the prompt is continued as it is")
        start = time.perf_counter()
        last = _print_text(model, request, is_quiet)
        total_ms = 1e3 * (time.perf_counter() - start)
        if last is not None and not is_quiet:
            _say_why_it_ended(last, model)
            if not arguments.own.no_perf:
                for line in report.timing_lines(_timings(last, total_ms)):
                    report.line(line)
    return 0


def _print_text(
    model: Model, request: GenerationRequest, is_quiet: bool
) -> GenerationRecord | None:
    """Stream the text to stdout, a newline at its end; returns the last record."""
    record = None
    end = "\n"
    with (
        report.progress("prompt", report.token_progress, is_shown=not is_quiet) as progress,
        closing(run_request(model, request, progress)) as stream,
    ):
        try:
            for record in stream:
                sys.stdout.write(record.text)
                sys.stdout.flush()
                end = record.text[-1:] or end
        finally:
            # also after Ctrl-C, so that what follows starts on a line of its own
            if record is not None and end != "\n":
                sys.stdout.write("\n")
                sys.stdout.flush()
    return record


def _say_why_it_ended(last: GenerationRecord, model: Model) -> None:
    if last.finish_reason == "context":
        report.note(
            f"stopped: the context of {model.n_ctx} tokens is full (--ctx-size sets its size)"
        )
    elif last.finish_reason == "length":
        report.note(f"stopped after {last.generation_tokens} tokens (--max-tokens sets how many)")


def _timings(last: GenerationRecord, total_ms: float) -> report.Timings:
    return report.Timings(
        prompt_tokens=last.prompt_tokens,
        prompt_ms=last.prompt_ms,
        # the first token comes of the prompt's pass
        generation_runs=max(last.generation_tokens - 1, 0),
        generation_ms=last.generation_ms,
        total_ms=total_ms,
    )
