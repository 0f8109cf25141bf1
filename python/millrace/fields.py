# SPDX-License-Identifier: Apache-2.0
"""Defines which fields of samples are read, and how each is decoded: `mr.image(size=224)`, `mr.text()`, ..."""

from __future__ import annotations

import json as _json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import EllipsisType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from millrace import _core

Rule = Literal["stack", "pad", "list"]

#: The row lengths of a padded field are in an array with the field's name and this suffix.
LENGTHS = "_lengths"
#: Which rows of a field have a number is in an array with the field's name and this suffix.
MASK = "_mask"


@dataclass(frozen=True)
class Field:
    """One field of a batch. image(), array(), raw(), number(), text(), tokens(), integer(), json(), msgpack(), npz()
    and blob() make it. All of them take these arguments:

    of: names of the sample's fields to read, such as "jpg;jpeg;png"; the first one present is used. None: the name that
        SampleLoader gives the field.
    optional: True: a sample may lack the field; a batch then has a list, with None for the missing values. False: a
        sample without the field counts as damaged.
    """

    kind: str
    of: str | None = None
    optional: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    parse: Callable[[Any], Any] | None = None  #: the Python function that converts the bytes or the text

    def _spec(self, name: str) -> dict[str, Any]:
        parts = [part.strip().lstrip(".") for part in (self.of or name).split(";")]
        # Names of columns may be in any case; fields of tars are in lower case.
        sources = list(dict.fromkeys(name for part in parts for name in (part, part.lower())))
        return {"name": name, "sources": sources, "kind": self.kind, "required": not self.optional, **self.options}


def image(
    of: str | None = None,
    *,
    size: int | tuple[int, int] | None = None,
    fit: Literal["crop", "stretch", "pad"] = "crop",
    mode: Literal["rgb", "rgba", "gray"] = "rgb",
    layout: Literal["hwc", "chw"] = "hwc",
    dtype: Literal["uint8", "float32"] = "uint8",
    reduced: bool = False,
    batch: Literal["stack", "list"] | None = None,
    optional: bool = False,
) -> Field:
    """Decodes a JPEG, PNG or WebP to pixels: [height, width, 3], or [height, width] if mode is 'gray'.

    size: (height, width), or one number for both; None: the stored size, and a batch is a list.
    fit: how a picture with another aspect ratio is fitted to the size: 'crop' takes the largest part in the middle
        (Pillow's ImageOps.fit), 'stretch' takes the whole picture, 'pad' takes the whole picture and adds black
        borders. Resizing is bilinear, as in Pillow.
    dtype: 'float32' has values from 0 to 1.
    reduced: True: decodes a JPEG at a half, a quarter or an eighth of its size if that is still enough. This is faster,
        but the pixels differ slightly.
    """
    height, width = (size, size) if isinstance(size, int) else size or (0, 0)
    if size is not None and (height < 1 or width < 1):
        raise ValueError(f"image: a size is two sides above 0, not {size}")
    if layout not in ("hwc", "chw") or dtype not in ("uint8", "float32"):
        raise ValueError("image: layout is 'hwc' or 'chw', dtype 'uint8' or 'float32'")
    options = {
        "height": height, "width": width, "fit": fit, "colour": mode, "channels_first": layout == "chw",
        "as_float": dtype == "float32", "reduced": reduced, "batch": batch or ("list" if size is None else "stack"),
    }  # fmt: skip
    return Field("image", of, optional, options)


def array(
    of: str | None = None,
    *,
    dtype: npt.DTypeLike | None = None,
    shape: Sequence[int] | None = None,
    fill: float | None = None,
    batch: Rule = "stack",
    pad_value: float = 0,
    length: int | None = None,
    optional: bool = False,
) -> Field:
    """Reads a .npy array of any shape, and of any dtype with a fixed size, or a column of lists of numbers.

    dtype: the numbers are converted to it; an integer dtype takes whole numbers within its range only. None: the stored
        dtype. Lists of JSON need it.
    shape: the shape that every array must have; a side of -1 may have any size. None: any shape.
    fill: the value of nulls in a list. None: a null is an error that names file, row and column.
    batch: 'stack' (all arrays must have one shape), 'pad' or 'list'. 'pad' pads the first dimension with `pad_value` to
        the longest array of the batch, or to `length`, and cuts longer arrays; the lengths are in the batch as
        NAME_lengths.
    """
    options = {
        "batch": batch, "pad_value": float(pad_value), "length": length or 0, "shape": list(shape or ()),
        "dtype": "" if dtype is None else np.dtype(dtype).str,
    }  # fmt: skip
    return Field("npy", of, optional, options if fill is None else options | {"fill": float(fill)})


def raw(
    dtype: npt.DTypeLike,
    shape: Sequence[int] = (-1,),
    of: str | None = None,
    *,
    batch: Rule = "stack",
    pad_value: float = 0,
    length: int | None = None,
    optional: bool = False,
) -> Field:
    """Reads bytes as an array of this dtype and shape, in C order. One dimension may be -1. `batch`: as in array()."""
    options = {
        "dtype": np.dtype(dtype).str, "shape": list(shape), "batch": batch, "pad_value": float(pad_value),
        "length": length or 0,
    }  # fmt: skip
    return Field("raw", of, optional, options)


def text(of: str | None = None, *, optional: bool = False) -> Field:
    """Decodes UTF-8 to str."""
    return Field("text", of, optional)


