# SPDX-License-Identifier: Apache-2.0
"""A wait that takes too long is told: a web server that answers only once the test lets it."""

import contextlib
import functools
import http.server
import logging
import pathlib
import pickle
import threading

import pytest

import millrace as mr


class Held(http.server.SimpleHTTPRequestHandler):
    """Answers GETs of ranges once the gate is open."""

    gate = threading.Event()

    def do_GET(self):
        self.gate.wait()
        data = pathlib.Path(self.translate_path(self.path)).read_bytes()
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last) + 1 if last else None]
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *_):
        pass


@pytest.fixture
def held(dataset):
    """The address of a shard, and the event that lets its answers go."""
    gate = threading.Event()
    handler = functools.partial(type("Handler", (Held,), {"gate": gate}), directory=dataset.shards)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/00000.tar", gate
    gate.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_error_names_what_is_waited_for_and_the_next_call_goes_on(held):
    url, gate = held
    with mr.Loader(url, seq_len=32, batch_size=4, stall_seconds=0.05, on_stall="raise") as loader:
        with pytest.raises(TimeoutError, match=r"no batch for .*stage open"):
            next(loader)
        with pytest.raises(TimeoutError, match=r"under way: .*00000\.tar \(for "):
            next(loader)
        gate.set()
        while True:
            with contextlib.suppress(TimeoutError):
                assert next(loader)["input_ids"].shape == (4, 32)
                break


def test_a_warning_names_it_by_default(held):
    url, gate = held
    told = []

    class OpensTheGate(logging.Handler):
        def emit(self, record):
            if "no batch for" in record.getMessage():
                told.append(record.getMessage())
                gate.set()

    handler = OpensTheGate(logging.WARNING)
    logging.getLogger("millrace").addHandler(handler)
    try:
        with mr.Loader(url, seq_len=32, batch_size=4, stall_seconds=0.05) as loader:
            next(loader)
    finally:
        logging.getLogger("millrace").removeHandler(handler)
    assert "stage open" in told[0]


def test_wrong_limits_are_refused_and_right_ones_are_pickled(dataset):
    shards = str(dataset.shards)
    for wrong in (-1, float("nan"), float("inf"), 1e30):
        with pytest.raises(ValueError, match="stall_seconds"):
            mr.Loader(shards, seq_len=32, batch_size=4, stall_seconds=wrong)
    with pytest.raises(ValueError, match="on_stall"):
        mr.Loader(shards, seq_len=32, batch_size=4, on_stall="stop")
    with mr.Loader(shards, seq_len=32, batch_size=4, stall_seconds=1.5, on_stall="raise") as loader:
        config = pickle.loads(pickle.dumps(loader))._reader.config()
    assert (config["stall_seconds"], config["on_stall"]) == (1.5, "raise")
