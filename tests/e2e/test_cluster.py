# SPDX-License-Identifier: Apache-2.0
"""cluster new and cluster lint."""

import json
import os
from pathlib import Path

import pytest
from conftest import Millrace

SPEC = """\
region: us-east-2
instance: p5e.48xlarge
count: 80
reservation: cr-0123456789abcdef0
subnet: subnet-0aaaaaaaaaaaabbbb
buckets: [corpus, {name: checkpoints, write: true}]
storage:
  - {mount: /fsx1, id: fs-0123456789abcdef0}
models: 7
"""


def guide(name: str) -> Path:
    path = Path(os.environ.get("MILLRACE_TEST_DATA", "/nowhere")) / "guides" / name
    if not path.exists():
        pytest.skip("MILLRACE_TEST_DATA has no guides")
    return path


@pytest.mark.parametrize(
    "version", ["3.8", "3.9", "3.10", "3.11", "3.11.1", "3.12", "3.13", "3.14", "3.15.1", "3.16.3", "3.17"]
)
def test_what_new_writes_is_clean(millrace: Millrace, tmp_path: Path, version: str):
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    file = tmp_path / "cluster.yaml"
    millrace("cluster", "new", spec, "--out", file, "--pcluster", version)
    assert file.read_text() == millrace("cluster", "new", spec, "--pcluster", version).out
    ran = millrace("cluster", "lint", file, "--pcluster", version, "--fail-on", "warning", "--json")
    assert not [one for one in ran.objects("lint") if one["severity"] != "note"]
    assert "is there already" in millrace.fails("cluster", "new", spec, "--out", file)
    millrace("cluster", "new", spec, "--out", file, "--force")


def test_new_refuses_with_the_reason(millrace: Millrace, tmp_path: Path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.replace("us-east-2", "mars-1"))
    assert "mars-1 is not a region" in millrace.fails("cluster", "new", spec)


def test_the_guide_is_red(millrace: Millrace):
    file = guide("cluster-config.yaml")
    ran = millrace("cluster", "lint", file, "--json", status=3)
    found = {(one["rule"], one["line"]) for one in ran.objects("lint")}
    assert {("PC01", 23), ("PC02", 16), ("PC33", 72), ("PC32", 78), ("PC46", 60)} <= found
    log = json.loads(millrace("cluster", "lint", file, "--sarif", status=3).out)
    assert len(log["runs"][0]["results"]) == len(ran.objects("lint"))
    millrace("cluster", "lint", file, "--fail-on", "never")


MINIMAL = """\
Region: us-east-1
Image:
  Os: alinux2023
HeadNode:
  InstanceType: t3.micro
  Networking:
    SubnetId: subnet-0123456789abcdef0
  Ssh:
    KeyName: my-key
Scheduling:
  Scheduler: slurm
  SlurmQueues:
  - Name: queue1
    ComputeResources:
    - Name: c5large
      Instances:
      - InstanceType: c5.large
      MinCount: 0
      MaxCount: 10
    Networking:
      SubnetIds:
      - subnet-0123456789abcdef0
"""


def test_the_smallest_file_is_warned_of_what_matters(millrace: Millrace, tmp_path: Path):
    """The first example of ParallelCluster's documentation: SSH from everywhere matters, advice for GPU nodes does
    not."""
    file = tmp_path / "cluster.yaml"

    def severities(text: str) -> dict[str, str]:
        file.write_text(text)
        return {
            one["rule"]: one["severity"]
            for one in millrace("cluster", "lint", file, "--json", "--fail-on", "never").objects("lint")
        }

    assert severities(MINIMAL) == {"PC61": "warning", "PC48": "note", "PC53": "note"}
    gpus = severities(MINIMAL.replace("c5.large", "g5.12xlarge"))
    assert (gpus["PC48"], gpus["PC53"]) == ("warning", "warning")


def test_a_file_is_for_the_newest_version_unless_told_otherwise(millrace: Millrace, tmp_path: Path):
    """Amazon Linux 2 and AWS Batch went with 3.16, what is new of 3.13 to 3.16 is known."""
    file = tmp_path / "cluster.yaml"
    file.write_text(MINIMAL.replace("alinux2023", "alinux2"))
    ran = millrace("cluster", "lint", file, "--json", status=3)
    assert "alinux2 went with 3.16 (2026-08-20); this is for 3.16.3" in {one["message"] for one in ran.objects("lint")}
    millrace("cluster", "lint", file, "--pcluster", "3.15.1")

    new = MINIMAL.replace("alinux2023", "ubuntu2404").replace(
        "      MinCount: 0\n",
        "      MinCount: 0\n      LaunchTemplateOverrides: {LaunchTemplateId: lt-0123456789abcdef0, Version: 1}\n",
    )
    new = new.replace("  InstanceType: t3.micro\n", "  InstanceType: t3.small\n  SharedStorageType: Efs\n"
                      "  SharedStorageEfsSettings: {Encrypted: true}\n")  # fmt: skip
    new += "DevSettings:\n  EfaInterfaceType: efa\n  Timeouts: {ComputeInstanceInfoTimeout: 120}\n"
    file.write_text(new + "  AmiSearchFilters: {NamePrefix: mine}\n")
    millrace("cluster", "lint", file)
    ran = millrace("cluster", "lint", file, "--pcluster", "3.12", "--json", status=3)
    gone = {(one["rule"], one["message"].split()[0]) for one in ran.objects("lint") if one["severity"] == "error"}
    assert gone == {
        ("PC05", "ubuntu2404"),
        ("PC06", "LaunchTemplateOverrides"),
        ("PC06", "SharedStorageEfsSettings"),
        ("PC06", "EfaInterfaceType"),
        ("PC06", "ComputeInstanceInfoTimeout"),
        ("PC06", "NamePrefix"),
    }


def test_facts_and_scripts_are_held_against_the_file(millrace: Millrace, tmp_path: Path):
    spec, facts, script = tmp_path / "spec.yaml", tmp_path / "facts.yaml", tmp_path / "job.sbatch"
    spec.write_text(SPEC)
    file = tmp_path / "cluster.yaml"
    millrace("cluster", "new", spec, "--out", file)
    facts.write_text("subnets: {subnet-0aaaaaaaaaaaabbbb: {prefix: 24}}\n")
    script.write_text("#!/bin/bash\nls /fsx1 /fsx9\n")
    ran = millrace("cluster", "lint", file, "--facts", facts, "--script", script, "--json", status=3)
    errors = [one for one in ran.objects("lint") if one["severity"] == "error"]
    assert [(one["rule"], Path(one["file"]).name) for one in errors] == [
        ("PC26", "cluster.yaml"),
        ("PC41", "job.sbatch"),
    ]


def test_rules_explain_themselves(millrace: Millrace):
    assert "Each card of each node" in millrace("cluster", "lint", "--explain", "pc26").out
    assert len(millrace("cluster", "lint", "--rules", "--json").objects("rule")) >= 74
    assert "no rule" in millrace.fails("cluster", "lint", "--explain", "PC99")
    assert "required" in millrace.fails("cluster", "lint", status=2)
