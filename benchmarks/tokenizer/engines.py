# SPDX-License-Identifier: Apache-2.0
"""Runs one engine over one corpus in its own process. encode.py starts it in the environment of each peer.

    python engines.py ENGINE TOKENIZER_JSON CORPUS_JSONL MB

Prints one JSON object: seconds to load, MB per CPU-second of the first and of the second pass into one flat buffer of ids (of
Python lists where an engine has no flat one), a hash of the ids, resident memory.
"""

import hashlib
import json
import os
import resource
import sys
import time

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("RAYON_NUM_THREADS", "1")


def millrace(path):
    import millrace as mr

    tokenizer = mr.Tokenizer.from_file(path)
    return lambda texts: tokenizer.encode_batch(texts, add_special_tokens=False)[0], lambda ids: ids


def gigatoken(path):
    import awkward
    import gigatoken

    tokenizer = gigatoken.Tokenizer(path)
    return lambda texts: tokenizer.encode_batch(texts, parallel=False), awkward.flatten


def fastokens(path):
    import fastokens
    import numpy as np

    tokenizer = fastokens.Tokenizer.from_file(path)
    return lambda texts: tokenizer.encode_batch_flat(texts)[0], lambda ids: np.frombuffer(ids, np.uint32)


def tokenizers(path):
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(path)
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
    return (
        lambda texts: encode(texts, add_special_tokens=False),
        lambda encodings: [token for encoding in encodings for token in encoding.ids],
    )


def tokie(path):
    import tokie

    tokenizer = tokie.Tokenizer.from_json(path)
    return lambda texts: tokenizer.encode_batch_flat(texts, add_special_tokens=False)[0], lambda ids: ids


def snaptokens(path):
    import numpy as np
    import snaptokens

    tokenizer = snaptokens.Tokenizer.from_file(path)
    return lambda texts: tokenizer.encode_batch_flat(texts)[0], lambda ids: np.frombuffer(ids, np.uint32)


def splintr(path):
    import numpy as np
    import splintr

    # It cannot be told to leave out the tokens that the post-processor adds.
    with open(path, encoding="utf-8") as file:
        content = json.load(file) | {"post_processor": None}
    tokenizer = splintr.from_json_bytes(json.dumps(content).encode())
    return lambda texts: tokenizer.encode_batch_flat(texts)[0], lambda ids: np.frombuffer(ids, np.uint32)


def nanotoken(path):
    import nanotoken

    tokenizer = nanotoken.Tokenizer(path)
    return lambda texts: tokenizer.encode_batch(texts, add_special_tokens=False, parallel=False).ids, lambda ids: ids


ENGINES = {f.__name__: f for f in (millrace, gigatoken, fastokens, tokenizers, tokie, snaptokens, splintr, nanotoken)}


def read(path, limit):
    texts, size = [], 0
    with open(path, encoding="utf-8") as file:
        for line in file:
            text = json.loads(line)["text"]
            texts.append(text)
            size += len(text.encode())
            if size > limit:
                break
    return texts, size


def main():
    import numpy as np

    engine, tokenizer, corpus, megabytes = sys.argv[1:]
    texts, size = read(corpus, float(megabytes) * 1e6)
    start = time.process_time()
    encode, flat = ENGINES[engine](tokenizer)
    result = {"load_s": time.process_time() - start}
    for name in ("first", "second"):
        start = time.process_time()
        answer = encode(texts)
        result[name] = size / 1e6 / (time.process_time() - start)
    ids = np.ascontiguousarray(np.asarray(flat(answer), dtype=np.uint32))
    result |= {
        "ids": len(ids),
        "hash": hashlib.blake2b(ids.tobytes(), digest_size=16).hexdigest(),
        "megabytes": size / 1e6,
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
