# SPDX-License-Identifier: Apache-2.0
"""millrace monitor on this machine: its files are whole after Ctrl-C, SIGTERM and kill -9."""

import csv
import http.client
import itertools
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("MILLRACE_BIN") or shutil.which("millrace") or "millrace"


def start(*arguments):
    command = [BINARY, "monitor", "--every", "10ms", *map(str, arguments)]
    # Where the tests run in a shell's background job, SIGINT is ignored, and children inherit that.
    return subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for_lines(path, count):
    end = time.monotonic() + 20
    while not path.exists() or path.read_text().count("\n") < count:
        assert time.monotonic() < end, f"{path} has fewer than {count} lines"
        time.sleep(0.01)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_monitor_leaves_whole_files(tmp_path, stop):
    table, lines, metrics = tmp_path / "a.csv", tmp_path / "a.jsonl", tmp_path / "a.prom"
    process = start("--csv", table, "--jsonl", lines, "--prometheus", metrics, "--nvml", "libmillrace-none.so")
    wait_for_lines(lines, 5)
    process.send_signal(stop)
    _, notes = process.communicate(timeout=20)
    assert process.returncode == (-9 if stop == signal.SIGKILL else 0)
    assert notes.count("no NVIDIA driver") == 1
    samples = [json.loads(line) for line in lines.read_text().splitlines()]
    assert all(a["time_ns"] < b["time_ns"] for a, b in itertools.pairwise(samples))
    assert samples[-1]["values"]["millrace_node_processors"] == os.cpu_count()
    with table.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0][:3] == ["timestamp", "index", "utilization.gpu [%]"]
    assert {len(row) for row in rows} == {len(rows[0])}
    if metrics.exists():
        assert metrics.read_text().endswith("\n")


