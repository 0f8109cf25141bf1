"""
The C++ core of Millrace. Use the names of the package `millrace`; this module is its inside.
"""

from collections.abc import Sequence
import os
from typing import Any

import numpy
import numpy.typing


from millrace.results import (
    FinishResult,
    ListEntry,
    PrepareResult,
    RemoveResult,
    SplitPart,
    StageResult,
    StepInfo,
    TransferResult,
    VerifyResult,
)

class CorruptionError(OSError):
    """Bytes are not what they were said to be: a damaged or changed file."""

class Cancelled(Exception):
    """The operation was stopped, or its object closed."""

__version__: str

def python_ends() -> None:
    """
    Python ends in this thread: in others, which are daemons by now, SystemExit is raised for Cancelled.
    """

def set_log(callable: object | None) -> None:
    """Hands log lines to callable(level: str, text: str); None drops them."""

def metric_table() -> list[dict[str, str]]:
    """Every metric: name, unit, stability, help."""

def metrics() -> dict[str, int]:
    """
    What this process has asked of servers so far, whoever asked (loaders, checkpoints, copies): requests, retries,
    slow_downs, hedges, sent_bytes, received_bytes; docs/metrics.md says what each is.
    """

class Tokenizer:
    """
    A Hugging Face tokenizer.json: the ids that the package `tokenizers` gives. Thread-safe.
    """

    @staticmethod
    def from_file(path: str | os.PathLike[str]) -> Tokenizer:
        """
        Reads a tokenizer.json (a path or URL).

        Raises FileNotFoundError, ValueError (not a tokenizer.json) or NotImplementedError, naming the component that this version does not have.
        """

    def encode(self, text: str, add_special_tokens: bool = True) -> numpy.typing.NDArray[numpy.uint32]:
        """
        Ids of one text: uint32 [n]. Raises UnicodeEncodeError for lone surrogates.
        """

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> tuple[numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.int64]]:
        """
        Ids of all texts end to end, uint32 [total], and where each begins, int64 [len(texts) + 1]: text i has ids[offsets[i]:offsets[i + 1]].
        """

    def encode_with_offsets(self, text: str, add_special_tokens: bool = True) -> tuple[numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.int64]]:
        """
        Ids, uint32 [n], and the bytes [begin, end) of the text's UTF-8 that each stands for, int64 [n, 2].
        """

    def decode(self, ids: numpy.typing.ArrayLike, skip_special_tokens: bool = True) -> str:
        """
        The text of ids, as `tokenizers` decodes it: ids from 0 to 2^32 - 1 that have no token give no text.

        Raises TypeError (not an integer) or ValueError (negative, or above 32 bits), naming the place.
        """

    def token_to_id(self, token: str) -> int | None:
        """The id of a token as the file spells it, or None."""

    def id_to_token(self, id: int) -> str | None:
        """The token as the file spells it, or None."""

    @property
    def vocab_size(self) -> int:
        """Distinct tokens, added tokens included."""

    @property
    def id_limit(self) -> int:
        """1 + the largest id: the rows an embedding needs."""

    @property
    def hash(self) -> str:
        """XXH3-128 of the file's bytes, hexadecimal."""

    def __getstate__(self) -> tuple[str, str]: ...

    def __setstate__(self, arg: tuple[str, str], /) -> None: ...

    def __repr__(self) -> str: ...

def chat_template_names() -> list[str]:
    """Names of the native chat templates."""

class NativeChat:
    """A native chat template with a tokenizer. Thread-safe."""

    def __init__(self, name: str, tokenizer: Tokenizer, refuse_control_text: bool = False) -> None:
        """
        Raises ValueError: an unknown name, or a token that the tokenizer has not.
        """

    def encode_line(self, line: str) -> tuple[str, tuple[numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.uint8], int, int]]:
        """
        A line of jsonl: the text, then what encode_rendered gives. Raises ValueError naming the message.
        """

def encode_rendered(tokenizer: Tokenizer, text: str, spans: Sequence[tuple[int, int]]) -> tuple[numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.uint8], int, int]:
    """
    Ids of a rendered conversation and the mask of its learned spans, (first byte, first byte of the last character); then how many turns were lost and how many ran to the end.
    """

class ChatShard:
    """A shard of chat samples, built in memory."""

    def __init__(self) -> None: ...

    def add(self, key: str, ids: numpy.typing.NDArray[numpy.uint32], mask: numpy.typing.NDArray[numpy.uint8], text: str | None = None) -> int:
        """Adds a sample; returns the shard's bytes so far."""

    def write(self, url: str, tokenizer: Tokenizer) -> None:
        """
        Writes the shard, which must not be there, and its index; is empty afterwards. Raises FileExistsError.
        """

