# SPDX-License-Identifier: Apache-2.0
"""loader.report(): how long training waited, and what limits the loader."""

import dataclasses
import time

import numpy as np
import pytest
from millrace.accounting import LoaderReport

import millrace as mr

QUIET = LoaderReport(
    seconds=100.0,
    waited_seconds=0.5,
    batches=1000,
    tokens=10**6,
    read_bytes=10**9,
    read_seconds=50.0,
    decode_seconds=20.0,
    collate_seconds=10.0,
    threads=4,
    cpus=16,
    prefetch_depth=8,
    ready_batches=8,
    cache_hit_bytes=0,
    cache_miss_bytes=0,
)


def changed(**values):
    return dataclasses.replace(QUIET, **values)


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (QUIET, "training waited 0.5 % for data; the loader is not the limit"),
        (
            changed(waited_seconds=20.0, decode_seconds=350.0),
            "training waited 20.0 % for data; the limit is decode; 1 more threads would help (num_threads=5)",
        ),
        (
            changed(waited_seconds=50.0, decode_seconds=350.0, cpus=4),
            "training waited 50.0 % for data; the limit is decode; it needs about 8 threads, and this process may use 4 CPUs",
        ),
        (
            changed(waited_seconds=50.0, collate_seconds=380.0),
            "the limit is collate; 4 more threads would help (num_threads=8)",
        ),
        (changed(waited_seconds=30.0), "the limit is read; a faster storage, cache=,"),
        (changed(waited_seconds=30.0, cache_miss_bytes=10), "the limit is read; the cache fills"),
        (changed(batches=0, seconds=0.0, waited_seconds=0.0), "no batch after the first one yet"),
    ],
)
def test_the_sentence(report, said):
    assert said in str(report)


def test_a_slow_consumer_does_not_wait_and_an_empty_loader_does(dataset):
    with mr.Loader(dataset.tars, batch_size=4, seq_len=64, epochs=1) as loader:
        for number, _ in enumerate(loader):
            time.sleep(0.02 if number else 0.2)
            if number == 10:
                break
        slow = loader.report()
    assert slow.batches == 10 and slow.seconds > 0.3
    assert slow.waited_seconds < slow.seconds / 2
    with mr.Loader(dataset.tars, batch_size=4, seq_len=64, epochs=1) as loader:
        assert str(loader.report()) == "no batch after the first one yet"
        batches = sum(1 for _ in loader)
        fast = loader.report()
        assert fast.batches == batches - 1 and fast.threads >= 1 and fast.cpus >= 1
        assert fast.tokens > 0 and 0 < fast.waited_seconds <= fast.seconds
        assert fast.decode_seconds >= 0 and fast.tokens <= loader.stats()["tokens"]


class Writer:
    def __init__(self):
        self.written = {}

    def add_scalar(self, name, value, step):
        self.written[name] = (value, step)


class Logger:
    def log(self, values, step):
        self.values, self.step = values, step


def test_sinks():
    writer, logger = Writer(), Logger()
    QUIET.log_to(writer, 7)
    QUIET.log_to(logger, 8)
    assert writer.written["loader/wait_share"] == (0.005, 7)
    assert logger.step == 8 and logger.values == QUIET.scalars()
    text = QUIET.prometheus({"job": 'a"b'})
    assert 'millrace_loader_waited_seconds{job="a\\"b"} 0.5\n' in text
    assert QUIET.prometheus().count("# TYPE ") == len(QUIET.scalars())


def test_prometheus_reads_it():
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    families = {
        family.name: family for family in parser.text_string_to_metric_families(QUIET.prometheus({"rank": "0"}))
    }
    assert families["millrace_loader_batches"].samples[0].value == 1000
    assert families["millrace_loader_batches"].samples[0].labels == {"rank": "0"}


def test_tensorboard_reads_it(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard", reason="tensorboard is not installed")
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        QUIET.log_to(writer, 3)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert np.isclose(events.Scalars("loader/wait_share")[0].value, 0.005)
