# SPDX-License-Identifier: Apache-2.0
"""Gives functions of the extension module a signature, and one-line errors for wrong arguments.

For a wrong argument, the extension itself prints its whole signature and all given types. `plain(function)` is the same
function, but its TypeError names the argument.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def plain(function: F, name: str | None = None) -> F:
    """Returns `function` with a signature for `inspect` and `help`, and with one-line TypeErrors, under the name
    `name`."""
    signature = _signature(function)
    if signature is None:
        return function
    shown = name or function.__name__

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if "incompatible function arguments" not in str(error):
                raise
            given = error
        raise TypeError(_reason(shown, signature, args, kwargs, str(given)))

    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__doc__ = function.__nb_signature__[0][1]  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def resolve_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Returns the caller's values; else RANK and WORLD_SIZE if both are set; else 0 of 1.

    Raises ValueError if only one of the two is given, or if they do not fit together.
    """
    if (rank is None) != (world_size is None):
        raise ValueError("give rank and world_size together, or neither")
    if rank is None or world_size is None:
        is_set = "RANK" in os.environ and "WORLD_SIZE" in os.environ
        rank, world_size = (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])) if is_set else (0, 1)
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size} ranks")
    return rank, world_size


def plain_methods(cls: type, names: Iterable[str]) -> None:
    """Applies plain() to methods of a class of the extension, in place."""
    for name in names:
        wrapped = plain(getattr(cls, name), f"{cls.__name__}.{name}")
        of_object = "self" in inspect.signature(wrapped).parameters
        setattr(cls, name, wrapped if of_object else staticmethod(wrapped))


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    overloads: Sequence[Sequence[Any]] = getattr(function, "__nb_signature__", ())
    if len(overloads) != 1:
        return None
    text, _, *rest = overloads[0]
    defaults: Sequence[Any] = rest[0] if rest else ()
    tree = ast.parse(re.sub(r"\\(\d+)", r"__default(\1)", text) + ": ...").body[0]
    assert isinstance(tree, ast.FunctionDef)

    def parameter(argument: ast.arg, kind: Any, default: ast.expr | None) -> inspect.Parameter:
        value = inspect.Parameter.empty
        if isinstance(default, ast.expr) and not isinstance(default, ast.Call):
            value = ast.literal_eval(default)  # the signature was written by hand
        if isinstance(default, ast.Call):
            value = defaults[ast.literal_eval(default.args[0])]
        annotation = ast.unparse(argument.annotation) if argument.annotation else inspect.Parameter.empty
        return inspect.Parameter(argument.arg, kind, default=value, annotation=annotation)

    arguments = tree.args
    positional = [*arguments.posonlyargs, *arguments.args]
    missing = [None] * (len(positional) - len(arguments.defaults))
    parameters = [
        parameter(argument, inspect.Parameter.POSITIONAL_OR_KEYWORD, default)
        for argument, default in zip(positional, [*missing, *arguments.defaults], strict=True)
    ]
    parameters += [
        parameter(argument, inspect.Parameter.KEYWORD_ONLY, default)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    returned = ast.unparse(tree.returns) if tree.returns else inspect.Signature.empty
    return inspect.Signature(parameters, return_annotation=returned)


def _reason(name: str, signature: inspect.Signature, args: Any, kwargs: Any, original: str) -> str:
    for given in kwargs:
        if given not in signature.parameters:
            near = difflib.get_close_matches(given, signature.parameters, 1)
            return f"{name}() has no argument '{given}'" + (f"; did you mean '{near[0]}'?" if near else "")
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        return f"{name}(): {error}"
    for argument, value in bound.arguments.items():
        annotation = signature.parameters[argument].annotation
        if isinstance(annotation, str) and not _fits(ast.parse(annotation, mode="eval").body, value):
            return f"{name}(): {argument} is {_short(annotation)}, not {_shown(value)}"
    return f"{name}(): {original.splitlines()[0]}"


def _short(annotation: str) -> str:
    return re.sub(r"\b(?:collections\.abc|os|millrace|_core|numpy\.typing|numpy)\.", "", annotation)


def _shown(value: object) -> str:
    text = repr(value)
    text = text if len(text) <= 60 else text[:57] + "..."
    return text if value is None else f"the {type(value).__name__} {text}"


def _is_index(value: object) -> bool:
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


_SIMPLE: Mapping[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "int": _is_index,
    "float": lambda value: isinstance(value, float) or _is_index(value),
    "bool": lambda value: isinstance(value, bool),
    "bytes": lambda value: isinstance(value, bytes),
    "dict": lambda value: isinstance(value, dict),
    "list": lambda value: isinstance(value, list),
    "os.PathLike": lambda value: isinstance(value, os.PathLike),
}


def _fits(annotation: ast.expr, value: Any) -> bool:
    """Returns whether a value fits an annotation. Every value fits an unknown annotation."""
    if isinstance(annotation, ast.BinOp):
        return _fits(annotation.left, value) or _fits(annotation.right, value)
    if isinstance(annotation, ast.Constant):
        return value is annotation.value
    if not isinstance(annotation, ast.Subscript):
        return _SIMPLE.get(ast.unparse(annotation), lambda value: True)(value)
    outer, inner = ast.unparse(annotation.value), annotation.slice
    if outer == "collections.abc.Sequence":
        return isinstance(value, Sequence) and not isinstance(value, str) and all(_fits(inner, item) for item in value)
    if outer == "tuple" and isinstance(inner, ast.Tuple):
        items = inner.elts
        return (
            isinstance(value, Sequence)
            and len(value) == len(items)
            and all(_fits(item, given) for item, given in zip(items, value, strict=True))
        )
    return _SIMPLE.get(outer, lambda value: True)(value)
