# SPDX-License-Identifier: Apache-2.0
"""Converts rotations between the representations that modality.json names. The conventions are those of PyTorch3D,
which GR00T uses.

    quaternion         [..., 4], the real part first; any length but 0
    axis_angle         [..., 3], radians
    rotation_6d        [..., 6], the first two rows of the matrix (Zhou et al., arXiv:1812.07035)
    matrix             [..., 9], by rows
    euler_angles_rpy   [..., 3], radians, about the moving axes X (r), Y (p) and Z (y) in the order of the letters: any of
                       the six orders

Every conversion goes through the matrix, in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_EULER = "euler_angles_"


def _matrix_of_quaternion(q: Array) -> Array:
    w, x, y, z = np.moveaxis(q / np.linalg.norm(q, axis=-1, keepdims=True), -1, 0)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, -1) for row in rows], -2)


def _quaternion_of_matrix(m: Array) -> Array:
    """Returns the quaternion with a real part of 0 or more. Shepperd's method has four formulas; this uses the one with
    the largest divisor."""
    diagonal = np.diagonal(m, axis1=-2, axis2=-1)
    trace = diagonal.sum(-1)
    squares = np.stack([trace, *(2 * diagonal[..., i] - trace for i in range(3))], -1)
    largest = squares.argmax(-1)[..., None, None]
    sums = [m[..., j, i] + m[..., i, j] for i, j in ((0, 1), (0, 2), (1, 2))]
    differences = [m[..., j, i] - m[..., i, j] for i, j in ((1, 2), (2, 0), (0, 1))]
    four = [
        [1 + squares[..., 0], *differences],
        [differences[0], 1 + squares[..., 1], sums[0], sums[1]],
        [differences[1], sums[0], 1 + squares[..., 2], sums[2]],
        [differences[2], sums[1], sums[2], 1 + squares[..., 3]],
    ]
    candidates = np.stack([np.stack(each, -1) for each in four], -2)
    q = np.take_along_axis(candidates, largest, -2)[..., 0, :]
    q = q / np.linalg.norm(q, axis=-1, keepdims=True)
    return np.where(q[..., :1] < 0, -q, q)


def _matrix_of_axis_angle(v: Array) -> Array:
    half = np.linalg.norm(v, axis=-1, keepdims=True) / 2
    return _matrix_of_quaternion(np.concatenate([np.cos(half), np.sinc(half / np.pi) / 2 * v], -1))


def _axis_angle_of_matrix(m: Array) -> Array:
    q = _quaternion_of_matrix(m)
    half = np.arctan2(np.linalg.norm(q[..., 1:], axis=-1, keepdims=True), q[..., :1])
    return q[..., 1:] / (np.sinc(half / np.pi) / 2)


def _matrix_of_6d(d: Array) -> Array:
    first = d[..., :3] / np.linalg.norm(d[..., :3], axis=-1, keepdims=True)
    second = d[..., 3:] - (first * d[..., 3:]).sum(-1, keepdims=True) * first
    second = second / np.linalg.norm(second, axis=-1, keepdims=True)
    return np.stack([first, second, np.cross(first, second)], -2)


def _flat(m: Array, rows: int) -> Array:
    return m[..., :rows, :].reshape(*m.shape[:-2], 3 * rows)


def _axes(representation: str) -> tuple[int, int, int, float]:
    """Returns the three axes, and 1 if they follow each other in the order X, Y, Z, else -1."""
    i, j, k = ("rpy".index(letter) for letter in representation.removeprefix(_EULER))
    return i, j, k, 1.0 if (j - i) % 3 == 1 else -1.0


def _matrix_of_euler(angles: Array, representation: str) -> Array:
    out = np.broadcast_to(np.eye(3), (*angles.shape[:-1], 3, 3))
    for number, axis in enumerate(_axes(representation)[:3]):
        turn = np.zeros((*angles.shape[:-1], 3, 3))
        up, over = (axis + 1) % 3, (axis + 2) % 3
        turn[..., axis, axis] = 1
        turn[..., up, up] = turn[..., over, over] = np.cos(angles[..., number])
        turn[..., over, up] = np.sin(angles[..., number])
        turn[..., up, over] = -turn[..., over, up]
        out = out @ turn
    return out


def _euler_of_matrix(m: Array, representation: str) -> Array:
    i, j, k, sign = _axes(representation)
    sine = np.clip(sign * m[..., i, k], -1, 1)
    first = np.arctan2(-sign * m[..., j, k], m[..., k, k])
    last = np.arctan2(-sign * m[..., i, j], m[..., i, i])
    # If the first and the last axis are on one line, only the sum of their angles is known: the last angle is set to 0.
    locked = np.abs(sine) > 1 - 1e-12
    first = np.where(locked, np.arctan2(sign * m[..., k, j], m[..., j, j]), first)
    return np.stack([first, np.arcsin(sine), np.where(locked, 0, last)], -1)


_KINDS: dict[str, tuple[int, float, Callable[[Array], Array], Callable[[Array], Array]]] = {
    "quaternion": (4, 1.0, _matrix_of_quaternion, _quaternion_of_matrix),
    "axis_angle": (3, np.pi, _matrix_of_axis_angle, _axis_angle_of_matrix),
    "rotation_6d": (6, 1.0, _matrix_of_6d, lambda m: _flat(m, 2)),
    "matrix": (9, 1.0, lambda v: v.reshape(*v.shape[:-1], 3, 3), lambda m: _flat(m, 3)),
}
for _name in (_EULER + order for order in ("rpy", "ryp", "pry", "pyr", "yrp", "ypr")):
    _to, _from = partial(_matrix_of_euler, representation=_name), partial(_euler_of_matrix, representation=_name)
    _KINDS[_name] = (3, np.pi, _to, _from)

#: The names of all representations.
REPRESENTATIONS = tuple(_KINDS)


def width(representation: str) -> int:
    """Returns how many numbers a representation has. Raises ValueError for an unknown representation."""
    if representation not in _KINDS:
        raise ValueError(f"no representation of rotations is called {representation!r}: {', '.join(REPRESENTATIONS)}")
    return _KINDS[representation][0]


def bound(representation: str) -> float:
    """Returns the largest absolute value of the numbers of a representation: 1, or pi for angles."""
    return _KINDS[representation][1]


def convert(values: Array, given: str, wanted: str) -> Array:
    """Converts rotations [..., width(given)] to [..., width(wanted)], float32. Values that are not a rotation (a
    quaternion of zeros) become NaN."""
    if given == wanted:
        return values.astype(np.float32)
    with np.errstate(invalid="ignore", divide="ignore"):
        matrix = _KINDS[given][2](np.asarray(values, np.float64))
        return _KINDS[wanted][3](matrix).astype(np.float32)
