"""Stage 2: what a model file's tensors are to its architecture, checked against it.

Holds the plan: hyper-parameters and every tensor with its role. Reads no weight byte and knows no
machine. Takes stage 1's `ModelFile`; placement and compilation take what it gives.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from numamirror import _core, archs
from numamirror.archs import Config, TensorNeed
from numamirror.errors import ModelFileError, UnsupportedError
from numamirror.gguf_file import ModelFile

_SHOWN_TENSORS = 3


@dataclass(frozen=True)
class Plan:
    """A model file understood.

    Args:
        model_file: Stage 1's value.
        architecture: `general.architecture`.
        config: The architecture's hyper-parameters.
        tensors: The tensors that it reads and the file has.
    """

    model_file: ModelFile
    architecture: str
    config: Config
    tensors: tuple[TensorNeed, ...]

    def describe(self) -> str:
        """Hyper-parameters and tensors, for `plan --show plan`."""
        lines = [f"architecture: {self.architecture}"]
        lines += [
            f"{field.name}: {getattr(self.config, field.name)}"
            for field in fields(self.config)  # type: ignore[arg-type]
        ]
        for need in self.tensors:
            kind = self.model_file.tensors[need.name].type
            shape = " x ".join(map(str, need.shape))
            lines.append(f"{need.name}: {need.role} {kind} [{shape}]")
        return "\n".join(lines)


def make_plan(file: ModelFile) -> Plan:
    """Finds the file's architecture and checks its tensors against it.

    Raises:
        ModelFileError: A key or tensor is missing or has the wrong shape.
        UnsupportedError: The architecture or a tensor's type is not known here, or the file has
            tensors that the architecture does not read.
    """
    architecture = file.metadata.get_str("general.architecture")
    arch = archs.find(architecture)
    config = arch.read_config(file)
    needs = tuple(need for need in arch.tensors(config) if _is_there(file, need))
    known_types = {quant["name"] for quant in _core.quant_types()}
    for need in needs:
        _check(file, need, known_types)
    _refuse_others(file, architecture, needs)
    return Plan(file, architecture, config, needs)


def _refuse_others(file: ModelFile, architecture: str, needs: tuple[TensorNeed, ...]) -> None:
    """A tensor that nothing reads would be left out of the model; llama.cpp refuses it too."""
    names = {need.name for need in needs}
    others = [name for name in file.tensors if name not in names]
    if others:
        shown = ", ".join(others[:_SHOWN_TENSORS])
        more = f" and {len(others) - _SHOWN_TENSORS} more" if len(others) > _SHOWN_TENSORS else ""
        raise UnsupportedError(
            f"{file.paths[0]}: architecture {architecture} has no use for {shown}{more}"
        )


def _is_there(file: ModelFile, need: TensorNeed) -> bool:
    if need.name in file.tensors:
        return True
    if need.required:
        raise ModelFileError(f"{file.paths[0]}: tensor {need.name} is missing")
    return False


def _check(file: ModelFile, need: TensorNeed, known_types: set[str]) -> None:
    record = file.tensors[need.name]
    if record.shape != need.shape:
        raise ModelFileError(
            f"{file.paths[0]}: tensor {need.name} has shape {list(record.shape)}, "
            f"expected {list(need.shape)}"
        )
    if record.type not in known_types:
        known = ", ".join(sorted(known_types))
        raise UnsupportedError(
            f"tensor {need.name}: type {record.type} is not supported; known: {known}"
        )
