# SPDX-License-Identifier: Apache-2.0
"""What threads of the loader share: locks that another thread held, and waits that gave the processor away, a batch.

    python benchmarks/loader/locks.py --threads 1,4,16

Packed batches of token shards (packed.py), each count in a new process under a preloaded library that counts calls of
pthread_mutex_lock. Counts hardly depend on what else the machine does. Needs a C compiler, numpy and xxhash.
"""

import argparse
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile

import packed

COUNTER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
static atomic_long locks, held;
static int (*lock_it)(pthread_mutex_t *), (*try_it)(pthread_mutex_t *);
__attribute__((constructor)) static void find(void) {
  lock_it = dlsym(RTLD_NEXT, "pthread_mutex_lock");
  try_it = dlsym(RTLD_NEXT, "pthread_mutex_trylock");
}
int pthread_mutex_lock(pthread_mutex_t *mutex) {
  if (!lock_it) find();
  atomic_fetch_add_explicit(&locks, 1, memory_order_relaxed);
  if (try_it(mutex) == 0) return 0;
  atomic_fetch_add_explicit(&held, 1, memory_order_relaxed);
  return lock_it(mutex);
}
__attribute__((destructor)) static void tell(void) { fprintf(stderr, "%ld %ld\\n", locks, held); }
"""


def take(folder: pathlib.Path, threads: int, batches: int) -> None:
    """In the process that is counted."""
    taken = 0
    while taken < batches:
        for _ in packed.millrace_batches("bin", folder, threads):
            taken += 1
            if taken == batches:
                break
    print(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw)


def count(folder: pathlib.Path, counter: pathlib.Path, threads: int, batches: int) -> list[float]:
    """Locks taken, of them held by another thread, and waits, a batch."""
    command = [sys.executable, __file__, "--take", str(threads), "--work", str(folder), "--batches", str(batches)]
    done = subprocess.run(
        command, env=os.environ | {"LD_PRELOAD": str(counter)}, capture_output=True, text=True, check=True
    )
    locks, held = map(int, done.stderr.splitlines()[-1].split())
    return [locks / batches, held / batches, int(done.stdout) / batches]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,4,16")
    parser.add_argument("--batches", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=pathlib.Path, help="a folder that keeps the sets (default: a temporary one)")
    parser.add_argument("--take", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.take:
        take(args.work, args.take, args.batches)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.work or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "flat.bin").exists():
            packed.write_sets(folder, 80_000_000)
        counter = pathlib.Path(temporary) / "counter.so"
        compiler = shutil.which("cc") or shutil.which("g++") or "cc"
        command = [compiler, "-x", "c", "-O2", "-shared", "-fPIC", "-o", str(counter), "-", "-ldl"]
        subprocess.run(command, input=COUNTER, text=True, check=True)
        print("| threads | locks taken | of them held by another thread | waits that gave the processor away |")
        print("|---|---|---|---|")
        for threads in map(int, args.threads.split(",")):
            rounds = [count(folder, counter, threads, args.batches) for _ in range(args.rounds)]
            locks, held, waits = (statistics.median(each) for each in zip(*rounds, strict=True))
            print(f"| {threads} | {locks:.1f} | {held:.3f} | {waits:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
