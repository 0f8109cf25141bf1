# SPDX-License-Identifier: Apache-2.0
"""`millrace plan`: the guides' questions answered by the real binary, and a real Slurm asked."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from conftest import REPOSITORY, Millrace
from slurm_fixture import Slurm


def test_batch_by_the_guides_constants(millrace: Millrace):
    guide = ["--preset", "groot-guide"]
    answer = millrace("plan", "batch", "--gpu", "l40s", *guide, "--json").object("plan_batch")
    assert (answer["max_low"], answer["max_high"]) == (31, 31)  # 34 by the number on the box
    assert [level["batch_low"] for level in answer["levels"]] == [22, 25, 29]
    assert "its 5 GiB are weights alone" in millrace("plan", "batch", "--gpu", "rtx2080ti", *guide).out


def test_batch_is_calibrated_by_measured_points(millrace: Millrace):
    flags = ["--measured", "4:14.8GiB", "--measured", "8:21.3GiB", "--measured", "12:27.7GiB"]
    ran = millrace("plan", "batch", "--gpu", "l40s", *flags, "--json")
    answer = ran.object("plan_batch")
    assert answer["confidence"] == "high" and 0 < answer["residual_gib"] < 0.1
    assert answer["per_sample_gib"]["low"] == pytest.approx(1.6125)
    (why,) = ran.objects("plan_why")
    assert {"peak at batch 8", "residual", "usable"} <= {term["name"] for term in why["terms"]}
    assert "nvidia-smi" in millrace.fails(
        "plan", "batch", "--gpu", "l40s", "--measured", "1:31GiB", "--measured", "8:31GiB"
    )


def test_batches_that_cannot_tell_give_no_answer(millrace: Millrace):
    """Peaks on an H200: batch 1 is bound by the optimizer's step."""
    peaks = {1: (20.11, 22.1), 2: (20.6, 23.1), 4: (27.12, 29.9), 8: (40.1, 44.3), 12: (53.2, 61.9), 16: (66.2, 85.3)}

    def measured(*batches: int) -> list[str]:
        flags = [("--measured", f"{batch}:{peaks[batch][0]}GiB:{peaks[batch][1]}GiB") for batch in batches]
        return ["plan", "batch", "--gpu", "h200", *(text for pair in flags for text in pair)]

    refused = millrace.fails("plan", "batch", "--gpu", "h200", "--measured", "1:20.11GiB", "--measured", "4:27.12GiB")
    assert "more than 4 samples" in refused and "three quarters" in refused
    assert "cannot tell" in millrace.fails(*measured(1, 2, 4))
    answer = millrace(*measured(*peaks), "--json").object("plan_batch")
    assert (answer["max_low"], answer["max_high"]) == (25, 38)
    assert [point["line"] for point in answer["measured"]] == ["step"] + ["activations"] * 5
    assert "BATCH:ALLOCATED:RESERVED" in millrace.fails(
        "plan", "batch", "--gpu", "h200", "--measured", "4:30GiB:20GiB", "--measured", "8:40GiB:50GiB"
    )


def test_no_model_no_answer(millrace: Millrace):
    """Another model's constants are not used, and missing facts are named."""
    asked = millrace.fails("plan", "batch", "--gpu", "l40s", status=2)
    assert "--parameters" in asked and "--measured" in asked and "--preset groot-guide" in asked
    assert "--vocabulary" in millrace.fails("plan", "batch", "--gpu", "l40s", "--parameters", "3B", status=2)
    assert "three batch sizes" in millrace.fails("plan", "batch", "--gpu", "l40s", "--measured", "8:21GiB", status=2)
    assert "together" in millrace.fails("plan", "batch", "--gpu", "l40s", "--fixed", "9GiB", status=2)
    given = ["--fixed", "9GiB", "--per-sample", "2GiB", "--memory", "31GiB"]
    assert millrace("plan", "batch", *given, "--json").object("plan_batch")["max_low"] == 10
    one = ["--measured", "4:17GiB", "--per-sample", "2GiB", "--memory", "31GiB"]
    assert millrace("plan", "batch", *one, "--json").object("plan_batch")["max_low"] == 10
    # A fixed size beside a preset would be ignored silently.
    model = ["--parameters", "3B", "--per-sample", "1GiB", "--fixed", "9GiB"]
    assert "--fixed" in millrace.fails("plan", "batch", "--gpu", "l40s", *model, status=2)


