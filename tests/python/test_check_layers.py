# SPDX-License-Identifier: Apache-2.0
"""tools/check_layers.py holds the drawing of the rooms against their #includes."""

import importlib.util
import pathlib

FILE = pathlib.Path(__file__).parents[2] / "tools/check_layers.py"
spec = importlib.util.spec_from_file_location("check_layers", FILE)
check_layers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_layers)

PAGE = """
Before:

    loader ──► plan

After: words.

    cli, python ──► the rooms of their verbs
    loader      ──► formats, storage
    storage     ──► http
    base below all
"""


def write(folder: pathlib.Path, name: str, *includes: str):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(f'#include "millrace/{each}"\n' for each in includes))


def test_a_drawing_shows_what_the_product_includes(tmp_path):
    write(tmp_path, "loader/loader.h", "base/log.h", "formats/tar.h", "loader/order.h")
    write(tmp_path, "loader/detail/read.cpp", "storage/storage.h")
    write(tmp_path, "loader/loader_test.cpp", "plan/plan.h")
    write(tmp_path, "storage/testing/server.cpp", "formats/tar.h")
    write(tmp_path, "storage/url.cpp", "http/http.h")
    write(tmp_path, "cli/cli.cpp", "loader/loader.h")
    assert list(check_layers.misdrawn(tmp_path, PAGE)) == []

    write(tmp_path, "loader/loader.cpp", "order/order.h")
    write(tmp_path, "storage/url.cpp")
    write(tmp_path, "http/http.cpp", "base/log.h")
    assert list(check_layers.misdrawn(tmp_path, PAGE)) == [
        "docs/design/index.md: draws loader ──► formats, storage; it includes formats, order, storage",
        "docs/design/index.md: draws storage ──► http; it includes base",
    ]
