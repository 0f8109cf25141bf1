# SPDX-License-Identifier: Apache-2.0
"""Representations of rotations against what they are defined by: what they do to a vector."""

from __future__ import annotations

import math

import numpy as np
import pytest
from millrace._rotations import REPRESENTATIONS, bound, convert, width


def exponential(axis_angle: np.ndarray) -> np.ndarray:
    """The matrix of an axis and angle, as the exponential series of its cross product."""
    x, y, z = axis_angle
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return sum(np.linalg.matrix_power(cross, n) / math.factorial(n) for n in range(40))


def hamilton(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.concatenate([[a[0] * b[0] - a[1:] @ b[1:]], a[0] * b[1:] + b[0] * a[1:] + np.cross(a[1:], b[1:])])


def truth(values: np.ndarray, representation: str) -> np.ndarray:
    """The matrix by another way than the package's."""
    if representation == "axis_angle":
        return exponential(values)
    if representation == "quaternion":
        q = values / np.linalg.norm(values)
        back = q * [1, -1, -1, -1]
        return np.stack([hamilton(hamilton(q, np.insert(axis, 0, 0)), back)[1:] for axis in np.eye(3)], -1)
    if representation == "matrix":
        return values.reshape(3, 3)
    if representation == "rotation_6d":
        q, _ = np.linalg.qr(np.stack([values[:3], values[3:]], -1))
        first, second = (q[:, n] * np.sign(q[:, n] @ values[3 * n : 3 * n + 3]) for n in range(2))
        return np.stack([first, second, np.cross(first, second)])
    turns = [
        exponential(angle * np.eye(3)["rpy".index(letter)])
        for angle, letter in zip(values, representation[-3:], strict=True)
    ]
    return turns[0] @ turns[1] @ turns[2]


def random_values(representation: str, rng: np.random.Generator) -> np.ndarray:
    if representation == "matrix":
        return exponential(rng.normal(size=3)).ravel()
    if representation.startswith("euler"):
        return rng.uniform([-3, -1.5, -3], [3, 1.5, 3])
    if representation == "axis_angle":
        axis = rng.normal(size=3)
        return axis / np.linalg.norm(axis) * rng.uniform(0, 3.1)
    return rng.normal(size=width(representation)) * 3


@pytest.mark.parametrize("given", REPRESENTATIONS)
def test_each_is_the_rotation_that_it_says(given, seeded):
    rng = np.random.default_rng(seeded.randrange(2**32))
    values = np.stack([random_values(given, rng) for _ in range(50)])
    matrices = np.stack([truth(each, given) for each in values])
    np.testing.assert_allclose(convert(values, given, "matrix").reshape(-1, 3, 3), matrices, atol=1e-6)
    for wanted in REPRESENTATIONS:
        converted = convert(values.reshape(5, 10, -1), given, wanted)
        assert converted.shape == (5, 10, width(wanted)) and converted.dtype == np.float32
        if wanted != given:
            assert np.abs(converted).max() <= bound(wanted) + 1e-6
        again = np.stack([truth(each.astype(np.float64), wanted) for each in converted.reshape(50, -1)])
        np.testing.assert_allclose(again, matrices, atol=3e-6)
        if given.startswith(("euler", "axis")):  # these are one for each rotation
            np.testing.assert_allclose(convert(converted, wanted, given).reshape(50, -1), values, atol=2e-3)


def test_edges():
    identity = np.eye(3).reshape(1, 9)
    np.testing.assert_array_equal(convert(identity, "matrix", "quaternion"), [[1, 0, 0, 0]])
    np.testing.assert_array_equal(convert(identity, "matrix", "axis_angle"), [[0, 0, 0]])
    np.testing.assert_array_equal(convert(np.zeros((1, 3)), "axis_angle", "matrix"), identity)
    half_turns = np.array([[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1e-9, 1, 0, 0]])
    turned = convert(half_turns, "quaternion", "axis_angle")
    np.testing.assert_allclose(np.linalg.norm(turned, axis=-1), math.pi, rtol=1e-6)
    for first in (-2.0, 0.5):
        locked = np.array([[first, math.pi / 2, 0.25]])
        for order in ("rpy", "ypr", "pry"):
            name = f"euler_angles_{order}"
            given = convert(locked, name, "matrix")
            angles = convert(given, "matrix", name)
            np.testing.assert_allclose(convert(angles, name, "matrix"), given, atol=1e-3)
    assert np.isnan(convert(np.zeros((1, 4)), "quaternion", "matrix")).all()
    with pytest.raises(ValueError, match=r"euler_angles_xyz.*rotation_6d"):
        width("euler_angles_xyz")
