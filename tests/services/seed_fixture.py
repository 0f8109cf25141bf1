# SPDX-License-Identifier: Apache-2.0
"""Random input that can be had again: MILLRACE_TEST_SEED, which a test that fails prints."""

import os
import random

import pytest


@pytest.fixture
def seeded() -> random.Random:
    seed = int(os.environ.get("MILLRACE_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"MILLRACE_TEST_SEED={seed}")
    return random.Random(seed)