def tokens(
    tokenizer: _core.Tokenizer | str | os.PathLike[str],
    of: str | None = None,
    *,
    length: int | None = None,
    pad_id: int = 0,
    special_tokens: bool = True,
    batch: Literal["pad", "list"] = "pad",
    optional: bool = False,
) -> Field:
    """Tokenises UTF-8 text when it is read. A batch has the token ids, int64 [rows, longest], or [rows, length] with
    longer rows cut. Shorter rows are padded with `pad_id`. The lengths are in the batch as NAME_lengths.

    special_tokens: True: adds the special tokens that the tokenizer puts before and after a text.
    """
    if not isinstance(tokenizer, _core.Tokenizer):
        tokenizer = _core.Tokenizer.from_file(os.fspath(tokenizer))
    options = {
        "tokenizer": tokenizer, "special_tokens": special_tokens, "batch": batch, "pad_value": float(pad_id),
        "length": length or 0,
    }  # fmt: skip
    return Field("tokens", of, optional, options)


def number(
    dtype: npt.DTypeLike | None = None,
    of: str | None = None,
    *,
    fill: float | None = None,
    mask: bool = False,
    optional: bool = False,
) -> Field:
    """Reads a number: [rows] of `dtype` in every batch.

    dtype: the numbers are converted to it; an integer dtype takes whole numbers within its range only. None: the type
        that the file states. Text, such as the digits of a tar's member, needs it.
    fill: the value of a null. None: a null is an error that names file, row and column, unless `mask` is True.
    mask: True: the batch also has NAME_mask, bool [rows]: False for a null (whose number is `fill`, or 0) and for a row
        of padding.
    """
    options = {"dtype": "" if dtype is None else np.dtype(dtype).str, "mask": mask}
    return Field("number", of, optional, options if fill is None else options | {"fill": float(fill)})


def integer(of: str | None = None, *, optional: bool = False) -> Field:
    """Reads decimal digits, such as a class: int64 [rows]."""
    return Field("integer", of, optional)


def blob(of: str | None = None, *, optional: bool = False, parse: Callable[[bytes], Any] | None = None) -> Field:
    """Returns the bytes unchanged, or the result of `parse` for them. A batch has a list."""
    return Field("bytes", of, optional, parse=parse)


def json(of: str | None = None, *, optional: bool = False) -> Field:
    """Parses JSON to Python objects. A batch has a list."""
    return Field("json", of, optional, parse=_json.loads)


def msgpack(of: str | None = None, *, optional: bool = False) -> Field:
    """Parses MessagePack to Python objects. A batch has a list. Needs the package msgpack."""
    return blob(of, optional=optional, parse=_parse_msgpack)


def npz(of: str | None = None, *, optional: bool = False) -> Field:
    """Reads a .npz as a dict of arrays. A batch has a list."""
    return Field("npz", of, optional, parse=_parse_npz)


def _parse_msgpack(data: bytes) -> Any:
    try:
        import msgpack as package
    except ImportError as error:
        raise ImportError("fields in MessagePack need the package msgpack: pip install msgpack") from error
    return package.unpackb(data)


def _parse_npz(data: bytes) -> dict[str, npt.NDArray[Any]]:
    import io

    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return dict(arrays)


_BY_EXTENSION: dict[str, Callable[[], Field]] = {
    **dict.fromkeys(("json", "jsn"), json),
    **dict.fromkeys(("msgpack", "mp"), msgpack),
    "npz": npz,
    **dict.fromkeys(("txt", "text", "transcript"), text),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), integer),
    "npy": lambda: array(batch="list"),
    **dict.fromkeys(("jpg", "jpeg", "png", "webp"), image),
}


def _extension(name: str) -> str:
    """Returns the extension in a field's name: "json" for "meta.json" and for "meta.json.gz"."""
    return name.lower().removesuffix(".gz").rpartition(".")[2]


def parser_of(name: str) -> Callable[[Any], Any] | None:
    """Returns the parser of a field for which no Field was given."""
    by_extension = _BY_EXTENSION.get(_extension(name))
    return None if by_extension is None else by_extension().parse


def field_of(name: str, of: str | None = None) -> Field:
    """Returns a Field by the extension of its name, or of the first name that it is read from. Pickles stay bytes,
    because unpickling runs code."""
    return replace(_BY_EXTENSION.get(_extension((of or name).split(";")[0]), blob)(), of=of)


def _plain(name: str, of: str | None = None) -> Field:
    return blob(of)


#: The argument `fields`: names, whose extensions say how they are decoded, or a Field for each name.
Fields = Sequence[str] | Mapping[str, "Field | str | EllipsisType | None"]


def resolve_fields(fields: Fields | None, by_extension: bool = True) -> dict[str, Field]:
    """Returns the Field of each requested name. Without `by_extension`, a name without a Field is decoded by its bytes.
    Raises TypeError."""
    plain = field_of if by_extension else _plain
    if fields is None:
        return {}
    if isinstance(fields, str):
        raise TypeError("SampleLoader: fields is a list of names, or a dict of fields by their names")
    if not isinstance(fields, Mapping):
        return {name: plain(name) for name in fields}
    resolved: dict[str, Field] = {}
    for name, given in fields.items():
        if given is None or given is ...:
            given = plain(name)
        elif isinstance(given, str):
            given = plain(name, of=given)
        if not isinstance(given, Field):
            raise TypeError(f"SampleLoader: field {name!r} is {given!r}, not an mr.image(), mr.text() or the like")
        resolved[name] = given
    return resolved
