"""The float64 reference against llama.cpp's logits, before it judges anything else."""

from __future__ import annotations

import goldens
import numpy as np
import pytest
import reference
import tolerances
from numamirror import default_model
from numpy.typing import NDArray


@pytest.fixture(scope="module")
def smollm2() -> reference.Reference:
    return reference.Reference(default_model.find())


@pytest.mark.parametrize(
    ("variant", "bound"),
    [
        ("exact", tolerances.REFERENCE_VS_GOLDEN_FLOAT),
        ("rounded", tolerances.ROUNDED_VS_GOLDEN_FLOAT),
    ],
)
def test_reference_agrees_with_the_float_logits(
    smollm2: reference.Reference, variant: reference.Variant, bound: float
) -> None:
    golden = goldens.read_golden("smollm2")
    errors: list[float] = []
    for case in golden.cases:
        logits = case.rows(smollm2.logits(case.ids, variant))
        wanted = goldens.fixed(case.float_steps)
        errors += goldens.normalised_errors(logits[:, golden.fixed_ids], wanted).tolist()
        decisive = [i for i, s in enumerate(case.float_steps) if s.gap > tolerances.DECISIVE_GAP]
        best = logits.argmax(axis=1)
        assert [int(best[i]) for i in decisive] == [
            case.float_steps[i].top_ids[0] for i in decisive
        ]
    assert np.mean(errors) <= bound


def test_llama_cpp_error_is_reproduced_by_our_measure() -> None:
    cases = goldens.read_golden("smollm2").cases
    errors = np.concatenate(
        [
            goldens.normalised_errors(goldens.fixed(c.model_steps), goldens.fixed(c.float_steps))
            for c in cases
        ]
    )
    assert errors.mean() == pytest.approx(0.00235, abs=5e-6)


def test_normalised_error_of_known_rows() -> None:
    assert goldens.normalised_error([[1, 1], [3, 4]], [[1, 1], [0, 5]]) == pytest.approx(0.2)


def test_activation_rounding_of_a_known_block() -> None:
    x: NDArray[np.float64] = np.zeros((2, 32))
    x[0, :4] = [127.0, 0.5, 1.5, -2.5]  # halves go to the even code
    np.testing.assert_array_equal(
        reference.round_activations(x)[:, :5], [[127, 0, 2, -2, 0], [0, 0, 0, 0, 0]]
    )


def test_rotation_keeps_lengths_and_depends_on_distance_only() -> None:
    x = np.random.default_rng(0).standard_normal((6, 1, 8))
    x[:] = x[:1]
    angles = reference.rope_angles(6, 8, 10000.0)
    y = reference.rope_interleaved(x, angles)[:, 0]
    np.testing.assert_allclose(np.linalg.norm(y, axis=1), np.linalg.norm(x[:, 0], axis=1))
    assert y[0] @ y[2] == pytest.approx(y[3] @ y[5])


def test_linear_scaling_and_factors_divide_the_angles() -> None:
    plain = reference.rope_angles(4, 8, 10000.0)
    np.testing.assert_allclose(reference.rope_angles(4, 8, 10000.0, 0.25), plain / 4)
    factors = np.array([1.0, 2.0, 4.0, 8.0])
    np.testing.assert_allclose(
        reference.rope_angles(4, 8, 10000.0, factors=factors), plain / factors
    )


def test_a_golden_file_has_one_row_a_step() -> None:
    for case in goldens.read_golden("smollm2").cases:
        assert case.rows(np.zeros((len(case.ids), 3))).shape == (case.n_steps, 3)
