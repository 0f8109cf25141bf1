#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs mypy and pyright over every ```python block of the README and the docs, as a reader's editor would.

    tools/check_snippets.py          # exits with 1 when one of them finds an error
    tools/check_snippets.py --names  # syntax and names only, by ruff, in a moment

A block is a file. The exceptions of the project's own settings do not apply, so the check sees what a user sees.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
BIN = pathlib.Path(sys.executable).parent


def blocks() -> dict[str, str]:
    """File name -> code, padded so that line numbers are those of the page."""
    found = {}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text()
        for match in re.finditer(
            r"^(<!-- test: (?:not run|needs \w+) -->\n)?```python(?: title=\"[^\"]+\")?\n(.*?)^```",
            text,
            re.DOTALL | re.MULTILINE,
        ):
            if match.group(1):  # another package's code
                continue
            line = text.count("\n", 0, match.start(2))
            name = re.sub(r"\W", "_", str(page.relative_to(ROOT))) + f"_{line + 1}.py"
            found[name] = "\n" * line + match.group(2)
    return found


def main() -> int:
    snippets = blocks()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for file, code in snippets.items():
            (folder / file).write_text(code)
        if sys.argv[1:] == ["--names"]:
            ruff = [BIN / "ruff", "check", "--isolated", "--quiet", "--select", "E9,F821", folder]
            return subprocess.run(list(map(str, ruff))).returncode or int(not snippets)
        files = [str(folder / file) for file in snippets]
        mypy = [BIN / "mypy", "--no-error-summary", "--ignore-missing-imports", "--config-file=", "--cache-dir", folder / "cache",
                "--python-executable", sys.executable, *files]  # fmt: skip
        pyright = [BIN / "basedpyright", "--level", "error", "--pythonpath", sys.executable, "-p", folder]
        # torch imports its public names without saying so.
        config = {"typeCheckingMode": "standard", "reportMissingImports": False, "reportPrivateImportUsage": False}
        (folder / "pyrightconfig.json").write_text(json.dumps(config))
        checks = [subprocess.Popen(list(map(str, command)), cwd=folder) for command in (mypy, pyright)]
        answers = [check.wait() for check in checks]
    print(f"{len(snippets)} snippets")
    return int(any(answers) or not snippets)


if __name__ == "__main__":
    sys.exit(main())
