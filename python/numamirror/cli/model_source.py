"""Finds and loads the model that a command is to use, and says on stderr which it is.

Knows the flag `model` and the load options; knows nothing of what the model is for. Used by every
command that takes a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path

from numamirror import _core, default_model, report
from numamirror.cli.parsing import Arguments
from numamirror.engine import Model, Prepared, prepare
from numamirror.gguf_file import ModelFile, open_model


def model_path(arguments: Arguments) -> Path:
    """The file that `--model` names, else the packaged model.

    Raises:
        ModelFileError: No model is named and the packaged one is not installed.
    """
    named: str | None = arguments.own.model
    return Path(named) if named is not None else default_model.find()


def prepared_model(arguments: Arguments, **options: object) -> Prepared:
    """Everything that is known of the model before its weights are read; prints nothing.

    Args:
        arguments: The command's arguments.
        **options: Load options that come before those of the command line.

    Raises:
        NumaMirrorError: The file or an option does not allow it.
    """
    return prepare(open_model(model_path(arguments)), **{**arguments.load, **options})


@contextmanager
def loaded_model(arguments: Arguments, prepared: Prepared) -> Iterator[Model]:
    """Load the model, with progress and a header on stderr unless `--quiet`; close it at the end.

    Args:
        arguments: The command's arguments.
        prepared: What `prepared_model` gave.
    """
    is_shown = not arguments.own.quiet
    if is_shown and (arguments.own.verbose or len(prepared.threads.kernel_nodes) > 1):
        report.facts([("nodes", text) for text in node_table(prepared)])
    with report.progress("loading", report.byte_progress, is_shown=is_shown) as progress:
        model = Model(prepared, progress)
    with model:
        if is_shown:
            report.facts(header(model))
            for text in notes(model):
                report.note(text)
            if arguments.own.verbose:
                report.line(model.placement.describe())
                for text in token_reads(model):
                    report.line(text)
        yield model


def node_table(prepared: Prepared) -> list[str]:
    """What goes onto each node in use, next to what is free there; printed before loading."""
    free_bytes = {node["id"]: node["free_bytes"] for node in _core.topology()["nodes"]}
    rows = [("", "weights", "cache", "free", "threads on cpus")]
    for node, kernel_node in enumerate(prepared.threads.kernel_nodes):
        cpus = [str(cpu) for cpu, index in prepared.threads.pins if index == node]
        free = "pretended" if kernel_node is None else report.gib(free_bytes.get(kernel_node, 0))
        weights = report.gib(prepared.needs.weights_bytes[node])
        cache = report.gib(prepared.needs.cache_bytes[node])
        name = f"node {node}" if kernel_node is None else f"node {node} = {kernel_node}"
        rows.append((name, weights, cache, free, ",".join(cpus) or "none"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    cells = [[cell.rjust(width) for cell, width in zip(row, widths, strict=False)] for row in rows]
    return ["  ".join([*cell, row[4]]) for cell, row in zip(cells, rows, strict=True)]


def token_reads(model: Model) -> list[str]:
    """Weights that a token reads, by the node that reads and the memory that it reads from."""
    reads = _core.token_reads(model.program.to_json(), model.placement.buffers, model.threads)
    return [
        f"a token reads on node {reader}: {report.gib(n_bytes)} of node {home}'s memory"
        for reader, homes in enumerate(reads)
        for home, n_bytes in enumerate(homes)
        if n_bytes
    ]


def notes(model: Model) -> list[str]:
    """What the user may not have meant."""
    found = []
    n_trained = model.plan.config.context_length
    if model.n_ctx > n_trained:
        found.append(f"the model was trained for a context of {n_trained} tokens")
    pins = model.threads.pins
    n_cpus = len({cpu for cpu, _ in pins})
    if n_cpus < len(pins):
        found.append(f"threads: {len(pins)}, cpus allowed: {n_cpus}; those that share one are slow")
    if model.options.numa != model.options.numa_mode:
        found.append(f"--numa {model.options.numa} is {model.options.numa_mode} here")
    if model.options.simulate_nodes is not None:
        n_nodes = len(model.threads.node_threads)
        found.append(f"{n_nodes} nodes are pretended: all memory is on the real ones")
    return [*found, *model.placement.rules.warning_lines()]


def header(model: Model) -> list[tuple[str, str]]:
    """Names and values of the lines that say what runs on what."""
    file = model.model_file
    size = f"{report.gib(n_file_bytes(file))}, {len(file.tensors)} tensors"
    lines = [("model", f"{file.paths[0].name}: {architecture(file)}, {size}")]
    lines += [("system", text) for text in model.describe().splitlines()]
    lines.append(("context", f"{model.n_ctx} tokens"))
    lines.append(("loaded", f"in {model.load_seconds:.2f} s"))
    return lines


def architecture(file: ModelFile) -> str:
    """The file's word for its architecture."""
    return str(file.metadata.get("general.architecture", "unknown"))


def n_file_bytes(file: ModelFile) -> int:
    """Bytes of all tensors in the file."""
    return sum(tensor.n_bytes for tensor in file.tensors.values())


def n_params(file: ModelFile) -> int:
    """Weights in the file, each counted once."""
    return sum(prod(tensor.shape) for tensor in file.tensors.values())


def model_type(file: ModelFile) -> str:
    """Architecture, size label and the type that most bytes have, such as `llama 135M Q4_1`."""
    n_bytes: dict[str, int] = {}
    for tensor in file.tensors.values():
        n_bytes[tensor.type] = n_bytes.get(tensor.type, 0) + tensor.n_bytes
    label = str(file.metadata.get("general.size_label", ""))
    main_type = max(n_bytes, key=lambda name: n_bytes[name], default="")
    return " ".join(word for word in (architecture(file), label, main_type) if word)
