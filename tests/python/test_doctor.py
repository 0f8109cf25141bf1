# SPDX-License-Identifier: Apache-2.0
"""millrace doctor on real trainings: each fault is planted and found from the outside, and a fine run has no verdict."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import millrace as mr

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_LEDGER", str(tmp_path / "ledger"))
    for name in ("RANK", "SLURM_PROCID", "WORLD_SIZE", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


def doctor(*words: object, status: int | None = None) -> tuple[dict[str, dict], dict]:
    """Verdicts by rule, and the summary."""
    command = [os.environ.get("MILLRACE_BIN", "millrace"), "doctor", *map(str, words), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.stderr
    summary = lines.pop()
    assert summary["type"] == "doctor", done.stdout
    assert done.returncode == (status if status is not None else 3 if summary["errors"] else 0), done
    return {line["rule"]: line for line in lines}, summary


def train(folder: Path, shards: list[str], step_seconds: float, seconds: float) -> None:
    with (
        mr.Loader(shards, batch_size=2, seq_len=64, num_threads=1) as loader,
        mr.Run(folder, config={"num_threads": 1}, loader=loader) as run,
    ):
        end = time.monotonic() + seconds
        for step, _ in enumerate(loader):
            time.sleep(step_seconds)
            run.log(step, loss=2.0)
            if time.monotonic() > end:
                break


def test_an_undisturbed_run_has_no_verdict(dataset, tmp_path: Path):
    train(tmp_path / "a", dataset.tars, 0.02, 3)
    (tmp_path / "a/train.log").write_text("step 1\nsaved\n")
    verdicts, summary = doctor(tmp_path / "a")
    assert verdicts == {}
    assert any("1 log with 2 lines" in each for each in summary["looked_at"])
    assert any(each.startswith("nodes: no samples") for each in summary["not_looked_at"])
    text = subprocess.run(
        [os.environ.get("MILLRACE_BIN", "millrace"), "doctor", tmp_path / "a"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert text.stdout.startswith("nothing found\nlooked at the record ")


SLOW = """
import sys, time, millrace as mr
class Slow(mr.SampleSource):  # each row comes from a slow place
    name = "slow"
    def shards(self):
        return [("rows", 1000)]
    def read(self, shard, begin, end):
        time.sleep(0.01 * (end - begin))
        return [{"n": n} for n in range(begin, end)]
with (
    mr.SampleLoader(Slow(), batch_size=4, num_threads=1) as loader,
    mr.Run(sys.argv[1], config={"num_threads": 1}, loader=loader) as run,
):
    for step, batch in enumerate(loader):
        run.log(step, loss=float("nan") if step > 50 else 1.0)
        if step == 60:
            break
"""


def test_a_slow_loader_and_a_lost_loss(tmp_path: Path):
    subprocess.run([sys.executable, "-c", SLOW, str(tmp_path / "a")], check=True)
    verdicts, _ = doctor(tmp_path / "a")
    assert set(verdicts) == {"DR16", "DR17"}
    assert "from step 51 on" in verdicts["DR16"]["evidence"][0]
    assert "training waited " in verdicts["DR17"]["evidence"][0]
    assert "limit is read" in verdicts["DR17"]["advice"]


RANK = """
import os, sys, time, millrace as mr
def where_it_stands():
    time.sleep(0.05)
with mr.Run(sys.argv[1]) as run:
    for step in range(10_000):
        where_it_stands()
        run.log(step, loss=1.0)
