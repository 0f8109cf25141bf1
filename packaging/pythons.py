# SPDX-License-Identifier: Apache-2.0
"""The Python interpreters of this machine that the wheel is for."""

import os
import subprocess
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13")

# Where pyenv, uv and the manylinux images keep theirs, beside PATH.
PLACES = ("~/.pyenv/versions/*/bin", "~/.local/share/uv/python/*/bin", "/opt/python/cp3*/bin")


def answers(program: Path, version: str) -> bool:
    """A name on PATH may be a shim that finds nothing behind it; headers and pip are needed to build."""
    code = (
        "import sys, sysconfig, pathlib, importlib.util as u; print('%d.%d' % sys.version_info[:2], "
        "pathlib.Path(sysconfig.get_path('include'), 'Python.h').exists() and u.find_spec('venv') is not None)"
    )
    try:
        done = subprocess.run([program, "-c", code], capture_output=True, text=True, timeout=60)
    except OSError:
        return False
    return done.stdout.split() == [version, "True"]


def folders() -> list[Path]:
    found = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    for place in PLACES:
        root, _, pattern = str(Path(place).expanduser()).partition("*")
        above = Path(root).parent if not root.endswith("/") else Path(root)
        found += sorted(above.glob(str(Path(root + "*" + pattern).relative_to(above))))
    return found


def find(version: str) -> Path | None:
    for folder in folders():
        program = folder / f"python{version}"
        if program.exists() and answers(program, version):
            return program
    return None


def find_all() -> dict[str, Path]:
    """By version, those that are here."""
    return {version: program for version in VERSIONS if (program := find(version))}