def prepare(inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, tokenizer: str | os.PathLike[str], out: str | os.PathLike[str], task: tuple[int, int] | None = None, format: str = 'webdataset', ids: str | None = None, text: bool = True, block_documents: int = 0, shard_bytes: int = 0, documents: str = 'line', text_field: str = 'text', chat: str = '', refuse_control_text: bool = False, add_special_tokens: bool = True, bos: str = '', eos: str = '', strict: bool = False, max_document_bytes: int = 67108864, on_error: str = 'fail', max_errors: int = 1000, dedup: bool = False, dedup_memory_bytes: int = 1073741824, min_bytes: int = 0, max_bytes: int = 0, min_tokens: int = 0, max_tokens: int = 0, threads: int = 0, json_as_text: bool = False, max_invalid: float = 0.001, replace: bool = False, dry_run: bool = False, strip: bool = False) -> PrepareResult:
    """
    Tokenises raw text into shards; the same as `millrace prepare`.

    Args:
        inputs: paths or URLs; globs and braces are expanded, folders stand for all files below them, '@list.txt'
            for the lines of that file, '-' for standard input. Text, jsonl or Parquet, plain, gzip or zstd.
        tokenizer: a tokenizer.json.
        out: the folder of the shards.
        task: (i, n): do part i of n, 0-based. None: the Slurm array task, else everything.
        format: 'webdataset' (tar), 'megatron' (bin and idx) or 'tokens' (llm.c's token files).
        ids: of tar shards: 'npy' (token_ids.npy, uint32), 'json' (token_ids.json) or 'raw' (token_ids.u16 or .u32);
            None: 'npy'. Other formats have their own form of ids and take none.
        text: write text.txt beside the ids.
        block_documents: of tar shards: the ids of so many documents in one member; 0: one each.
        shard_bytes: start a new shard at this size; 0: one shard a task.
        documents: 'line', 'paragraph', 'file' or 'jsonl'; a row of a Parquet table is always one.
        text_field: the field of a jsonl object ('meta.body' inside objects) or the column of a table.
        chat: 'chatml', 'llama-3' or 'llama-2' (documents='jsonl'): each line is a conversation, written through this
            template with loss_mask.npy; refuse_control_text makes the template's marks in a message an error.
        bos, eos: tokens to put around every document beside what the post-processor adds.
        strip: take white space from both ends of a document, as str.strip(); what is empty then is left out.
        strict: ill-formed UTF-8 is an error, instead of being replaced by U+FFFD.
        on_error: 'fail', or 'skip': leave the document out and write it to SHARD.rejected.jsonl; more than
            max_errors of a task fail it all the same.
        dedup: leave out texts that came before in the task.
        min_bytes, max_bytes, min_tokens, max_tokens: leave out documents of another length; a max of 0 is none.
        json_as_text: lines or paragraphs of JSON are meant, instead of being an error.
        max_invalid: refuse a file with more ill-formed UTF-8 sequences a byte than this; 1 takes any.
        replace: write a finished task again when its inputs are others now, instead of raising.
        dry_run: write nothing, and tell from a sample how much it will be.
    Returns: a dict: documents, tokens, input_bytes, output_bytes, shards, seconds, cpu_seconds, ...; of a dry run
        also expected_documents, expected_tokens, expected_output_bytes and sampled_bytes.
    Raises: FileNotFoundError, ValueError, FileExistsError (finished from other inputs), OSError (no space),
        NotImplementedError (the tokenizer).
    """

def finish(out: str | os.PathLike[str]) -> FinishResult:
    """
    Joins the part records of all tasks into manifest.json. Raises FileNotFoundError naming the missing parts.
    """

def split(inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, out: str | os.PathLike[str], parts: int, documents: str = 'line', text_field: str = 'text', validation: float = 0.0, seed: int = 0, max_document_bytes: int = 67108864, json_as_text: bool = False, max_invalid: float = 0.001, replace: bool = False, dry_run: bool = False) -> list[SplitPart]:
    """
    Cuts raw files into `parts` files of nearly equal bytes without breaking a document; the same as `millrace split`.

    `validation` is the share of the documents, chosen by the hash of their text and `seed`, that goes to a file of its own. `replace` writes parts again that are there with other content, instead of raising FileExistsError; the rest as in prepare.
    """