"""


def test_a_stopped_rank_is_found_by_its_record(tmp_path: Path):
    rank = subprocess.Popen([sys.executable, "-c", RANK, str(tmp_path / "a")], env=os.environ | {"RANK": "0"})
    try:
        end = time.monotonic() + 30
        while not list((tmp_path / "a").glob("*.run.jsonl")):
            assert time.monotonic() < end
            time.sleep(0.05)
        time.sleep(0.5)
        assert doctor(tmp_path / "a")[0] == {}
        rank.send_signal(signal.SIGSTOP)
        time.sleep(0.2)
        verdicts, summary = doctor(tmp_path / "a")
        assert set(verdicts) == {"DR08"}
        assert f"rank 0, process {rank.pid} " in verdicts["DR08"]["evidence"][0]
        assert "it stands in where_it_stands (" in verdicts["DR08"]["evidence"][0]
        assert "1 process of this node" in summary["looked_at"]
        by_pid, _ = doctor("--pid", rank.pid, "--no-stacks")
        assert set(by_pid) == {"DR08"}
    finally:
        rank.kill()
        rank.wait()


def run_to_log(log: Path, program: str, *limits: str) -> None:
    limited = f"ulimit {' '.join(limits)}; exec " if limits else "exec "
    with log.open("w") as file:
        subprocess.run(["bash", "-c", limited + '"$0" -c "$1"', sys.executable, program], stdout=file, stderr=file)


def test_a_limit_of_memory_and_one_of_files(tmp_path: Path):
    run_to_log(tmp_path / "a.log", "print('step 1', flush=True); b = bytearray(1 << 32)", "-v", "1000000")
    verdicts, _ = doctor("--logs", tmp_path / "a.log")
    assert set(verdicts) == {"DR02"} and ":" in verdicts["DR02"]["evidence"][0]
    run_to_log(tmp_path / "b.log", "a = [open('/dev/null') for _ in range(100)]", "-n", "50")
    assert set(doctor("--logs", tmp_path / "b.log")[0]) == {"DR07"}
    run_to_log(tmp_path / "c.log", "raise ValueError('of its own')")
    verdicts, _ = doctor("--logs", tmp_path / "c.log")
    assert set(verdicts) == {"DR15"} and "ValueError: of its own" in str(verdicts["DR15"]["evidence"])
    run_to_log(tmp_path / "d.log", "print('all is well')")
    assert doctor("--logs", tmp_path / "d.log")[0] == {}


def test_a_full_file_system(tmp_path: Path):
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m,nr_inodes=2000", "tmpfs", str(small)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        assert doctor("--folder", small)[0] == {}
        run_to_log(tmp_path / "a.log", f"open('{small}/a', 'wb').write(bytes(8 << 20))")
        verdicts, _ = doctor("--folder", small, "--logs", tmp_path / "a.log")
        assert set(verdicts) == {"DR04"}
        assert len(verdicts["DR04"]["evidence"]) == 2, "the mount and the line of the log"
        (small / "a").unlink()
        for number in range(1995):
            (small / str(number)).touch()
        assert set(doctor("--folder", small)[0]) == {"DR06"}
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_what_is_not_there_is_said(tmp_path: Path):
    program = os.environ.get("MILLRACE_BIN", "millrace")

    def refused(*words: str) -> tuple[int, str]:
        done = subprocess.run([program, "doctor", *words], capture_output=True, text=True)
        return done.returncode, done.stderr

    assert refused()[0] == 2
    assert refused("none")[0] == 1 and "neither a folder with a record" in refused("none")[1]
    assert "no file none.log" in refused("--logs", "none.log")[1]
    assert "table of EC2 types" in refused("--nccl", "a", "--instance", "x9.large")[1]
    (tmp_path / "a.log").write_text("no table\n")
    assert "no table of nccl-tests" in refused("--nccl", str(tmp_path / "a.log"))[1]


# Rank 1 leaves out a collective. Each rank writes what its flight recorder has, as the watchdog of NCCL does.
FLIGHT = """
import datetime, os, sys, threading, time
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
values = torch.ones(4)
dist.all_reduce(values)
dist.barrier()
def leave_a_dump():
    time.sleep(2)
    dump = torch._C._distributed_c10d._dump_fr_trace(True, True, False)
    with open(f"{sys.argv[1]}/nccl_trace_rank_{rank}", "wb") as file:
        file.write(dump)
    os._exit(0)
threading.Thread(target=leave_a_dump).start()
def the_step_that_waits():
    dist.all_reduce(torch.ones(8, 8))
if rank == 0:
    the_step_that_waits()
