# SPDX-License-Identifier: Apache-2.0
"""millrace.torch.StopSignals: a signal saves at the next step edge, on all ranks the same."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import millrace as mr  # noqa: E402

LOOP = textwrap.dedent(
    """
    import sys, time, torch
    import torch.distributed as dist
    import millrace as mr

    root, ranks = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    if ranks > 1:
        dist.init_process_group("gloo")
    state = {"v": torch.zeros(100), "step": 0}
    with mr.torch.Checkpointer(root) as checkpointer, mr.torch.StopSignals(grace=60) as stop:
        for step in range(1, 100000):
            state["v"].fill_(step)
            state["step"] = step
            if step % 7 == 0:
                checkpointer.save(step, state)
            if step == 3:
                print("running", flush=True)
            time.sleep(0.01)
            if stop.requested():
                status = stop.save(checkpointer, step, state)
                break
    print(step, flush=True)
    if ranks > 1:
        dist.destroy_process_group()
    sys.exit(status)
    """
)


def start(root, ranks):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", LOOP, root, str(ranks)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **address, "RANK": str(rank)},
        )
        for rank in range(ranks)
    ]
    for process in processes:
        assert process.stdout.readline() == "running\n", process.stderr.read()
    return processes


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_signal_saves_at_the_next_step_edge(tmp_path, ranks):
    processes = start(tmp_path, ranks)
    number = signal.SIGTERM if ranks == 1 else signal.SIGUSR1
    for _ in range(2):  # srun and torchrun may both send it; only the last rank hears it here
        processes[-1].send_signal(number)
        time.sleep(0.02)
    ended = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [mr.EXIT_REQUEUE] * ranks, ended
    (step,) = {int(out) for out, _ in ended}
    assert f"step {step} is saved" in ended[0][1]
    state = {"v": torch.zeros(100), "step": 0}
    with mr.torch.Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.restore(state) == step
    assert state["step"] == step and bool((state["v"] == step).all())


@pytest.fixture
def own_handler():
    """The handler of this process, whatever the test leaves."""
    before = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGUSR1, before[0])
    signal.signal(signal.SIGTERM, before[1])


def test_a_save_that_does_not_end_in_time_is_no_requeue(tmp_path, caplog, own_handler):
    # Rank 1 never saves, so that the commit waits for it.
    class TwoRanks(mr.torch.Checkpointer):
        def _open(self):
            self._world_size, world = 1, self._world_size
            super()._open()
            self._saver.close()
            self._world_size = world
            attempt = mr._core.make_attempt(self._root)
            self._saver = mr._core.Saver(self._root, attempt=attempt, rank=0, world_size=2, commit_timeout=3)

    checkpointer = TwoRanks(tmp_path)
    with mr.torch.StopSignals(grace=0.3) as stop:
        assert not stop.requested() and stop.remaining() == 0.3
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stop.requested() and stop.heard == signal.SIGUSR1
        assert stop.save(checkpointer, 1, {"v": torch.ones(2)}) == 1
        assert stop.remaining() < 0.01
    assert "SIGUSR1: step 1 was not saved within 0.3 s" in caplog.text
    with pytest.raises(TimeoutError):
        checkpointer.close()


def test_handlers_are_restored_and_arguments_checked():
    before = signal.getsignal(signal.SIGTERM)
    with mr.torch.StopSignals():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
    with pytest.raises(ValueError, match="grace"):
        mr.torch.StopSignals(grace=0)
    failures = []

    def elsewhere():
        try:
            mr.torch.StopSignals().__enter__()
        except ValueError as error:
            failures.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(failures) == 1