class BatchReader:
    """
    Shards in, batches out; millrace.Loader is the way to use it. Thread-safe.
    """

    def __init__(self, shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, seq_len: int, batch_size: int | None = None, global_batch_size: int | None = None, collate: str = 'pad', shuffle: bool = True, seed: int = 0, rank: int = 0, world_size: int = 1, epochs: int | None = None, drop_last: bool = True, uneven_ranks: bool = False, pad_id: int = 0, dtype: str = 'int64', num_threads: int = 0, memory_bytes: int = 0, ids_field: str = '', tokenizer_hash: str = '', vocab_size: int = 0, carry_state: bool = False, first_step: int = 0, step_stride: int = 1) -> None: ...

    def __iter__(self) -> BatchReader: ...

    def __next__(self) -> dict[str, numpy.typing.NDArray[numpy.int64]]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def state_behind(self, epoch: int, next_position: int) -> dict[str, Any]:
        """
        The state of whoever has used the batch whose 'loader_state' holds these two.
        """

    def load_state_dict(self, state: dict) -> None: ...

    def start_pass(self, number: int) -> None:
        """The next batch is the first of this pass."""

    def pass_info(self) -> tuple[int, bool, int]:
        """
        Of the pass under way: its number, whether it is over, how many batches all of it has.
        """

    def pass_batches(self, number: int) -> int: ...

    @property
    def epoch_units(self) -> int: ...

    def stats(self) -> dict[str, float]: ...

    def config(self) -> dict[str, Any]:
        """The arguments of the constructor."""

    def close(self) -> None: ...

def make_attempt(root: str) -> str:
    """
    The name of a new attempt below `root`; one rank makes it and tells the others.
    """

def assign_writers(bytes: Sequence[int], world_size: int) -> list[int]:
    """Which rank writes each of the replicated tensors, balanced by bytes."""

def list_steps(root: str) -> list[StepInfo]:
    """
    Committed steps, ascending: step, attempt, world_size, tensors, bytes, committed (Unix seconds), damage (str or None).
    """