@pytest.mark.parametrize(
    "args",
    [
        ["batch", "--gpu", "l40s", "--measured", "8:21.3", "--measured", "4:14.8"],
        ["batch", "--gpu", "l40s", "--fixed", "9", "--per-sample", "2GiB"],
        ["batch", "--gpu", "l40s", "--fixed", "9GiB", "--per-sample", "2"],
        ["batch", "--memory", "48", "--preset", "groot-guide"],
        ["batch", "--gpu", "l40s", "--preset", "groot-guide", "--overhead", "2"],
        ["checkpoint", "--size", "5"],
        ["checkpoint", "--size", "5GB", "--quota", "23.8"],
        ["checkpoint", "--size", "5GB", "--bandwidth", "7.03"],
        ["checkpoint", "--size", "5GB", "--stall", "60"],
        ["eta", "--steps", "10", "--sample-time", "130"],
        ["eta", "--steps", "10", "--sample-time", "130ms", "--gradient-bytes", "14", "--network", "50GB/s"],
        ["eta", "--steps", "10", "--sample-time", "130ms", "--sample-bytes", "3MB", "--read-rate", "2"],
        ["pack", "--node", "gpus=8,cpus=32,memory=500", "--job", "gpus=1"],
    ],
    ids=" ".join,
)
def test_a_number_without_a_unit_is_refused(millrace: Millrace, args: list[str]):
    assert "has no unit" in millrace.fails("plan", *args, status=2)


def test_answers_that_cannot_be_are_refused(millrace: Millrace):
    batch = ["plan", "batch", "--gpu", "l40s"]
    assert "above 0" in millrace.fails(*batch, "--fixed", "9GiB", "--per-sample", "0", status=2)
    assert "cannot be" in millrace.fails(*batch, "--fixed", "9GiB", "--per-sample", "21B")
    assert "cannot be" in millrace.fails(*batch, "--measured", "8:10GiB", "--measured", "9:20GiB")
    assert "no model" in millrace.fails(*batch, "--parameters", "7", "--per-sample", "1GiB", status=2)


def test_presets_shards_and_recompute_lower_the_need(millrace: Millrace):
    model = ["--parameters", "7B", "--layers", 32, "--hidden", 4096, "--tokens", 2048, "--vocabulary", 32000]

    def most(*flags: object) -> int:
        ran = millrace("plan", "batch", "--gpu", "h100", *model, *flags, "--json")
        return ran.object("plan_batch")["max_low"]

    assert most() == 0  # 16 bytes a parameter alone are 104 GiB
    assert "not even one sample" in millrace("plan", "batch", "--gpu", "h100", *model).out
    sharded = most("--zero", 3, "--shards", 8)
    assert 0 < most("--preset", "lora") <= sharded < most("--zero", 3, "--shards", 8, "--recompute", "full")


def test_effective_batch(millrace: Millrace):
    ran = millrace("plan", "effective-batch", "--range", "120:144", "--gpus", "4,6", "--micro", "8:14", "--json")
    ways = ran.objects("plan_effective_batch")
    assert {(w["micro"], w["gpus"], w["accumulation"]) for w in ways} >= {(10, 4, 3), (12, 6, 2)}
    assert all(w["micro"] * w["data_parallel"] * w["accumulation"] == w["effective"] for w in ways)
    nearest = millrace("plan", "effective-batch", "--range", "120:144", "--gpus", 88, "--json").objects(
        "plan_effective_batch"
    )
    assert [(w["fit"], w["effective"]) for w in nearest] == [("nearest below", 88), ("nearest above", 176)]


def test_nodes_of_the_guides_cluster(millrace: Millrace):
    def nodes(*flags: object) -> list[int]:
        ran = millrace("plan", "nodes", "--nodes", 80, *flags, "--json")
        assert sum(m["nodes"] for m in ran.objects("plan_model")) == ran.object("plan_nodes")["used"]
        return [m["nodes"] for m in ran.objects("plan_model")]

    assert nodes("--models", 7) == [12, 12, 12, 11, 11, 11, 11]
    weighted = [f"--model=m{i}:weight={14 if i == 7 else 11}" for i in range(1, 8)]
    assert nodes(*weighted) == [11] * 6 + [14]
    assert "14:11" in millrace("plan", "nodes", "--nodes", 80, "--models", 7).out
    priced = millrace(
        "plan", "nodes", "--nodes", 80, "--models", 7, "--instance", "p5e.48xlarge", "--region", "ap-southeast-3"
    )
    assert "2768 USD an hour" in priced.out and "2024-12" in priced.out
    assert "the minima need 90 nodes" in millrace.fails("plan", "nodes", "--nodes", 80, "--model", "big:min=90")


