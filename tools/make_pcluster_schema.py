# SPDX-License-Identifier: Apache-2.0
"""Writes src/millrace/pcluster/data/schema.csv and facts.csv from wheels of AWS ParallelCluster.

    pip download --no-deps -d wheels aws-parallelcluster==3.16.1     # and every release from 3.0.0 on
    pip install 'marshmallow<4' boto3 PyYAML jinja2 tabulate jsonschema python-dateutil
    tools/make_pcluster_schema.py wheels

Each wheel's own marshmallow classes are loaded in a process of their own and walked. A row stands for a key as long as
nothing of it changes: `since` is the first release that has it so, `until` the first that does not. `until` is empty
while the newest wheel has it. Keys that were gone before 3.8 are left out. Regions are in the wheels
from 3.10 on; those of the first such list are dated 3.0. What no wheel tells is in noted.csv, which
is written by hand.
"""

import csv
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "src/millrace/pcluster/data"
OLDEST = (3, 8, 0)

# The schema's expressions and our names for them (patterns.cpp).
ID = "^{0}-[0-9a-z]{{8}}$|^{0}-[0-9a-z]{{17}}$"
PATTERNS = {
    **{ID.format(name): f"@{name}" for name in ("ami", "subnet", "sg", "snap", "vol", "fs", "cr")},
    "^fs-[0-9a-z]{17}$": "@fs17",
    "^fsap-[0-9a-z]{17}$": "@fsap",
    "^fsvol-[0-9a-f]{17}$": "@fsvol",
    "^(fc-[0-9a-f]{8,18})$": "@fc",
    "^(backup-[0-9a-f]{8,})$": "@backup",
    "^arn:.*:role/": "@role",
    "^arn:.*:instance-profile/": "@profile",
    "^arn:.*:policy/": "@policy",
    "^arn:.*:secret": "@secret",
    "^arn:.*:(secretsmanager:.*:.*:secret:|ssm:.*:.*:parameter\\/).*$": "@password",
    "^[\\*a-z0-9\\-\\.]+$": "@bucket",
    "^[a-z0-9\\-\\.]+$": "@bucket",
    "^[1-7]:([01]\\d|2[0-3]):([0-5]\\d)$": "@weekly",
    "^([01]\\d|2[0-3]):([0-5]\\d)$": "@daily",
}
# Numbers of constants.py, and lists of it: our kind, and the names that they had over time.
NUMBERS = {
    "root_volume_gib": ["EBS_ROOT_VOLUME_SIZE_DEFAULT", "EBS_VOLUME_SIZE_DEFAULT"],
    "bootstrap_seconds": ["NODE_BOOTSTRAP_TIMEOUT"],
    "login_pools": ["MAX_NUMBER_OF_LOGIN_NODE_POOLS"],
    "queues": ["MAX_NUMBER_OF_QUEUES"],
}
LISTS = {
    "os": "SUPPORTED_OSES",
    "os_without_image": "PRIVATE_OSES",
    "os_without_p6e-gb200": "UNSUPPORTED_OSES_FOR_P6E_GB200",
    "os_without_p6-b300": "UNSUPPORTED_OSES_FOR_P6_B300",
}
# Validators whose rules here depend on the version.
VALIDATORS = {
    "CapacityBlockHealthStatusValidator",
    "HeadNodeMemorySizeValidator",
    "SharedEbsPerformanceBottleNeckValidator",
    "SharedStorageEfsSettingsValidator",
    "UltraserverCapacityBlockSizeValidator",
}
KEPT = {"os", "region"}  # of these, what was gone before 3.8 is kept, to say so