class PendingSave:
    """One save on its way to durability."""

    @property
    def step(self) -> int: ...

    @property
    def bytes(self) -> int:
        """Of this rank's file."""

    @property
    def done(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> None:
        """
        Waits until the step is committed and durable. Raises TimeoutError after `timeout` seconds, and what went wrong.
        """

class Saver:
    """
    One rank's way to write checkpoints; millrace.torch.Checkpointer is the way to use it.
    """

    def __init__(self, root: str, *, attempt: str, rank: int = 0, world_size: int = 1, threads: int = 0, memory_bytes: int = 0, commit_timeout: float = 600.0, keep_last: int = 0, keep_every: int = 0) -> None: ...

    def save(self, step: int, tensors: Sequence[tuple[str, str, Sequence[int], Sequence[int], Sequence[int], int]], state: str, rank_state: str = 'null') -> PendingSave:
        """
        Copies the tensors, given as (name, dtype, global_shape, offset, shape, data_ptr), and returns a PendingSave.
        """

    def metrics(self) -> dict[str, float]: ...

    def close(self) -> None:
        """Waits for the save under way."""

class Checkpoint:
    """One committed step, opened for reading."""

    def __init__(self, root: str, step: int) -> None: ...

    @property
    def step(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def state(self) -> str: ...

    def rank_state(self, rank: int) -> str | None: ...

    @property
    def tensors(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """name -> (dtype, shape)."""

    def load(self, targets: Sequence[tuple[str, Sequence[int], Sequence[int], int]], threads: int = 0) -> None:
        """
        Fills (name, offset, shape, data_ptr) with verified bytes. Raises CorruptionError naming file and tensor.
        """

    def verify(self, threads: int = 0) -> None:
        """Reads and checks everything. Raises CorruptionError."""

def cp(source: str | os.PathLike[str], target: str | os.PathLike[str], *, recursive: bool = False, filters: Sequence[str] = [], follow_links: bool = False, posix: bool = False, records: bool = True, dry_run: bool = False, memory_bytes: int = 41943040) -> TransferResult:
    """
    Copies an object, or what is below a folder with recursive=True; the same as `millrace cp`.

    Args:
        source, target: paths or URLs. A target that ends in '/', or is a folder, gets the object by its name.
        filters: rules "+ PATTERN" and "- PATTERN" as rsync reads them; the first that matches decides.
        follow_links: copy what symbolic links lead to, instead of passing them over.
        posix: owner, mode and times go along.
        records: keep hashes below .millrace/ at the target.
        memory_bytes: for parts under way; more of it is more connections to s3://, for fast networks.
    Returns: a dict: copied_files, copied_bytes, moved_bytes, saved_bytes, seconds, ...
    Raises: FileNotFoundError, ValueError, PermissionError, OSError (no space), ConnectionError; when single
        files fail the rest is copied first.
    """

def mv(source: str | os.PathLike[str], target: str | os.PathLike[str], *, recursive: bool = False, filters: Sequence[str] = [], posix: bool = False, records: bool = True, dry_run: bool = False, memory_bytes: int = 41943040) -> TransferResult:
    """
    cp, then removes from the source what is at the target, unless it changed meanwhile; the same as
    `millrace mv`.

    Args, returns, raises: as cp, and removed_files. A file that failed stays, links do too.
    """

def sync(source: str | os.PathLike[str], target: str | os.PathLike[str], *, filters: Sequence[str] = [], delete: bool = False, max_delete: int | None = None, compare: str = 'usual', follow_links: bool = False, posix: bool = False, records: bool = True, dry_run: bool = False, memory_bytes: int = 41943040) -> TransferResult:
    """
    Makes `target` hold the files of `source`, moving only what differs; the same as `millrace sync`.

    Args:
        filters, follow_links, posix, records, memory_bytes: as of cp.
        delete: at the end, delete from the target what the source does not have; never after an error, nor when
            the source has no files.
        max_delete: delete nothing when it would be more files than this.
        compare: 'usual' (recorded hashes, else what proves two files equal), 'checksum' (read both sides) or 'size'.
    Returns, raises: as cp; ValueError when nothing was deleted although it was asked for.
    """

class Listing:
    """What ls() answers: an iterator over entries; memory stays flat."""

    def __iter__(self) -> Listing: ...

    def __next__(self) -> ListEntry: ...

def ls(url: str | os.PathLike[str], *, recursive: bool = False, filters: Sequence[str] = ()) -> Listing:
    """
    What is in a folder or bucket, one by one in byte order of the path, however many there are: dicts with path,
    type ('object', 'folder' or 'other'), size, modified (seconds since 1970) and version. An object is listed as
    itself. Raises FileNotFoundError.
    """

def rm(url: str | os.PathLike[str], *, recursive: bool = False, filters: Sequence[str] = [], force_root: bool = False, dry_run: bool = False) -> RemoveResult:
    """
    Removes an object, or what is below a folder with recursive=True; the same as `millrace rm`.

    Returns: a dict: objects, bytes. Raises FileNotFoundError; ValueError for a folder without recursive, or a
    whole bucket or file system without force_root.
    """

def verify(source: str | os.PathLike[str], target: str | os.PathLike[str], *, filters: Sequence[str] = [], recorded: bool = False) -> VerifyResult:
    """
    Compares two trees, or two objects, by content; the same as `millrace verify`.

    With recorded=True hashes that Millrace recorded are believed of unchanged versions.
    Returns: a dict: ok, files, bytes, same, extra, differences (paths).
    """

def stage(source: str | os.PathLike[str], target: str | os.PathLike[str], *, create_bucket: bool = False, sample: str = '', sample_dir: str | os.PathLike[str] = '', filters: Sequence[str] = [], posix: bool = False, records: bool = True, dry_run: bool = False, memory_bytes: int = 41943040) -> StageResult:
    """
    Uploads a folder, lists it and holds it against the source, downloads a sample, unpacks and checks it; the
    same as `millrace stage`.

    Args:
        create_bucket: make the bucket of `target` where there is none.
        sample: the file, by its path below `source`, that is checked; "": the smallest archive, else file.
        sample_dir: keep the sample and what it unpacks to here; "": it is removed.
        filters, posix, records, memory_bytes: as of cp.
    Returns: a dict: that of sync, and bucket_made, objects, bytes, sample, sample_bytes, sample_members.
    Raises: as sync; millrace.CorruptionError when what is there, or the sample, is not what was sent.
    """

class ObjectReader:
    """An object that is open for reading; use millrace.open."""

    def __init__(self, url: str) -> None: ...

    def read_into(self, offset: int, out: bytearray | memoryview) -> int:
        """Fills `out` from `offset` on; answers how many bytes there were."""

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset` on, or what is left."""

    def read_ranges(self, offsets: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """Many ranges at once, each of them inside the object."""

    @property
    def size(self) -> int:
        """Bytes of the object."""

    @property
    def version(self) -> str:
        """What the storage calls this content."""

class ObjectWriter:
    """An object that is being written; use millrace.fsspec."""

    def __init__(self, url: str) -> None: ...

    def append(self, data: bytes | bytearray | memoryview) -> None: ...

    def commit(self) -> None:
        """Makes the object visible, all at once."""

    def discard(self) -> None:
        """Leaves nothing behind."""
