# SPDX-License-Identifier: Apache-2.0
"""Both sides of docs/coming-from/streaming.md, over folders that MosaicML Streaming wrote. `./dev check frameworks`
installs it."""

import io
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.timeout(900)  # Streaming imports for half a minute on a busy machine

ROOT = pathlib.Path(__file__).parents[2]
COMPRESSIONS = (None, "zstd", "gz", "br", "bz2", "snappy")
PAGE = """
import numpy as np
from streaming import MDSWriter

with MDSWriter(out="corpus", columns={"number": "int", "text": "str"}, size_limit=500) as writer:
    for n in range(64):
        writer.write({"number": n, "text": f"text {n}"})
with MDSWriter(out="tokens", columns={"tokens": "bytes"}) as writer:
    for n in range(64):
        writer.write({"tokens": np.arange(n, n + 2048).tobytes()})
"""
# Writes the folders that are named, and prints what Streaming itself reads there.
ENCODINGS = """
import json, sys
import numpy as np
from PIL import Image
from streaming import MDSWriter, StreamingDataset

columns = {"number": "int", "text": "str", "raw": "bytes", "facts": "json", "array": "ndarray", "fixed": "ndarray:int16:2,3",
           "small": "uint8", "half": "float16", "whole": "str_int", "real": "str_float", "pixels": "pil", "file": "png"}
for name in sys.argv[1:]:
    with MDSWriter(out=name, columns=columns, compression=None if name == "None" else name, hashes=["sha1"],
                   size_limit=2000) as writer:
        for n in range(40):
            writer.write({
                "number": n, "text": f"text {n} \\u00e4", "raw": bytes([n]) * n, "facts": {"n": [n, None]},
                "array": np.arange(n + 1, dtype=np.float32), "fixed": np.full((2, 3), -n, np.int16), "small": np.uint8(n),
                "half": np.float16(n / 2), "whole": 10**15 + n, "real": n / 8,
                "pixels": Image.new("RGB", (3, 2), (n, 1, 2)), "file": Image.new("L", (2, 3), n),
            })
    samples = []
    for sample in StreamingDataset(local=name, batch_size=1, shuffle=False):
        sample["raw"] = list(sample["raw"])
        samples.append({key: np.asarray(value).tolist() if key != "facts" else value for key, value in sample.items()})
    print(json.dumps(samples))
"""


@pytest.fixture
def streaming(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment in which it can be imported: each Python gets torchvision's operators first."""
    folder = os.environ.get("MILLRACE_TEST_STREAMING")
    if folder is None:
        pytest.skip("mosaicml-streaming is not installed (./dev check frameworks)")
    start = tmp_path / "start"
    start.mkdir()
    (start / "sitecustomize.py").write_text("import torchvision_operators\n\ntorchvision_operators.define()\n")
    monkeypatch.syspath_prepend(folder)  # the page's test asks whether it is there
    path = [str(start), str(ROOT / "tests/frameworks"), folder, str(ROOT / "python")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "HOME": str(tmp_path)}


def run(program: str, *arguments: str, folder: pathlib.Path, env: dict[str, str]) -> str:
    done = subprocess.run([sys.executable, "-c", program, *arguments], cwd=folder, env=env, stdout=subprocess.PIPE,
                          text=True, timeout=600)  # fmt: skip
    assert done.returncode == 0
    return done.stdout


def test_both_sides_work(binary: str, tmp_path: pathlib.Path, streaming: dict[str, str], monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests/docs"))
    from pages import DOCS, run_page
    from test_coming_from import tokenizer_file

    folder = tmp_path / "page"
    folder.mkdir()
    tokenizer_file(folder)
    run(PAGE, folder=folder, env=streaming)
    more = {"PYTHONPATH": streaming["PYTHONPATH"]}
    names = {"s3://bucket/corpus": "corpus", "/nvme/corpus": "cached"}
    assert run_page(DOCS / "coming-from/streaming.md", folder, binary, more, names) == 3


def test_both_read_the_same(tmp_path: pathlib.Path, streaming: dict[str, str]):
    import millrace as mr

    names = [str(each) for each in COMPRESSIONS]
    read = run(ENCODINGS, *names, folder=tmp_path, env=streaming).splitlines()
    for name, line in zip(names, read, strict=True):
        theirs = json.loads(line)
        ours = {}
        with mr.SampleLoader(tmp_path / name, batch_size=1, seed=1, epochs=1) as loader:
            for batch in loader:
                sample = {key: values[0] for key, values in batch.items() if key != "__key__"}
                sample["raw"] = list(sample["raw"])
                sample["file"] = Image.open(io.BytesIO(sample["file"]))
                ours[int(sample["number"])] = {
                    key: value if key == "facts" else np.asarray(value).tolist() for key, value in sample.items()
                }
        assert [ours[number] for number in range(40)] == theirs, name
