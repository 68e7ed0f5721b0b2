"""Checks that every architecture must pass; a test class per architecture inherits them.

Holds the comparisons with the float64 reference and the equality of all ways to feed a sequence.
Knows no architecture: a subclass says how to write a tiny model and in which shapes. Called by
`archs/test_<name>.py`:

    class TestLlama(ArchitectureChecks):
        write = staticmethod(tiny_gguf.write_llama)
        shapes = {"plain": {}, "tied": {"tied": True}}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import feeding
import goldens
import numamirror
import numpy as np
import pytest
import reference
import tolerances
from numamirror import _core
from numpy.typing import NDArray

PROMPTS, PROMPT_TOKENS = 8, 9
"""Several short prompts, not a long one: see `tolerances` on what a turned code does to later rows.
"""

CACHE_TYPES: tuple[reference.CacheType, ...] = ("f32", "f16")

TABLES = {
    ("exact", "f32"): tolerances.TINY_EXACT_F32_CACHE,
    ("exact", "f16"): tolerances.TINY_EXACT_F16_CACHE,
    ("rounded", "f32"): tolerances.TINY_ROUNDED_F32_CACHE,
    ("rounded", "f16"): tolerances.TINY_ROUNDED_F16_CACHE,
}
"""Bounds by reference variant and cache type."""


def quant_names() -> list[str]:
    """Every weight type of the engine."""
    return [quant["name"] for quant in _core.quant_types()]


def check_against_reference(
    path: Path, family: tolerances.Family, cache_type: reference.CacheType
) -> None:
    """Compare the logits of a model with both variants of the reference, within the table.

    Args:
        path: The model.
        family: Its bounds: `block` when any matrix is block-quantized.
        cache_type: Cache of the engine and of the `rounded` variant.
    """
    options: dict[str, Any] = {"cache_type_k": cache_type, "cache_type_v": cache_type}
    with numamirror.load(path, ctx_size=64, threads=2, **options) as model:
        ids = feeding.random_ids(model.n_vocab, PROMPTS * PROMPT_TOKENS)
        prompts = [ids[i::PROMPTS] for i in range(PROMPTS)]
        found = np.concatenate([model.logits(prompt) for prompt in prompts])
    expected = reference.Reference(path)
    variants: tuple[reference.Variant, ...] = ("exact", "rounded")
    for variant in variants:
        rows = [expected.logits(prompt, variant, cache_type) for prompt in prompts]
        errors = goldens.normalised_errors(found, np.concatenate(rows))
        TABLES[variant, cache_type][family].check(errors)


class ArchitectureChecks:
    """What holds for each architecture, on tiny random models.

    Attributes:
        write: Writes a tiny model, `write(path, *, quant, seed, **shape) -> Path`.
        shapes: Keyword arguments of `write` by a name for them.
    """

    write: ClassVar[Callable[..., Path]]
    shapes: ClassVar[Mapping[str, Mapping[str, Any]]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run checks for every shape and weight type that they take as arguments."""
        if "shape" in metafunc.fixturenames:
            metafunc.parametrize("shape", sorted(self.shapes))
        if "quant" in metafunc.fixturenames:
            metafunc.parametrize("quant", quant_names())

    def model(self, folder: Path, shape: str, quant: str) -> Path:
        """Write the tiny model of a shape and type into a folder."""
        return self.write(folder / "tiny.gguf", quant=quant, seed=7, **self.shapes[shape])

    @pytest.mark.parametrize("cache_type", CACHE_TYPES)
    def test_logits_agree_with_the_reference(
        self, tmp_path: Path, shape: str, quant: str, cache_type: reference.CacheType
    ) -> None:
        check_against_reference(
            self.model(tmp_path, shape, quant), tolerances.family(quant), cache_type
        )

    def test_ways_to_feed_a_sequence_agree(self, tmp_path: Path, shape: str) -> None:
        path = self.model(tmp_path, shape, "Q8_0")
        with numamirror.load(path, ctx_size=512, parallel=3, ubatch_size=32) as model:
            a, b, c = (feeding.random_ids(model.n_vocab, n, seed=n) for n in (75, 20, 9))
            whole = model.logits(a)
            assert whole.shape == (len(a), model.n_vocab)
            assert whole.dtype == np.float32
            by_token = feeding.forward(model, feeding.sequence(0, a), 1)
            batched = feeding.forward(model, feeding.dealt([a, b, c], first_id=1), 32)
        _assert_same_bits(by_token[0], whole)
        _assert_same_bits(batched[1], whole)


def _assert_same_bits(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