def test_prices_are_the_users(millrace: Millrace, tmp_path: Path):
    book = {"date": "2026-11-01", "source": "our contract", "prices": [{"item": "p5e.48xlarge", "usd_per_hour": 8}]}
    (tmp_path / "prices.json").write_text(json.dumps(book))
    eta = [
        "plan",
        "eta",
        "--steps",
        3600,
        "--gpus",
        8,
        "--sample-time",
        "1s",
        "--tolerance",
        0,
        "--instance",
        "p5e.48xlarge",
    ]
    answer = millrace(*eta, "--prices", "prices.json", "--json").object("plan_eta")
    assert answer["usd"] == {"low": 8, "high": 8}
    assert "our contract, 2026-11-01" in millrace(*eta, "--prices", "prices.json").out
    (tmp_path / "bad.json").write_text("{}")
    assert "bad.json: the price book has no" in millrace.fails(*eta, "--prices", "bad.json")


def test_eta_counts_what_is_given(millrace: Millrace):
    flags = ["--steps", 1000, "--micro", 4, "--gpus", 8, "--sample-time", "100ms", "--tolerance", 0]
    plain = millrace("plan", "eta", *flags, "--json").object("plan_eta")
    assert plain["total_s"] == {"low": pytest.approx(400), "high": pytest.approx(400)}
    slow = millrace("plan", "eta", *flags, "--sample-bytes", "10MB", "--read-rate", "400MB/s", "--json")
    assert slow.object("plan_eta")["step_s"]["low"] == pytest.approx(0.8)
    assert "waits for data" in slow.objects("plan_why")[0]["notes"][0]
    assert "--read-rate" in millrace.fails("plan", "eta", *flags, "--sample-bytes", "10MB")


def test_checkpoints_of_the_guides(millrace: Millrace):
    flags = ["--parameters", "70B", "--models", 7, "--quota", "7.7TB", "--bandwidth", "7.03GB/s"]
    answer = millrace("plan", "checkpoint", *flags, "--json").object("plan_checkpoint")
    assert answer["bytes"] == 980e9 and answer["fit"] == 1
    assert answer["write_s"] == pytest.approx(139.4, abs=0.1)
    home = millrace("plan", "checkpoint", "--size", "5GB", "--quota", "23.8GB", "--used", "1GB", "--keep-last", 5)
    assert "keeping 5 needs room for 6, and 4 fit" in home.out


def test_pack_prints_flags_that_fit(millrace: Millrace):
    ran = millrace("plan", "pack", "--instance", "p5e.48xlarge", "--job", "gpus=2", "--job", "gpus=3,count=2", "--json")
    assert ran.object("plan_pack")["nodes"] == 1
    assert ran.objects("plan_pack_job")[0]["sbatch"].endswith("--gpus-per-node=h200:2 --cpus-per-task=48 --mem=498073M")
    both = ["--node", "gpus=8,cpus=32,memory=500GiB", "--job", "gpus=4", "--job", "gpus=4"]
    assert millrace("plan", "pack", *both, "--json").object("plan_pack")["nodes"] == 1
    assert millrace("plan", "pack", *both, "--whole-nodes", "--json").object("plan_pack")["nodes"] == 2


LAB = {
    "partitions": [
        {"name": "gpu4090", "gpu": "rtx4090", "gpus_per_node": 4, "free_gpus": [0], "usd_per_gpu_hour": 0.5,
         "releases": [{"node": 0, "after_hours": 100, "gpus": 4}]},
        {"name": "gpul40s", "gpu": "l40s", "gpus_per_node": 6, "nodes": 1, "usd_per_gpu_hour": 2},
    ]
}  # fmt: skip
JOB = ["--range", "120:144", "--steps", 10000, "--sample-time", "130ms", "--measured-on", "rtx4090"]
JOB += ["--preset", "groot-guide"]


