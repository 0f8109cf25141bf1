# SPDX-License-Identifier: Apache-2.0
"""millrace.torch.Checkpointer.restore() beside damage, other processes and newer versions."""

import errno
import os
import re
import socket

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
np = pytest.importorskip("numpy")

from checkpoint_helpers import data_files, flip_last_byte  # noqa: E402

import millrace as mr  # noqa: E402


def test_a_damaged_step_falls_back_to_the_one_before(tmp_path):
    with mr.torch.Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.restore({"x": torch.zeros(3)}) is None
        for step in (10, 20, 30, 40):
            checkpointer.save(step, {"x": torch.full((3,), float(step))}).wait(60)
        flip_last_byte(data_files(tmp_path, 40)[0])
        data_files(tmp_path, 30)[0].unlink()
        flip_last_byte(next(tmp_path.glob("step-*20/manifest.json")))
        assert checkpointer.steps() == [10, 30, 40] and checkpointer.latest_step() == 40

        state = {"x": torch.zeros(3)}
        with pytest.warns(RuntimeWarning) as caught:
            assert checkpointer.restore(state) == 10
        assert torch.equal(state["x"], torch.full((3,), 10.0))
        texts = " ".join(str(warning.message) for warning in caught)
        assert all(f"step {step}" in texts for step in (20, 30, 40))

        with pytest.raises(mr.CorruptionError):
            checkpointer.restore(state, step=40)
        with pytest.raises(FileNotFoundError):
            checkpointer.restore(state, step=11)
        flip_last_byte(data_files(tmp_path, 10)[0])
        # Not None: that would start the training anew, from tensors that are half overwritten.
        with pytest.warns(RuntimeWarning), pytest.raises(mr.CorruptionError, match="no checkpoint"):
            checkpointer.restore(state)


def test_files_that_cannot_be_read_are_damage(tmp_path):
    with mr.torch.Checkpointer(tmp_path) as checkpointer:
        for step in (10, 20, 30):
            checkpointer.save(step, {"x": torch.full((3,), float(step))}).wait(60)
        # A folder and a socket (ENXIO, as of a device that is gone) where the files were.
        data_files(tmp_path, 30)[0].unlink()
        data_files(tmp_path, 20)[0].unlink()
        folder = next(tmp_path.glob("step-*30/r*")) / "rank-00000-of-00001.safetensors"
        folder.mkdir()
        path = next(tmp_path.glob("step-*20/r*")) / "rank-00000-of-00001.safetensors"
        with socket.socket(socket.AF_UNIX) as listener:
            here = os.getcwd()
            os.chdir(path.parent)  # the path of a socket is at most 108 bytes
            listener.bind(path.name)
            os.chdir(here)
        state = {"x": torch.zeros(3)}
        with pytest.warns(RuntimeWarning, match="step [23]0: ") as caught:
            assert checkpointer.restore(state) == 10
        assert len(caught) == 2
        with pytest.raises(mr.CorruptionError, match=re.escape(str(folder))):
            checkpointer.restore(state, step=30)
        with pytest.raises(OSError, match=re.escape(str(path))) as error:
            checkpointer.restore(state, step=20)
        assert error.value.errno == errno.ENXIO and type(error.value) is OSError


@pytest.mark.parametrize(
    ("error", "falls_back"),
    [
        (OSError(errno.EIO, "a lost block"), True),
        (PermissionError(errno.EACCES, "not yours"), True),
        (ConnectionError("no answer"), False),
        (TimeoutError("no answer in time"), False),
    ],
)
def test_a_server_that_does_not_answer_is_no_damage(tmp_path, monkeypatch, error, falls_back):
    opened = mr._core.Checkpoint

    class Broken:
        def __init__(self, root, step, *rest):
            self._checkpoint = opened(root, step, *rest)

        def __getattr__(self, name):
            return getattr(self._checkpoint, name)

        def load(self, entries, threads):
            if self._checkpoint.step == 2:
                raise error
            self._checkpoint.load(entries, threads=threads)

    with mr.torch.Checkpointer(tmp_path) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, {"x": torch.full((3,), float(step))}).wait(60)
        monkeypatch.setattr(mr._core, "Checkpoint", Broken)
        state = {"x": torch.zeros(3)}
        if falls_back:
            with pytest.warns(RuntimeWarning, match="step 2: "):
                assert checkpointer.restore(state) == 1
        else:
            with pytest.raises(type(error)):
                checkpointer.restore(state)


def test_a_step_that_is_removed_while_it_is_restored_is_no_damage(tmp_path, monkeypatch, recwarn):
    writer = mr.torch.Checkpointer(tmp_path, keep_last=1)
    writer.save(1, {"x": torch.full((3,), 1.0)}).wait(60)
    opened, tries = mr._core.Checkpoint, []

    class Raced:
        """Another process commits a step, and retention removes this one, between the open and the load."""

        def __init__(self, root, step, *rest):
            self._checkpoint = opened(root, step, *rest)

        def __getattr__(self, name):
            return getattr(self._checkpoint, name)

        def load(self, entries, threads):
            tries.append(self._checkpoint.step)
            if len(tries) < 4:
                step = self._checkpoint.step + 1
                writer.save(step, {"x": torch.full((3,), float(step))}).wait_removals()
            self._checkpoint.load(entries, threads=threads)

    monkeypatch.setattr(mr._core, "Checkpoint", Raced)
    with mr.torch.Checkpointer(tmp_path) as reader:
        state = {"x": torch.zeros(3)}
        assert reader.restore(state) == 4 and state["x"].tolist() == [4.0] * 3
        assert tries == [1, 2, 3, 4] and not recwarn.list
        for path in tmp_path.glob("step-*/manifest.json"):
            path.unlink()
        assert reader.restore(state) is None
    writer.close()


def make_newer(path):
    """The manifest as a later version of the format would be."""
    from xxhash import xxh3_128_hexdigest

    text = path.read_text().replace('"version":1', '"version":9')
    head, tail = re.split(r'"checksum":"[0-9a-f]{32}",', text)
    path.write_text(f'{head}"checksum":"{xxh3_128_hexdigest((head + tail).encode())}",{tail}')


def test_a_step_of_a_newer_version_is_never_passed_over(tmp_path):
    with mr.torch.Checkpointer(tmp_path) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, {"x": torch.ones(3)}).wait(60)
        make_newer(next(tmp_path.glob("step-*2/manifest.json")))
        state = {"x": torch.zeros(3)}
        with pytest.raises(NotImplementedError, match=r"step 2: .*version 9 .*restore\(step=...\) takes an older"):
            checkpointer.restore(state)
        assert state["x"].sum() == 0
        with pytest.warns(RuntimeWarning, match="step 2 is left out: .*version 9"):
            assert checkpointer.latest_step() == 1
        assert checkpointer.restore(state, step=1) == 1 and state["x"].sum() == 3
