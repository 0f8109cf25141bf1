# SPDX-License-Identifier: Apache-2.0
"""Small rules for pages: a relative link leads to a file and a heading that exist, rows of a table have as many cells as
its head, lines of text and of tables are shorter than 120 characters. Lines of code may be longer. A page of docs/
says whom it is for, and docs/index.md lists it: the navigation of the site is that list."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT = 120
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
CODE_SPAN = re.compile(r"`[^`\n]*`")
CELL_BORDER = re.compile(r"(?<!\\)\|")


def pages() -> list[pathlib.Path]:
    listing = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in listing.stdout.splitlines() if (ROOT / line).exists()]


def text_lines(page: pathlib.Path):
    """The lines of a page that are not code, with their numbers. Code is fenced, or indented behind an empty line."""
    is_fenced = is_indented = False
    before = ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_fenced = not is_fenced
        elif not is_fenced:
            is_indented = line.startswith("    ") and (is_indented or not before.strip())
            if not is_indented:
                yield number, line
        before = line


def anchors(page: pathlib.Path) -> set[str]:
    """Those of its headings, as GitHub makes them."""
    headings = (line.lstrip("#").strip() for _, line in text_lines(page) if line.startswith("#"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(page: pathlib.Path, line: str):
    for path, anchor in LINK.findall(CODE_SPAN.sub("", line)):
        target = page.parent / path if path else page
        if not target.exists():
            yield f"links to {path}, which is not there"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield f"links to #{anchor}, a heading that {path or 'this page'} does not have"


def cells(row: str) -> int:
    return len(CELL_BORDER.findall(row))


def is_addressed(page: pathlib.Path) -> bool:
    """Whether a sentence of the first paragraph begins with "For"."""
    for paragraph in page.read_text().split("\n\n")[1:2]:
        return re.search(r"(^|\.\s)For ", paragraph) is not None
    return False


def problems_of_docs(page: pathlib.Path):
    """What every page of docs/ owes to its readers."""
    index = ROOT / "docs" / "index.md"
    if page == index:
        return
    if not is_addressed(page):
        yield 1, 'no "For ...": say whom the page is for, below its heading'
    if f"]({page.relative_to(index.parent)})" not in index.read_text():
        yield 1, "docs/index.md does not list it, so the site's navigation lacks it"


def problems(page: pathlib.Path):
    if page.is_relative_to(ROOT / "docs"):
        yield from problems_of_docs(page)
    columns = 0  # of the table that the line before belongs to
    for number, line in text_lines(page):
        is_row = line.startswith("|")
        if is_row and columns and cells(line) != columns:
            yield number, f"{cells(line) - 1} cells in a table of {columns - 1} columns"
        columns = (columns or cells(line)) if is_row else 0
        if len(line) >= LIMIT:
            yield number, f"{len(line)} characters"
        for problem in dead_links(page, line):
            yield number, problem


def main() -> int:
    found = [f"{page.relative_to(ROOT)}:{number}: {what}" for page in pages() for number, what in problems(page)]
    print(*found, sep="\n", file=sys.stderr) if found else None
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