def test_advice_from_a_file(millrace: Millrace, tmp_path: Path):
    (tmp_path / "lab.json").write_text(json.dumps(LAB))
    ran = millrace("plan", "advise", "--partitions", "lab.json", *JOB, "--json")
    picks = {pick: each for each in ran.objects("plan_advice") for pick in each["picked_as"]}
    assert picks["start_now"]["partition"] == picks["fastest"]["partition"] == "gpul40s"
    assert picks["cheapest"]["partition"] == "gpu4090"
    assert picks["cheapest"]["wait_s"]["high"] == 360000
    assert ran.objects("plan_why")[0]["formulas"]
    assert "lab.json: partition 1" in millrace.fails("plan", "advise", "--partitions", write(tmp_path, [{}]), *JOB)


def write(folder: Path, partitions: list[dict]) -> str:
    (folder / "lab.json").write_text(json.dumps({"partitions": partitions}))
    return "lab.json"


def test_a_real_slurm_is_read(millrace: Millrace, slurm: Slurm, tmp_path: Path):
    def partitions() -> dict[tuple[str, str], dict]:
        ran = millrace("plan", "gpus", "--from-slurm", "--json", env=slurm.env)
        return {(each["partition"], each["known_as"]): each for each in ran.objects("plan_partition")}

    before = partitions()
    assert set(before) == {("main", "h200"), ("small", "l40s"), ("spare", "h200"), ("spare", "l40s")}
    assert (before["main", "h200"]["gpus"], before["main", "h200"]["free_gpus"]) == (32, 32)
    assert before["spare", "l40s"]["preempted"] and not before["small", "l40s"]["preempted"]

    script = tmp_path / "hold.sh"
    script.write_text("#!/bin/bash\nsleep 60\n")
    flags = ["--partition=small", "--nodes=2", "--gres=gpu:l40s:4", "--mem=1000", "--time=10", "--output=/dev/null"]
    jobs = [slurm.submit(*flags, script, cwd=tmp_path) for _ in range(2)]
    until = time.monotonic() + 20
    while slurm.job(jobs[0])["JobState"] != "RUNNING" or slurm.job(jobs[1])["Reason"] not in ("Resources", "Priority"):
        assert time.monotonic() < until, slurm.job(jobs[1])
        time.sleep(0.1)
    after = partitions()
    assert (after["small", "l40s"]["free_gpus"], after["small", "l40s"]["pending_jobs"]) == (0, 1)
    assert after["spare", "l40s"]["free_gpus"] == 0 and after["main", "h200"]["free_gpus"] == 32

    ran = millrace("plan", "advise", "--from-slurm", "--partition", "small", *JOB, "--json", env=slurm.env)
    assert not any(each["starts_now"] for each in ran.objects("plan_advice"))
    slurm.run("scancel", jobs[1])
    ran = millrace("plan", "advise", "--from-slurm", "--partition", "small", *JOB, "--json", env=slurm.env)
    assert all(0 < each["wait_s"]["high"] <= 600 for each in ran.objects("plan_advice"))
    ran = millrace("plan", "gpus", "--from-slurm", "--gpu-of", "l40s=a6000", "--json", env=slurm.env)
    assert {each["known_as"] for each in ran.objects("plan_partition")} == {"h200", "a6000"}
    ran = millrace("plan", "gpus", "--from-slurm", "--gpu-of", "n1=mi300x", "--json", env=slurm.env)
    main = [each for each in ran.objects("plan_partition") if each["partition"] == "main"]
    assert {(each["known_as"], each["nodes"]) for each in main} == {("h200", 3), ("mi300x", 1)}
    assert "it names no node" in millrace.fails("plan", "gpus", "--from-slurm", "--gpu-of", "n99=t4", env=slurm.env)
    assert "no partition with GPUs is called 'none'" in millrace.fails(
        "plan", "gpus", "--from-slurm", "--partition", "none", env=slurm.env
    )


