# SPDX-License-Identifier: Apache-2.0
"""The CPU in the part of a device, for tests of millrace.torch.device."""

import contextlib
import threading

import torch


class Late:
    """The CPU in the part of a device whose copies are done as late as they may be: when an event is waited for."""

    def __init__(self):
        self.queue = []  # copies and events, in order
        self.made = []  # pinned buffers
        self.lock = threading.RLock()
        self.stream = threading.local()  # as in CUDA, a thread has a current stream of its own

    @property
    def inside(self):
        return getattr(self.stream, "is_side", False)

    @contextlib.contextmanager
    def side_stream(self):
        self.stream.is_side = True
        try:
            yield
        finally:
            self.stream.is_side = False

    def pinned(self, size):
        self.made.append(torch.zeros(size, dtype=torch.uint8))
        return self.made[-1]

    def empty_like(self, value):
        return torch.full_like(value, 77)

    def copy(self, target, pinned):
        assert self.inside
        assert any(buffer.untyped_storage().data_ptr() == pinned.untyped_storage().data_ptr() for buffer in self.made)
        with self.lock:
            self.queue.append((target, pinned))

    def other(self, value):
        return value.clone()

    def record(self):
        assert self.inside
        event = LateEvent(self)
        with self.lock:
            self.queue.append(event)
        return event

    def hand_over(self, event, tensors):
        event.synchronize()
        assert not self.inside and list(tensors)


class LateEvent:
    def __init__(self, device):
        self.device, self.done = device, False

    def query(self):
        return self.done

    def synchronize(self):
        with self.device.lock:
            while not self.done:
                first = self.device.queue.pop(0)
                if isinstance(first, LateEvent):
                    first.done = True
                else:
                    first[0].copy_(first[1])
