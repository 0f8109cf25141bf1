# SPDX-License-Identifier: Apache-2.0
"""Takes back what an encoder does to the scheduling of its process.

SVT-AV1 in PyAV, which some tests compare with, puts its thread and its caller's under SCHED_FIFO where root runs it.
The tests behind it, and all that they start, would keep the other tests from running.
"""

import contextlib
import os
from collections.abc import Iterator

import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    yield
    if os.sched_getscheduler(0) == os.SCHED_OTHER:
        return
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setscheduler(int(thread), os.SCHED_OTHER, os.sched_param(0))