def test_commands_of_advice_and_pack_are_taken_by_slurm(millrace: Millrace, slurm: Slurm, tmp_path: Path):
    script = tmp_path / "job.sh"
    script.write_text('#!/bin/bash\n[ -n "$CUDA_VISIBLE_DEVICES" ] && echo "$CUDA_VISIBLE_DEVICES"\n')
    ran = millrace("plan", "advise", "--from-slurm", *JOB, "--script", script, "--json", env=slurm.env)
    (now,) = (each for each in ran.objects("plan_advice") if "start_now" in each["picked_as"])
    words = now["sbatch"].split()
    assert words[0] == "sbatch"
    assert slurm.wait(slurm.submit("--output=/dev/null", *words[1:], cwd=tmp_path)) == "COMPLETED"

    node = "gpus=8,cpus=32,memory=512000MiB"
    packed = millrace(
        "plan", "pack", "--node", node, "--gpu-type", "h200", "--job", "gpus=2", "--job", "gpus=3,count=2", "--json"
    )
    (job, three) = packed.objects("plan_pack_job")
    script.write_text("#!/bin/bash\nsleep 60\n")
    jobs = [
        slurm.submit("--nodelist=n1", "--output=/dev/null", *each["sbatch"].split(), script, cwd=tmp_path)
        for each in (job, three, three)
    ]
    until = time.monotonic() + 20
    while {slurm.job(each)["JobState"] for each in jobs} != {"RUNNING"}:  # all three on one node
        assert time.monotonic() < until, [slurm.job(each)["Reason"] for each in jobs]
        time.sleep(0.1)


@pytest.mark.parametrize(
    "args",
    [
        ["batch"],
        ["batch", "--gpu", "nothing"],
        ["batch", "--gpu", "t4", "--measured", "8"],
        ["effective-batch", "--gpus", "4"],
        ["effective-batch", "--range", "9:1", "--gpus", "4"],
        ["batch", "--gpu", "t4"],
        ["eta", "--micro", "4"],
        ["nodes", "--nodes", "4"],
        ["nodes", "--nodes", "4", "--model", "a:wait=1"],
        ["nodes", "--nodes", "4", "--model", "a", "--model", "a"],
        ["nodes", "--nodes", "4", "--model", "model1", "--models", "2"],
        ["checkpoint", "--size", "5GB", "--mtbf", "0s"],
        ["checkpoint", "--size", "5GB", "--mtbf", "0"],
        ["checkpoint", "--size", "5GB", "--bandwidth", "0GB/s"],
        ["nodes", "--nodes", "4", "--models", "2", "--instance", "p9.huge"],
        ["pack", "--job", "gpus=1"],
        ["pack", "--instance", "p5e.48xlarge", "--job", "gpus=x"],
        ["advise", "--target", "8", "--steps", "1"],
        ["gpus", "--by", "beauty"],
    ],
    ids=" ".join,
)
def test_wrong_usage(millrace: Millrace, args: list[str]):
    assert "--help" in millrace.fails("plan", *args, status=2)


def test_the_published_measurements_of_the_docs(millrace: Millrace):
    """Each row of the table prints its range, and the range contains the measured peaks."""
    page = (REPOSITORY / "docs" / "plan.md").read_text()
    rows = re.findall(r"^\| `(--tokens .*?)` \| (\d+) \| ([\d.]+) to ([\d.]+) \| ([\d., ]+) \|", page, re.MULTILINE)
    assert len(rows) == 5
    model = [
        "--memory",
        "95GiB",
        "--parameters",
        "8.03B",
        "--layers",
        "32",
        "--hidden",
        "4096",
        "--vocabulary",
        "128256",
        "--zero",
        "3",
    ]
    for flags, batch, low, high, measured in rows:
        answer = millrace("plan", "batch", *model, *flags.split(), "--json").object("plan_batch")
        for end, shown in (("low", low), ("high", high)):
            total = answer["overhead_gib"] + answer["fixed_gib"][end] + int(batch) * answer["per_sample_gib"][end]
            assert total == pytest.approx(float(shown), abs=0.051), flags
        assert all(float(low) <= float(peak) <= float(high) for peak in measured.split(",")), flags


def test_the_docs_show_what_is_printed(millrace: Millrace, tmp_path: Path):
    """Each example of docs/plan.md that needs no Slurm prints the documented output."""
    page = (REPOSITORY / "docs" / "plan.md").read_text()
    (tmp_path / "lab.json").write_text(re.search(r"```json\n(.*?)```", page, re.DOTALL).group(1))
    blocks = re.findall(r"```console\n\$ millrace (.*?)\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 8
    for command, printed in blocks:
        if "--from-slurm" not in command:
            assert millrace(*command.split()).out.strip() == printed.strip(), command