"""


def test_dumps_of_the_flight_recorder_name_the_rank_that_did_not_come(tmp_path: Path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "TORCH_FR_BUFFER_SIZE": "100",
    }
    script = tmp_path / "train.py"
    script.write_text(FLIGHT)
    ranks = [
        subprocess.Popen([sys.executable, script, tmp_path], env=env | {"RANK": str(rank)}, stderr=subprocess.DEVNULL)
        for rank in range(2)
    ]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    dumps = [tmp_path / f"nccl_trace_rank_{rank}" for rank in range(2)]
    verdicts, summary = doctor("--flight", dumps[0], "--flight", dumps[1])
    assert set(verdicts) == {"DR11"}
    waits, late = verdicts["DR11"]["evidence"]
    assert "rank 0 waits in collective" in waits
    assert "all_reduce of [8,8] Float, in the_step_that_waits (train.py:" in waits
    assert "rank 1 has not come to it; its last one is" in late and "barrier, in <module> (train.py:" in late
    assert "2 dumps of the flight recorder" in summary["looked_at"]
    one, summary = doctor("--flight", dumps[0])
    assert one == {}
    assert "the flight recorder of rank 1: no dump, it may have died first" in summary["not_looked_at"]
    wrong = subprocess.run(
        [os.environ.get("MILLRACE_BIN", "millrace"), "doctor", "--flight", script], capture_output=True, text=True
    )
    assert wrong.returncode == 1 and "train.py" in wrong.stderr


# A cluster in two scripts: a job on two nodes, of which srun reaches the other.
SCONTROL = """#!/bin/sh
echo "JobId=77 JobName=t UserId=u(0) JobState=RUNNING Reason=None NumNodes=2 BatchHost=n1 NodeList=n[1-2]"
"""
SRUN = """#!/bin/sh
echo "$@" > {folder}/srun.words
test -e {folder}/fails && echo "srun: error: Invalid job id" >&2 && exit 1
echo '{{"type":"process","node":"n2","machine":"far","pid":99,"rank":1,"command":"train","states":"TTTTT","watched_s":1.0}}'
echo '{{"type":"process","node":"n1","machine":"far","pid":98,"rank":0,"command":"train","states":"SSSSS","watched_s":1.0}}'
"""


def test_ranks_on_other_nodes_are_looked_at_by_srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in (
        ("scontrol", SCONTROL),
        ("srun", SRUN.format(folder=tmp_path)),
        ("sacct", "#!/bin/sh\nexit 1\n"),
    ):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    verdicts, summary = doctor("--job", "77", "--watch", "100ms", "--no-stacks")
    assert "rank 1, process 99 of n2 (train): stopped in each of 5 looks" in verdicts["DR08"]["evidence"][0]
    assert "processes of 2 nodes by srun" in summary["looked_at"]
    words = (tmp_path / "srun.words").read_text()
    assert "--jobid=77 --overlap --nodes=2" in words and "--here-of-job 77 --watch 100ms" in words
    (tmp_path / "fails").touch()
    _, summary = doctor("--job", "77", "--watch", "100ms", "--no-stacks", status=0)
    assert any(each.startswith("processes of 2 of 2 nodes: srun: ") for each in summary["not_looked_at"])


def test_the_processes_of_a_job_are_printed_for_another_node(monkeypatch: pytest.MonkeyPatch):
    env = os.environ | {"SLURM_JOB_ID": "4242", "SLURM_PROCID": "5", "SLURMD_NODENAME": "n7"}
    sleeper = subprocess.Popen(["sleep", "60"], env=env)
    try:
        command = [os.environ.get("MILLRACE_BIN", "millrace"), "doctor", "--here-of-job", "4242", "--watch", "100ms"]
        done = subprocess.run([*command, "--no-stacks", "--json"], capture_output=True, text=True, timeout=60, env=env)
        (line,) = [json.loads(each) for each in done.stdout.splitlines() if json.loads(each)["pid"] == sleeper.pid]
        assert (line["type"], line["node"], line["rank"], line["command"]) == ("process", "n7", 5, "sleep 60")
        assert set(line["states"]) == {"S"} and line["machine"]
    finally:
        sleeper.kill()
        sleeper.wait()


def test_the_docs_hold_every_rule():
    program = os.environ.get("MILLRACE_BIN", "millrace")
    printed = subprocess.run([program, "doctor", "--rules"], capture_output=True, text=True, check=True).stdout
    section = (ROOT / "docs/doctor.md").read_text().split("## Rules\n")[1]
    assert printed.strip() in section
