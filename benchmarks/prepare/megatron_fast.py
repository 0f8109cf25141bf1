# SPDX-License-Identifier: Apache-2.0
"""The steps of Megatron-LM's tools/preprocess_data_fast.py: gigatoken over a file of JSON lines, then `.bin` and `.idx`.

    python megatron_fast.py TOKENIZER_JSON INPUT_JSONL PREFIX

bench.py starts it in an environment with gigatoken and NumPy, once a run, as the script is started once a file. It writes the two
files itself, faster than Megatron's builder, which needs torch.
"""

import os
import struct
import sys

os.environ.setdefault("RAYON_NUM_THREADS", "1")


def main():
    import awkward
    import gigatoken
    import numpy as np

    path, source, prefix = sys.argv[1:]
    tokenizer = gigatoken.Tokenizer(path)
    documents = tokenizer.encode_files(gigatoken.JsonlFileSource([source], field="text"), parallel=False)
    small = tokenizer.vocab_size < 65_500
    sizes = awkward.to_numpy(awkward.num(documents)).astype(np.int32)
    ids = awkward.to_numpy(awkward.flatten(documents)).astype(np.uint16 if small else np.int32, copy=False)
    ids.tofile(prefix + ".bin")
    with open(prefix + ".idx", "wb") as index:
        index.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8 if small else 4, len(sizes), len(sizes) + 1))
        index.write(sizes.tobytes())
        begins = np.zeros(len(sizes), np.int64)
        np.cumsum(sizes[:-1].astype(np.int64) * ids.itemsize, out=begins[1:])
        index.write(begins.tobytes())
        index.write(np.arange(len(sizes) + 1, dtype=np.int64).tobytes())


if __name__ == "__main__":
    main()