# Runs with one wheel on its path and prints its keys and facts as JSON.
READER = r"""
import json, pathlib, re, sys
from unittest import mock
for name in ("aws_cdk", "aws_cdk.core", "aws_cdk.aws_cloudformation"):  # the library of 3.5 imports its stack
    sys.modules[name] = mock.MagicMock()
import marshmallow
from marshmallow import fields, validate
import pcluster
from pcluster import constants
from pcluster.schemas import cluster_schema

def detail(validators):
    parts = {"detail": "", "items": ""}
    for one in validators:
        if isinstance(one, validate.And):
            one = one.validators[0]
        if isinstance(one, validate.OneOf):
            parts["detail"] = "|".join(str(word) for word in one.choices)
        elif isinstance(one, validate.Regexp):
            parts["detail"] = "re:" + one.regex.pattern
        elif isinstance(one, validate.Range):
            least = "" if one.min is None else one.min + (0 if one.min_inclusive else 1)
            parts["detail"] = f"{least}..{'' if one.max is None else one.max}"
        elif isinstance(one, validate.Length):
            least, most = (one.equal, one.equal) if one.equal is not None else (one.min or 0, one.max)
            parts["items"] = f"{least}..{'' if most is None else most}"
        elif getattr(one, "__name__", "").startswith("is_cidr"):
            parts["detail"] = "@cidr"
    return parts

keys = {}
def walk(path, schema, depth=0):
    if depth > 9:
        raise SystemExit(f"{path} is too deep")
    for name, field in schema.fields.items():
        key = field.data_key or name
        parts = detail(field.validators)
        below = None
        many = isinstance(field, fields.Nested) and field.many
        inner = field
        if isinstance(field, fields.List):
            many, inner = True, field.inner
            items = parts["items"]
            parts = detail(inner.validators)
            parts["items"] = items
        kind = type(inner).__name__
        if path.endswith("CustomActions"):  # before 3.6 without Sequence
            value = "action"
        elif isinstance(inner, fields.Nested):
            below = inner.schema
            value = "sections" if many else "section"
        elif kind == "Dict":
            value = "pairs_list" if many else "pairs"
        elif kind == "Raw":
            value = "any"
        else:
            value = {"String": "text", "Str": "text", "Integer": "int", "Int": "int", "Float": "number",
                     "Boolean": "bool", "Bool": "bool"}[kind] + ("s" if many else "")
        if not many:
            parts["items"] = ""
        keys[f"{path}\t{key}"] = [value, parts["detail"], parts["items"], bool(field.required)]
        if below is not None:
            inside = (path + "." if path else "") + key + ("[]" if many else "")
            walk(inside, below, depth + 1)

walk("", cluster_schema.ClusterSchema("x"))
root = pathlib.Path(pcluster.__file__).parent
regions = root / "resources" / "supported-regions"
validators = set()
for file in (root / "config").glob("cluster_config.py"):
    validators |= set(re.findall(r"\b[A-Z]\w+Validator\b", file.read_text()))
known = {name: value for name, value in vars(constants).items() 
         if name[0].isupper() and isinstance(value, (int, list)) or name.startswith("ULTRASERVER_CAPACITY")}
print(json.dumps({"keys": keys, "constants": known, "validators": sorted(validators),
                  "regions": regions.read_text().split() if regions.exists() else []}, default=str))
"""


def version_of(wheel: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in wheel.name.split("-")[1].split("."))


def text_of(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in (version if version[2] else version[:2]))


def read(wheel: Path) -> dict:
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        newest = max(info.date_time for info in archive.infolist())
        command = [sys.executable, "-W", "ignore", "-c", READER]
        ran = subprocess.run(command, env={"PYTHONPATH": folder}, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"{wheel.name}: {ran.stderr}")
    return {**json.loads(ran.stdout), "date": "{:04}-{:02}-{:02}".format(*newest[:3])}


def named_pattern(detail: str, unknown: set[str]) -> str:
    if not detail.startswith("re:"):
        return detail
    pattern = detail[3:]
    if pattern in PATTERNS:
        return PATTERNS[pattern]
    if re.match(pattern, "/fsx/a") and re.match(pattern, "fsx") and not re.match(pattern, "/.a"):
        return "@path"
    if re.match(pattern, "10.0.0.0/8") and not re.match(pattern, "a"):
        return "@cidr"
    unknown.add(pattern)
    return ""