@pytest.mark.parametrize("flags", [["--json"], []])
def test_without_a_file_samples_are_printed(flags):
    done = subprocess.run(
        [BINARY, "monitor", "--samples", "2", "--every", "10ms", *flags], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    if flags:
        assert [json.loads(line)["type"] for line in lines] == ["monitor_sample"] * 2
    else:
        assert lines[0].startswith("timestamp") and len(lines) == 3


def test_a_restarted_monitor_continues_its_file(tmp_path):
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"torn": ')
    start("--jsonl", lines, "--samples", "2").communicate(timeout=20)
    first, *rest = lines.read_text().splitlines()
    assert first == '{"torn": '
    assert [json.loads(line)["type"] for line in rest] == ["monitor_sample"] * 2


def test_a_reader_of_stdout_that_went_away_ends_it_quietly():
    command = [BINARY, "monitor", "--every", "10ms", "--nvml", "libmillrace-none.so"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("timestamp,index,")
    process.stdout.close()
    assert process.wait(20) == 141
    assert "write" not in process.stderr.read()


def test_a_recording_that_is_not_there_is_refused():
    done = subprocess.run([BINARY, "monitor", "--proc", "nowhere", "--samples", "1"], capture_output=True, text=True)
    assert done.returncode == 2 and "nowhere is no folder" in done.stderr


def test_too_short_an_interval_is_refused():
    done = subprocess.run([BINARY, "monitor", "--every", "1ms"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "10ms or more" in done.stderr


@pytest.mark.parametrize("address", ["99999", "127.0.0.1:65536", "99999999999999999999"])
def test_a_port_that_there_is_not_is_wrong_usage(address: str):
    done = subprocess.run([BINARY, "monitor", "--listen", address], capture_output=True, text=True, timeout=20)
    assert done.returncode == 2 and "is no port" in done.stderr


def get(address, path="/metrics", method="GET"):
    connection = http.client.HTTPConnection(address, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    return answer.status, answer.getheader("Content-Type"), answer.read().decode()


def test_prometheus_is_answered_by_http():
    process = start("--listen", "0", "--nvml", "libmillrace-none.so")
    try:
        for line in process.stderr:
            if found := re.fullmatch(r"monitor: http://(127\.0\.0\.1:\d+)/metrics\n", line):
                break
        address = found[1]
        end = time.monotonic() + 20
        while get(address)[0] == 503:
            assert time.monotonic() < end
            time.sleep(0.01)
        status, kind, text = get(address)
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert f"\nmillrace_node_processors {os.cpu_count()}\n" in text and text.endswith("\n")
        keys = [line.rsplit(" ", 1)[0] for line in text.splitlines() if not line.startswith("#")]
        assert len(keys) == len(set(keys))
        while get(address)[2] == text:
            assert time.monotonic() < end, "no second sample"
        assert get(address, "/other")[0] == 404
        assert get(address, method="POST")[0] == 405
        assert get(address, method="HEAD")[2] == ""
        # One that says nothing, and one that goes away, keep nobody for long.
        host, port = address.split(":")
        with socket.create_connection((host, int(port))):
            assert get(address)[0] == 200
        taken = subprocess.run([BINARY, "monitor", "--listen", address], capture_output=True, text=True, timeout=20)
        assert taken.returncode == 1 and f"listen on {address}" in taken.stderr
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert process.returncode == 0


def test_tensorboard_reads_gauges_and_rates(tmp_path):
    process = start("--tensorboard", tmp_path / "events", "--samples", "5", "--nvml", "libmillrace-none.so")
    process.communicate(timeout=20)
    (path,) = (tmp_path / "events").iterdir()
    data, events = path.read_bytes(), []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        events.append(data[12 : 12 + size])
        data = data[16 + size :]
    assert path.name.startswith("events.out.tfevents.") and b"brain.Event:2" in events[0]
    assert len(events) == 6
    processors = [struct.unpack("<f", each.split(b"node/processors\x15")[1][:4])[0] for each in events[1:]]
    assert processors == [os.cpu_count()] * 5
    assert b"node/cpu_seconds_per_s/idle" not in events[1], "a rate needs two samples"
    idle = struct.unpack("<f", events[5].split(b"node/cpu_seconds_per_s/idle\x15")[1][:4])[0]
    assert 0 <= idle < 2 * os.cpu_count()


def test_the_dashboard_names_series_that_there_are():
    board = json.loads((REPOSITORY / "examples/grafana/nodes.json").read_text())
    source = "".join(path.read_text() for path in (REPOSITORY / "src/millrace/monitor").glob("*.cpp"))
    there = set(re.findall(r'"(millrace_\w+)"', source))
    used = set(re.findall(r"millrace_\w+", json.dumps([each["targets"] for each in board["panels"]])))
    assert len(used) > 15 and used <= there


def test_all_nodes_of_a_job_worst_first(slurm, tmp_path, monkeypatch):
    monkeypatch.setenv("MILLRACE_LEDGER", str(tmp_path / "ledger"))
    monkeypatch.setenv("SLURM_CONF", slurm.conf)
    os.chmod(tmp_path, 0o777)
    job = slurm.submit("--output", tmp_path / "a-%j.log", "--wrap", "echo begun; sleep 60")
    end = time.monotonic() + 60
    while not (tmp_path / f"a-{job}.log").exists():
        assert time.monotonic() < end
        time.sleep(0.1)
    for node, busy in (("n1", 90), ("n2", 12)):
        lines = "timestamp,index,utilization.gpu [%],memory.used [MiB],memory.total [MiB],temperature.gpu,host\n"
        now = time.strftime("%Y/%m/%d %H:%M:%S", time.gmtime())
        lines += f"{now}.000,0,{busy},40000,80000,61,{node}\n{now}.000,1,95,40000,80000,62,{node}\n"
        (tmp_path / f"gpu-{job}-{node}-0.csv").write_text(lines)
    (tmp_path / f"gpu-{job}1-other-0.csv").write_text("timestamp,index,host\n")
    command = [BINARY, "monitor", "--job", str(job), "--samples", "1"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    assert shown.startswith(f"job {job}: RUNNING, 2 nodes with samples\n")
    assert [line.split()[0] for line in shown.splitlines()[2:]] == ["n2", "n1"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, timeout=30)
    worst = json.loads(done.stdout.splitlines()[0])
    assert (worst["host"], worst["gpus"], worst["least_busy"], worst["gpu_memory"]) == ("n2", 2, 0.12, 0.5)
    found = subprocess.run([BINARY, "doctor", "--job", str(job), "--json"], capture_output=True, text=True, timeout=60)
    summary = json.loads(found.stdout.splitlines()[-1])
    assert f"Slurm's job {job} (RUNNING)" in summary["looked_at"] and "samples of 2 nodes" in summary["looked_at"]
    slurm.run("scancel", job)
    unknown = subprocess.run([BINARY, "monitor", "--job", "none"], capture_output=True, text=True, timeout=30)
    assert unknown.returncode == 1 and "none" in unknown.stderr


def test_nodes_without_gpus_are_ranked_by_their_work(slurm, tmp_path, monkeypatch):
    """By processors in use, and by what they do not wait for: a preparation of data, or a training on processors."""
    monkeypatch.setenv("MILLRACE_LEDGER", str(tmp_path / "ledger"))
    monkeypatch.setenv("SLURM_CONF", slurm.conf)
    os.chmod(tmp_path, 0o777)
    job = slurm.submit("--output", tmp_path / "a-%j.log", "--wrap", "echo begun; sleep 60")
    end = time.monotonic() + 60
    while not (tmp_path / f"a-{job}.log").exists():
        assert time.monotonic() < end
        time.sleep(0.1)
    # Of four processors: in use, share of the time that all waited for I/O, that training waited for batches.
    nodes = {"n1": (3.6, 0.0, 0.05), "n2": (1.0, 0.0, 0.0), "n3": (3.8, 0.6, 0.0), "n4": (3.7, 0.0, 0.8)}
    modes, pressure = "millrace_node_cpu_seconds_total", "millrace_node_pressure_seconds_total"
    for node, (busy, io, data) in nodes.items():
        lines = []
        for second in range(2):
            values = {f'{modes}{{mode="user"}}': 100 + busy * second, f'{modes}{{mode="idle"}}': 900 + (4 - busy) * second,
                      f'{pressure}{{resource="io",kind="full"}}': 5 + io * second,
                      "millrace_training_waiting_ratio": data}  # fmt: skip
            moment = time.time_ns() + (second - 2) * 10**9
            lines.append({"type": "monitor_sample", "host": node, "time_ns": moment, "values": values})
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        (tmp_path / f"gpu-{job}-{node}-0.jsonl").write_text(text)
    command = [BINARY, "monitor", "--job", str(job), "--samples", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["host"] for each in found] == ["n4", "n2", "n3", "n1"]
    assert [round(each["data_wait"], 2) for each in found] == [0.8, 0, 0, 0.05]
    assert [round(each["cpu"], 2) for each in found] == [0.93, 0.25, 0.95, 0.9]
    slurm.run("scancel", job)


# The nodes of the test's Slurm are one machine, so their processes are seen here already and count once.
def test_the_doctor_reaches_the_other_nodes_of_a_job(slurm, tmp_path, monkeypatch):
    monkeypatch.setenv("MILLRACE_LEDGER", str(tmp_path / "ledger"))
    monkeypatch.setenv("SLURM_CONF", slurm.conf)
    os.chmod(tmp_path, 0o777)
    log = tmp_path / "a.log"
    job = slurm.submit("--output", log, "--nodes", "2", "--ntasks-per-node", "1", "--wrap", "srun sleep 120")
    end = time.monotonic() + 60
    command = [BINARY, "doctor", "--job", str(job), "--watch", "100ms", "--no-stacks", "--json"]
    try:
        while True:
            found = subprocess.run(command, capture_output=True, text=True, timeout=120)
            summary = json.loads(found.stdout.splitlines()[-1])
            if "processes of 2 nodes by srun" in summary["looked_at"]:
                break
            assert time.monotonic() < end, summary
            time.sleep(0.5)
        assert not any(each.startswith("processes of") for each in summary["not_looked_at"])
    finally:
        slurm.run("scancel", job)