def facts_of(release: dict) -> set[tuple[str, str]]:
    constants = release["constants"]
    facts = {("region", region) for region in release["regions"]}
    facts |= {("validator", name) for name in release["validators"] if name in VALIDATORS}
    for kind, names in NUMBERS.items():
        facts |= {(kind, str(constants[name])) for name in names[:1] if name in constants}
        if names[0] not in constants and len(names) > 1 and names[1] in constants:
            facts.add((kind, str(constants[names[1]])))
    for kind, name in LISTS.items():
        facts |= {(kind, value) for value in constants.get(name, [])}
    for prefix, sizes in constants.get("ULTRASERVER_CAPACITY_BLOCK_ALLOWED_SIZE_DICT", {}).items():
        facts |= {(f"block_size_{prefix}", str(size)) for size in sizes}
    return facts


def spans(releases: list, values: list[dict]) -> list[tuple]:
    """(key, value, since, until) for each run of releases in which a key has one value."""
    rows = []
    recent = [one for release, one in zip(releases, values, strict=True) if release >= OLDEST]
    for key in sorted({key for one in values for key in one}):
        if key[0] not in KEPT and not any(key in one for one in recent):
            continue
        start = None
        for at, release in enumerate([*releases, None]):
            value = values[at].get(key) if release else None
            if start is not None and value != values[start].get(key):
                rows.append((key, values[start][key], text_of(releases[start]), text_of(release) if release else ""))
                start = None
            if start is None and value is not None:
                start = at
    return rows


def write(path: Path, wheels: list[Path], columns: list[str], rows: list[list]) -> None:
    with path.open("w", newline="") as file:
        newest = text_of(version_of(wheels[-1]))
        file.write(
            f"# Written by tools/make_pcluster_schema.py from aws-parallelcluster up to {newest}; do not edit.\n"
        )
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([columns, *rows])


def main() -> None:
    wheels = sorted(Path(sys.argv[1]).glob("aws_parallelcluster-*.whl"), key=version_of)
    releases = [version_of(wheel) for wheel in wheels]
    read_all = [read(wheel) for wheel in wheels]
    unknown: set[str] = set()
    keys = []
    for one in read_all:
        table = {}
        for key, (value, detail, items, required) in one["keys"].items():
            table[key] = (value, named_pattern(detail, unknown), items, "yes" if required else "")
        keys.append(table)
    # Image.Os is a list of facts.csv, which says more of each system.
    rows = [
        [*key.split("\t"), *("" if key == "Image\tOs" and i == 1 else v for i, v in enumerate(value)), since, until]
        for key, value, since, until in spans(releases, keys)
    ]
    merged = merge(rows)
    write(
        DATA / "schema.csv",
        wheels,
        ["section", "key", "value", "detail", "items", "required", "since", "until"],
        merged,
    )
    facts = [{fact: True for fact in facts_of(one)} for one in read_all]
    rows = [[*fact, since, until] for fact, _, since, until in spans(releases, facts)]
    listed = next(text_of(v) for v, one in zip(releases, read_all, strict=True) if one["regions"])
    for row in rows:
        row[2] = "3.0" if row[0] == "region" and row[2] == listed else row[2]
    rows += [["release", one["date"], text_of(version), ""] for version, one in zip(releases, read_all, strict=True)]
    write(DATA / "facts.csv", wheels, ["kind", "value", "since", "until"], rows)
    for pattern in sorted(unknown):
        print(f"taken as any text: {pattern}", file=sys.stderr)


def merge(rows: list[list]) -> list[list]:
    """Joins neighbours that differ in their span only."""
    out: list[list] = []
    for row in rows:
        if out and out[-1][:-2] == row[:-2] and out[-1][-1] == row[-2]:
            out[-1][-1] = row[-1]
        else:
            out.append(row)
    return out


if __name__ == "__main__":
    main()
