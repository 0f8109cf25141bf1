"""
The C++ core of Millrace. Use the names of the package `millrace`; this module is its inside.
"""

from collections.abc import Callable, Mapping, Sequence
import os
from typing import Any

import numpy
import numpy.typing


from millrace.results import (
    DownloadResult,
    EpisodesResult,
    FinishResult,
    LeRobotDiffResult,
    LinkReleaseResult,
    LinkRestoreResult,
    LinkStatusResult,
    LinkWaitResult,
    ListEntry,
    MadeDatasetResult,
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
    Says that Python is ending in this thread. In other threads, which are daemons by now, Cancelled becomes SystemExit.
    """

def set_log(callable: object | None) -> None:
    """Hands log lines to callable(level: str, text: str); None drops them."""

def metric_table() -> list[dict[str, str]]:
    """Lists every metric: name, unit, stability, help."""

def metrics() -> dict[str, int]:
    """
    The requests of this process to servers so far (loaders, checkpoints, copies): requests, retries,
    slow_downs, sent_bytes, received_bytes; docs/metrics.md explains each.
    """

class Tokenizer:
    """
    A Hugging Face tokenizer.json: the ids that the package `tokenizers` gives. Thread-safe.
    """

    @staticmethod
    def from_file(path: str | os.PathLike[str]) -> Tokenizer:
        """
        Reads a tokenizer.json, or a tiktoken.model (a path or URL; docs/tokenizer.md).

        Raises FileNotFoundError, ValueError (not a tokenizer.json) or NotImplementedError, naming the component that this version does not have.
        """

    def encode(self, text: str, add_special_tokens: bool = True) -> numpy.typing.NDArray[numpy.uint32]:
        """
        Returns the ids of one text: uint32 [n]. Raises UnicodeEncodeError for lone surrogates.
        """

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True, *, threads: int = 1) -> tuple[numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.int64]]:
        """
        Ids of all texts end to end, uint32 [total], and where each begins, int64 [len(texts) + 1]: text i has ids[offsets[i]:offsets[i + 1]]. With several threads the ids are the same. Raises ValueError (threads below 1), UnicodeEncodeError (lone surrogates).
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
        """Returns the id of a token, which is spelled as in the file, or None."""

    def id_to_token(self, id: int) -> str | None:
        """Returns the token as the file spells it, or None."""

    @property
    def vocab_size(self) -> int:
        """Number of distinct tokens, added tokens included."""

    @property
    def id_limit(self) -> int:
        """The largest id + 1: the rows that an embedding needs."""

    @property
    def hash(self) -> str:
        """XXH3-128 of the file's bytes, hexadecimal."""

    def __getstate__(self) -> tuple[str, str]: ...

    def __setstate__(self, arg: tuple[str, str], /) -> None: ...

    def __repr__(self) -> str: ...

def chat_template_names() -> list[str]:
    """Lists the names of the native chat templates."""

class NativeChat:
    """A native chat template with a tokenizer. Thread-safe."""

    def __init__(self, name: str, tokenizer: Tokenizer, refuse_control_text: bool = False, last_turn_only: bool = False) -> None:
        """
        Raises ValueError: an unknown name, or a token that the tokenizer does not have.
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
        Writes the shard and its index, and empties this object. Raises FileExistsError (the shard is there).
        """

def prepare(inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, tokenizer: str | os.PathLike[str], out: str | os.PathLike[str], task: tuple[int, int] | None = None, format: str = 'webdataset', ids: str | None = None, text: bool = True, block_documents: int = 0, shard_bytes: int = 0, documents: str = 'line', text_field: str = 'text', chat: str = '', refuse_control_text: bool = False, last_turn_only: bool = False, add_special_tokens: bool = True, bos: str = '', eos: str = '', strict: bool = False, max_document_bytes: int = 67108864, on_error: str = 'fail', max_errors: int = 1000, dedup: bool = False, dedup_memory_bytes: int = 1073741824, min_bytes: int = 0, max_bytes: int = 0, min_tokens: int = 0, max_tokens: int = 0, threads: int = 0, json_as_text: bool = False, max_invalid: float = 0.001, replace: bool = False, dry_run: bool = False, strip: bool = False, keep_empty: bool = False) -> PrepareResult:
    """
    Tokenises raw text into shards; the same as `millrace prepare`.

    Args:
        inputs: paths or URLs; globs and braces are expanded, folders stand for all files below them, '@list.txt'
            for the lines of that file, '-' for standard input. Text, jsonl or Parquet, plain, gzip or zstd.
        tokenizer: a tokenizer.json, or a tiktoken.model (docs/tokenizer.md).
        out: the folder of the shards.
        task: (i, n): do part i of n, 0-based. None: the Slurm array task, else everything.
        format: 'webdataset' (tar), 'megatron' (bin and idx) or 'tokens' (llm.c's token files).
        ids: of tar shards: 'npy' (token_ids.npy, uint32), 'json' (token_ids.json) or 'raw' (token_ids.u16 or .u32);
            None: 'npy'. Other formats have their own form of ids and take none.
        text: write text.txt beside the ids.
        block_documents: of tar shards: the number of documents whose ids share one member; 0: one each.
        shard_bytes: start a new shard at this size; 0: one shard a task.
        documents: 'line', 'paragraph', 'file' or 'jsonl'; a row of a Parquet table is always one.
        text_field: the field of a jsonl object ('meta.body' inside objects) or the column of a table.
        chat: 'chatml', 'llama-3' or 'llama-2' (documents='jsonl'): each line is a conversation, written through this
            template with loss_mask.npy; refuse_control_text makes the template's marks in a message an error.
        bos, eos: tokens to put around every document beside what the post-processor adds.
        strip: take white space from both ends of a document, as str.strip().
        keep_empty: take texts that are empty or only white space; without it they are no documents, in any format,
            and `empty` of the result counts them.
        strict: ill-formed UTF-8 is an error, instead of being replaced by U+FFFD.
        on_error: 'fail', or 'skip': leave the document out and write it to SHARD.rejected.jsonl; more than
            max_errors of a task fail it all the same.
        dedup: leave out texts that came before in the task.
        min_bytes, max_bytes, min_tokens, max_tokens: leave out documents of another length; a max of 0 is none.
        json_as_text: lines or paragraphs of JSON are meant, instead of being an error.
        max_invalid: refuse a file with more ill-formed UTF-8 sequences per byte than this; 1 takes any.
        replace: write a finished task again when its inputs are others now, instead of raising.
        dry_run: write no file, and estimate the output from a sample.
    Returns: a dict: documents, tokens, input_bytes, output_bytes, shards, seconds, cpu_seconds, ...; of a dry run
        also expected_documents, expected_tokens, expected_output_bytes and sampled_bytes.
    Raises: FileNotFoundError, ValueError, FileExistsError (finished from other inputs), OSError (no space),
        NotImplementedError (the tokenizer).
    """

def finish(out: str | os.PathLike[str]) -> FinishResult:
    """
    Joins the part records of all tasks into manifest.json. Raises FileNotFoundError naming the missing parts.
    """

def split(inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, out: str | os.PathLike[str], parts: int, documents: str = 'line', text_field: str = 'text', validation: float = 0.0, seed: int = 0, max_document_bytes: int = 67108864, json_as_text: bool = False, max_invalid: float = 0.001, replace: bool = False, dry_run: bool = False, keep_empty: bool = False) -> list[SplitPart]:
    """
    Cuts raw files into `parts` files of nearly equal bytes without breaking a document; the same as `millrace split`.

    `validation` is the share of the documents, chosen by the hash of their text and `seed`, that goes to a file of its own. `replace` writes parts again that are there with other content, instead of raising FileExistsError; rows of a table without text are left out unless `keep_empty`; the rest as in prepare.
    """

class DatasetReader:
    """Reads samples of shards by number; use millrace.Dataset."""

    def __init__(self, shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], ids_field: str = '', cache: str = '', cache_bytes: str = '0') -> None: ...

    def __len__(self) -> int: ...

    def read(self, number: int) -> dict[str, str | bytes]: ...

    def read_ids(self, number: int) -> numpy.typing.NDArray[numpy.uint32]: ...

class RingBatch:
    """
    A batch of token ids in one piece of memory, which it keeps until release().
    """

    @property
    def buffer(self) -> int:
        """The number of its buffer in the ring; -1: other memory."""

    @property
    def layout(self) -> tuple[tuple[str, str, tuple[int, ...], int], ...]:
        """
        Of each field its name, dtype, shape and offset in bytes. The same object while nothing of it changes.
        """

    @property
    def bytes(self) -> int: ...

    def release(self) -> None:
        """Gives the memory back and keeps the state."""

    def array(self) -> numpy.typing.NDArray[numpy.uint8]: ...

    def state_dict(self) -> dict[str, Any]:
        """Returns the state after this batch."""

class BatchReader:
    """Shards in, batches out; use millrace.Loader. Thread-safe."""

    def __init__(self, shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, seq_len: int, batch_size: int | None = None, global_batch_size: int | None = None, collate: str = 'pad', shuffle: bool = True, seed: int = 0, rank: int = 0, world_size: int = 1, epochs: int | None = None, drop_last: bool = True, fill_last: str = '', uneven_ranks: bool = False, pad_id: int = 0, dtype: str = 'int64', num_threads: int = 0, memory_bytes: int = 0, ids_field: str = '', tokenizer_hash: str = '', vocab_size: int = 0, carry_state: bool = False, carry_source: bool = False, carry_documents: bool = False, sources: Sequence[tuple[Sequence[str], str]] = [], weights: Sequence[tuple[int, Sequence[float]]] = [], stop: str = 'endless', on_bad: str = 'raise', max_bad: int = 1000, first_step: int = 0, step_stride: int = 1, cache: str = '', cache_bytes: str = '0', stall_seconds: float = 120.0, on_stall: str = 'warn', numa: bool = True, fields: object | None = None, rows: list = [], full_shuffle: bool = False) -> None: ...

    def __iter__(self) -> BatchReader: ...

    def __next__(self) -> dict[str, Any]: ...

    def ring_space(self, kept: int) -> tuple[int, int]:
        """
        The bytes of a buffer and the number of buffers that batches may be written into, where up to `kept` are held at once.
        """

    def use_ring(self, address: int, buffer_bytes: int, buffers: int, kept: int, owner: object) -> None:
        """
        From now on batches are written into these buffers, which `owner` keeps alive.
        """

    def next_in_ring(self, may_wait: bool) -> RingBatch | None:
        """
        Returns the next batch in one piece of memory. may_wait=False: returns None if no batch is ready.
        """

    def state_dict(self) -> dict[str, Any]: ...

    def state_behind(self, epoch: int, next_position: int) -> dict[str, Any]:
        """
        Returns the state after the batch whose 'loader_state' holds these two numbers.
        """

    def load_state_dict(self, state: dict) -> None: ...

    def start_pass(self, number: int) -> None:
        """Makes the next batch the first one of this pass."""

    def pass_info(self) -> tuple[int, bool]:
        """Returns the number of the current pass, and whether it is over."""

    def pass_batches(self, number: int) -> int: ...

    def set_weights(self, weights: Sequence[float]) -> None:
        """Uses these weights of a mixture from the next batch on."""

    def provenance(self, step: int, states: Sequence[str]) -> list[list[list[tuple[int, str, int, int, int, str]]]]: ...

    def quarantined(self) -> list[tuple[int, int, str]]: ...

    def damaged_shards(self) -> list[tuple[int, str, int, str]]:
        """
        Tars without an index that are damaged: dataset, URL, samples that are read, reason.
        """

    def reject(self, rows: Sequence[tuple[Sequence[int], str]]) -> None:
        """
        Rows that are bad: of each its line of '__places__' and the reason. From the next load_state_dict() on others take their places.
        """

    @property
    def step(self) -> int: ...

    def skip(self, begin: int, end: int) -> None:
        """Leaves out steps [begin, end)."""

    @property
    def epoch_units(self) -> int: ...

    def stats(self) -> dict[str, float]: ...

    def config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""

    def close(self) -> None: ...

def row_reader(datasets: Sequence[tuple[str, str, Sequence[int], Sequence[int]]], *, weights: Sequence[tuple[int, Sequence[float]]] = [], stop: str = 'endless', batch_size: int | None = None, global_batch_size: int | None = None, shuffle: bool = True, seed: int = 0, rank: int = 0, world_size: int = 1, epochs: int | None = None, drop_last: bool = True, fill_last: str = '', uneven_ranks: bool = False) -> BatchReader:
    """
    A BatchReader whose batches are numbers of rows of episodes; millrace.lerobot.Loader is the way to use it.
    """

class PassMachine:
    """
    Decides which pass of a loader comes next. `where` is called to ask the reader for its position, (number of the pass, whether it is over).
    """

    def __init__(self, is_endless: bool) -> None: ...

    def ask(self, arg0: int, arg1: Callable, /) -> bool: ...

    def loaded(self) -> None: ...

    def moved(self) -> None: ...

    def began(self) -> None: ...

    def gave(self) -> None: ...

    def ended(self) -> None: ...

    def for_begins(self, arg: Callable, /) -> int | None: ...

    def for_goes_on(self) -> None: ...

    def next_begins(self) -> int | None: ...

    def following(self, arg: Callable, /) -> int: ...

    def pass_of_length(self, arg: Callable, /) -> int: ...

    def pass_of_state(self, arg: Callable, /) -> int | None: ...

    def next_start(self, arg: Callable, /) -> tuple[int | None, int]: ...

    @property
    def is_endless(self) -> bool: ...

    @property
    def is_touched(self) -> bool: ...

    @property
    def moves(self) -> int: ...

def pass_of_worker(start: tuple[int | None, int], last: tuple[int | None, int], is_endless: bool, where: Callable) -> int | None:
    """
    The pass that a worker of a DataLoader begins; None: it continues. Raises RuntimeError (workers have begun with an endless loader before).
    """

def save_tensors(url: str, tensors: Sequence[tuple[str, str, Sequence[int], Sequence[int], Sequence[int], int]], metadata: Mapping[str, str], durable: bool, threads: int = 0) -> None:
    """
    Writes one safetensors file of whole tensors, given as (name, dtype, global_shape, offset, shape, data_ptr).
    """

class TensorFile:
    """One safetensors file, opened for reading."""

    def __init__(self, url: str) -> None: ...

    @property
    def metadata(self) -> dict[str, str]: ...

    @property
    def tensors(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """name -> (dtype, shape), in the order of their bytes."""

    def load(self, targets: Sequence[tuple[str, Sequence[int], Sequence[int], int]], threads: int = 0) -> None:
        """Fills the targets (name, offset, shape, data_ptr). Verifies no hash."""

def list_step_names(root: str) -> list[tuple[int, bool, list[str]]]:
    """
    The steps that have a folder, ascending: (step, whether it is committed, the attempts that have files there).
    """

def line_after(attempt: str, step: int, line: Sequence[tuple[str, int]] | None, names: Sequence[tuple[int, bool, Sequence[str]]]) -> list[tuple[str, int]]:
    """
    What a save after this commit continues, [(attempt, step)]; `line`: what the commit itself continued, None: it does not say, and `names` of list_step_names decide.
    """

class LineWalk:
    """
    Goes through the steps of the newest line, the newest first: next() gives a step, and one of read(), damaged() and gone() says what its manifest is.
    """

    def __init__(self, names: Sequence[tuple[int, bool, Sequence[str]]]) -> None:
        """names: the results of list_step_names for all tiers, concatenated."""

    def next(self) -> int | None:
        """Returns the step to look at; None if there are no more."""

    def read(self, attempt: str, line: Sequence[tuple[str, int]] | None) -> bool:
        """Returns whether the step is the next one of the line."""

    def damaged(self) -> None: ...

    def gone(self) -> None: ...

def make_attempt(root: str, nonce: str = '', newer: bool = True) -> str:
    """
    The name of a new attempt below `root`; one rank makes it and tells the others, or all make the same with a nonce that they agree on. newer=False: as new as the newest, for a program that is no training.
    """

def assign_writers(bytes: Sequence[int], world_size: int) -> list[int]:
    """
    Returns the rank that writes each of the replicated tensors, balanced by bytes.
    """

def copy_step(sources: Sequence[str], target: str, step: int, rank: int | None = None, attempt: str = '', keep: tuple[int, int, int, str, bool, float, int] = (0, 0, 0, '', False, 0.0, 0), timeout: float = 600.0) -> int:
    """
    Copies a committed step, verified; with `rank` only its part, and rank 0 commits. Returns how many parts were copied.
    """

def list_steps(root: str) -> list[StepInfo]:
    """
    Committed steps, ascending: step, attempt, world_size, tensors, bytes, committed (Unix seconds), line ([(attempt, step)] that the commit continues, or None), left_behind, damage (str or None), newer (whether a newer version wrote it).
    """

def list_step_numbers(root: str) -> list[int]:
    """Lists the steps that have a folder, ascending, committed or not."""

class PendingSave:
    """One save under way."""

    @property
    def step(self) -> int: ...

    @property
    def bytes(self) -> int:
        """Size of this rank's file."""

    @property
    def done(self) -> bool: ...

    def filled(self, failure: str | None = None) -> None:
        """
        What fill() began is done; or, with a reason, never will be, and the save fails.
        """

    @property
    def status(self) -> dict[str, str]:
        """
        By tier, nearest first, the root last: 'pending', 'durable', 'failed', or 'skipped' (save_every).
        """

    def wait(self, timeout: float | None = None, tier: str | os.PathLike[str] | None = None) -> None:
        """
        Waits until the step is committed and durable in `tier`, as the Checkpointer got it; by default in every tier.
        `tier` may also be the URL in the bucket that a link (millrace.link) of this machine keeps in step with a
        tier's folder: then it waits until all files of the step are proven to be there.
        Raises TimeoutError after `timeout` seconds, and what went wrong.
        """

    def wait_removals(self) -> None:
        """
        Waits until the removal of older steps behind the commits, which wait() does not wait for, has ended, too.
        """

class Saver:
    """
    One rank's way to write checkpoints; millrace.torch.Checkpointer is the way to use it.
    """

    def __init__(self, root: str, *, attempt: str, rank: int = 0, world_size: int = 1, threads: int = 0, memory_bytes: int = 0, reserve_bytes: int = 0, commit_timeout: float = 600.0, keep: tuple[int, int, int, str, bool, float, int] = (0, 0, 0, '', False, 0.0, 0), tiers: Sequence[tuple[str, tuple[int, int, int, str, bool, float, int], int, bool]] = [], save_every: int = 0, tier_timeout: float = 120.0, pin: bool = False, refer_unchanged: bool = False) -> None: ...

    def save(self, step: int, tensors: Sequence[tuple[str, str, Sequence[int], Sequence[int], Sequence[int], int]], state: str, rank_state: str = 'null', metrics: Mapping[str, float] = {}, fill: Callable[[int, int, list[tuple[int, int, int, int]], bool], object] | None = None) -> PendingSave:
        """
        Copies the tensors, given as (name, dtype, global_shape, offset, shape, data_ptr), and returns a
        PendingSave. Tensors with data_ptr 0 are filled in by the caller: fill(memory, bytes, [(tensor, address,
        begin, bytes)], complete). Either it begins that once, and PendingSave.filled() says when it is done; or,
        `complete`, it fills runs of the tensors' bytes, on any threads.
        """

    def save_part(self, step: int, tensors: Sequence[tuple[str, str, Sequence[int], Sequence[int], Sequence[int], int]], rank_state: str = 'null', fill: Callable[[int, int, list[tuple[int, int, int, int]], bool], object] | None = None) -> PendingSave:
        """
        save() without the commit: the PendingSave ends when this rank's part is durable.
        """

    def commit(self, step: int, state: str) -> None:
        """Rank 0: commits a step whose parts were all saved by save_part()."""

    def abandon(self, step: int, cause: str) -> None:
        """Tells the other ranks that this rank cannot save the step, and why."""

    def continue_from(self, line: Sequence[tuple[str, int]] | None) -> None:
        """
        What the next save continues: [(attempt, step)], the oldest first; None: unknown.
        """

    def metrics(self) -> dict[str, float]: ...

    def close(self) -> None:
        """Waits for the current save and its removals."""

class Checkpoint:
    """One committed step, opened for reading."""

    def __init__(self, root: str | Sequence[str], step: int, tier_timeout: float = 0.0) -> None:
        """
        root: a folder of checkpoints, or its tiers, nearest first. tier_timeout: seconds without an answer after which a load goes on from the next tier; 0: it waits.
        """

    @property
    def step(self) -> int: ...

    @property
    def attempt(self) -> str: ...

    @property
    def line(self) -> list[tuple[str, int]] | None:
        """The line that the commit continues, [(attempt, step)]; None: unknown."""

    @property
    def world_size(self) -> int: ...

    @property
    def state(self) -> str: ...

    def rank_state(self, rank: int) -> str | None: ...

    @property
    def tensors(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """name -> (dtype, shape)."""

    @property
    def boxes(self) -> dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]]:
        """name -> (offset, shape) of each box that the tensor was saved in."""

    def load(self, targets: Sequence[tuple[str, Sequence[int], Sequence[int], int]], threads: int = 0) -> None:
        """
        Fills (name, offset, shape, data_ptr) with verified bytes. Raises CorruptionError naming file and tensor.
        """

    def heal(self) -> int:
        """
        Writes files that loads of this object found damaged back into their tiers. Returns how many.
        """

    def verify(self, threads: int = 0) -> None:
        """Reads and checks all files of the step. Raises CorruptionError."""

def cp(source: str | os.PathLike[str], target: str | os.PathLike[str], *, recursive: bool = False, filters: Sequence[str] = [], follow_links: bool = False, posix: bool = False, records: bool = True, dry_run: bool = False, memory_bytes: int = 41943040, headers: Mapping[str, str] = {}, metadata: Mapping[str, str] | None = None, tags: Mapping[str, str] | None = None) -> TransferResult:
    """
    Copies an object, or what is below a folder with recursive=True; the same as `millrace cp`.

    Args:
        source, target: paths or URLs. A target that ends in '/', or is a folder, gets the object by its name.
        filters: rules "+ PATTERN" and "- PATTERN" as rsync reads them; the first that matches decides.
        follow_links: copy the targets of symbolic links, instead of skipping the links.
        posix: copy owner, mode and times of files and folders.
        records: store hashes in .millrace/ at the target.
        memory_bytes: memory for parts in flight; larger values allow more connections to s3://, for fast networks.
        headers: Content-Type, Content-Encoding, Content-Language, Content-Disposition, Cache-Control, Expires of
            objects in s3://, instead of the source's, or of the type by a file's name.
        metadata, tags: user metadata and tags of objects in s3://, instead of the source's; {}: none.
    Returns: a dict: copied_files, copied_bytes, moved_bytes, saved_bytes, seconds, ...
    Raises: FileNotFoundError, ValueError, PermissionError, OSError (no space), ConnectionError; when single
        files fail the rest is copied first.
    """

def mv(source: str | os.PathLike[str], target: str | os.PathLike[str], *, recursive: bool = False, filters: Sequence[str] = [], posix: bool = False, records: bool = True, dry_run: bool = False, memory_bytes: int = 41943040, headers: Mapping[str, str] = {}, metadata: Mapping[str, str] | None = None, tags: Mapping[str, str] | None = None) -> TransferResult:
    """
    cp, then removes from the source what is at the target, unless it changed meanwhile; the same as
    `millrace mv`.

    Args, returns, raises: as cp, and removed_files. A file that failed stays, links do too.
    """

def sync(source: str | os.PathLike[str], target: str | os.PathLike[str], *, filters: Sequence[str] = [], delete: bool = False, max_delete: int | None = None, compare: str = 'usual', follow_links: bool = False, posix: bool = False, records: bool = True, dry_run: bool = False, memory_bytes: int = 41943040, headers: Mapping[str, str] = {}, metadata: Mapping[str, str] | None = None, tags: Mapping[str, str] | None = None) -> TransferResult:
    """
    Makes `target` hold the files of `source`, moving only what differs; the same as `millrace sync`.

    Args:
        filters, follow_links, posix, records, memory_bytes, headers, metadata, tags: as of cp.
        delete: at the end, delete from the target what the source does not have; never after an error, nor when
            the source has no files.
        max_delete: delete nothing if more files than this would be deleted.
        compare: 'usual' (recorded hashes, else what proves two files equal), 'checksum' (read both sides) or 'size'.
    Returns, raises: as cp; ValueError when a requested deletion was refused.
    """

class Listing:
    """
    The result of ls(): an iterator over entries. Memory does not grow with their number.
    """

    def __iter__(self) -> Listing: ...

    def __next__(self) -> ListEntry: ...

def ls(url: str | os.PathLike[str], *, recursive: bool = False, filters: Sequence[str] = ()) -> Listing:
    """
    Lists a folder or bucket, entry by entry in byte order of the path, of any size: dicts with path,
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

def link_status(path: str | os.PathLike[str]) -> LinkStatusResult:
    """
    What the link that `path` lies in did, what waits and what went wrong; the same as `millrace link status`.

    Returns: a dict: name, directory, url, running, behind_s (seconds), files, error, problems, conflicts, ...
    Raises: FileNotFoundError (`path` lies in no link).
    """

def link_statuses() -> list[LinkStatusResult]:
    """The same of each link of this user and machine, by name."""

def link_wait(path: str | os.PathLike[str], *, timeout: float | None = None) -> LinkWaitResult:
    """
    Returns when every file below `path` is proven to be in the bucket, in the version that it has; the same as
    `millrace link wait`.

    Args:
        path: a file or a folder of a link that a process runs on this machine.
        timeout: seconds; None: for ever.
    Returns: a dict: files, bytes, proofs (how many files by which proof), seconds.
    Raises: FileNotFoundError (no such path, or it lies in no link), TimeoutError (it names the first file that
        is not there yet), ConnectionError (files wait, and no process runs the link).
    """

def link_release(path: str | os.PathLike[str], *, older_than: float = 0.0, keep_free: float = 0.0, pins: Sequence[str] = (), next_use: Sequence[str | os.PathLike[str]] = (), dry_run: bool = False) -> LinkReleaseResult:
    """
    Gives the blocks of files back whose content is proven to be in the bucket; the same as
    `millrace link release`.

    Args:
        path: a file or a folder of a link.
        older_than: only files that nobody has used for this many seconds.
        keep_free: stop when this share of the file system is free, 0 to 1; 0: all that may go.
        pins: rsync's patterns of files that stay, beside those of the link.
        next_use: paths or URLs in the order of their next use; with keep_free they go last, the latest used first.
    Returns: a dict: files, bytes, left (files that stay), reasons (why, by path, of 1000 of them), free_share.
    Raises: FileNotFoundError, PermissionError (root, who would read zeros), NotImplementedError (a file system
        without holes or attributes).
    """

def link_restore(path: str | os.PathLike[str], *, order: Sequence[str | os.PathLike[str]] = (), dry_run: bool = False) -> LinkRestoreResult:
    """
    Brings the content of released files back; the same as `millrace link restore`.

    Args:
        path: a file or a folder of a link.
        order: paths or URLs of files that come first, in this order.
    Returns: a dict: files, bytes.
    Raises: FileNotFoundError, OSError (no space), ConnectionError; when single files fail the rest is brought
        first.
    """

class ObjectReader:
    """An object that is open for reading; use millrace.open."""

    def __init__(self, url: str | os.PathLike[str], cache: str = '', cache_bytes: str = '0') -> None: ...

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

    def __init__(self, url: str | os.PathLike[str], exclusive: bool = False) -> None: ...

    def append(self, data: bytes | bytearray | memoryview) -> None: ...

    def commit(self) -> None:
        """Makes the object visible, all at once."""

    def discard(self) -> None:
        """Leaves nothing behind."""

def user_folder() -> str | None:
    """Where indexes of this user are kept on this node; None: nowhere."""

class Episode:
    """The rows of one episode."""

    def __len__(self) -> int: ...

    def __getitem__(self, column: str) -> numpy.typing.NDArray[numpy.floating] | list[str]:
        """
        A column by its name: an array [rows] of a number column, a list of a text column. Raises: KeyError.
        """

    @property
    def name(self) -> str:
        """Below the dataset's folder, without the ending."""

    @property
    def numbers(self) -> numpy.typing.NDArray[numpy.floating]:
        """float32 or float64 [rows, columns], read-only."""

    @property
    def columns(self) -> list[str]:
        """Names of the columns of `numbers`."""

    @property
    def text_columns(self) -> list[str]:
        """Names of the text columns."""

class Episodes:
    """
    The episodes of a packed file, of a folder with episodes.mrpack, or of NPZ files of convert: one,
    those of a folder or those of a pattern. Files are mapped. Thread-safe; usable after fork;
    pickled as its path.

    Raises: FileNotFoundError, millrace.CorruptionError, NotImplementedError (a URL of another
        machine; NPZ files of other programs).
    """

    def __init__(self, path: str | os.PathLike[str]) -> None: ...

    def __len__(self) -> int: ...

    def __getitem__(self, i: int) -> Episode:
        """
        The episode; negative numbers count from the end. Raises: IndexError, millrace.CorruptionError.
        """

    def window(self, i: int, start: int, rows: int) -> numpy.typing.NDArray[numpy.floating]:
        """
        Rows [start, start + rows) of the number columns of episode i: [rows, columns], read-only, without a
        copy.

        Raises: IndexError (the episode does not have these rows), millrace.CorruptionError.
        """

    @property
    def path(self) -> str: ...

    @property
    def names(self) -> list[str]:
        """Of each episode, below the dataset's folder, without the ending."""

    @property
    def lengths(self) -> numpy.typing.NDArray[numpy.int64]:
        """int64 [len(self)]: rows of each episode. Opens every NPZ file."""

    def read_lengths(self, progress: Callable[[int, int], object] | None) -> numpy.typing.NDArray[numpy.int64]:
        """
        `lengths`; `progress(opened, all)` is called while files are opened, and what it raises ends that.
        """

    @property
    def is_packed(self) -> bool:
        """Whether one packed file holds all episodes."""

    @property
    def numbers(self) -> numpy.typing.NDArray[numpy.floating]:
        """
        Of a packed file: the rows of all episodes one behind the other, [rows, columns], read-only.
        Raises: AttributeError (NPZ files).
        """

    @property
    def columns(self) -> list[str]:
        """Names of the number columns."""

    @property
    def text_columns(self) -> list[str]:
        """Names of the text columns."""

    @property
    def dtype(self) -> numpy.dtype[numpy.floating]:
        """Of the numbers: float32 or float64."""

    def __reduce__(self) -> tuple: ...

def read_csv_episode(path: str | os.PathLike[str], *, dtype: str = 'float32', delimiter: str | None = None, decimal: str = '.', header: str = 'auto', empty: str = 'error', text: Sequence[str] = []) -> Episode:
    """
    One CSV file as arrays. Numbers are what float() makes of csv.reader's cells, then rounded to dtype; the
    arguments are those of convert.

    Raises: millrace.CorruptionError (with file:line:column), FileNotFoundError, ValueError.
    """

def convert_episodes(source: str | os.PathLike[str], *, to: str = 'npz', out: str | os.PathLike[str] | None = None, compress: bool = False, dtype: str = 'float32', delimiter: str | None = None, decimal: str = '.', header: str = 'auto', empty: str = 'error', text: Sequence[str] = [], threads: int = 0, dry_run: bool = False) -> EpisodesResult:
    """
    Converts CSV episodes; the same as `millrace episodes convert`. Files that are converted already are kept.

    Args:
        source: a folder, a CSV file or a pattern; also s3://.
        to: 'npz' (a file for each CSV file) or 'packed' (one file for all).
        out: the folder of NPZ files, or the packed file. None: beside the CSV files.
        compress: NPZ members by deflate; they cannot be mapped.
        dtype: of the numbers, 'float32' or 'float64'.
        delimiter: None: the commonest of , ; | and tab in the header.
        decimal: '.' or ','.
        header: 'yes', 'no' (columns c0, c1, ...) or 'auto': refuse a first row that looks like data.
        empty: 'nan' takes an empty cell of a number column as NaN.
        text: columns that are text, whatever their cells look like.
        threads: 0: one for each CPU.
        dry_run: read and check every file, and write none.
    Returns: a dict: converted, kept, failed (a list of file and error), rows, output_bytes, kinds, rounded, ...
    Raises: FileNotFoundError (no CSV file), FileExistsError (the packed file's name is taken), OSError (no
        space). Errors of single files are in `failed`.
    """

def run_facts(folder: str) -> str:
    """
    User, host, job, git and environment of a training in `folder`, without secrets, as JSON.
    """

def remember_run(folder: str) -> None:
    """Names a record's folder in the ledger. Raises OSError."""

def without_secrets(text: str) -> str:
    """`text` with what looks like a secret replaced by <removed>."""

def words_without_secrets(words: Sequence[str]) -> list[str]:
    """
    The same for the words of a command: the word behind `--token` is removed too.
    """

def names_secret(name: str) -> bool:
    """Whether a setting of this name holds a secret."""

def crc32c(data: bytes) -> int:
    """CRC-32C of the bytes."""

class JsonColumns:
    """
    The kinds of values in the columns of JSON lines (formats/json_columns.h).
    """

    def __init__(self) -> None: ...

    def add(self, lines: bytes) -> list[bytes]:
        """Adds whole lines. Returns the lines that are not plain JSON objects."""

    @property
    def rows(self) -> int:
        """The number of lines that were read."""

    def columns(self) -> dict[str, tuple[int, int]]:
        """
        A set of kinds (1: null, 2: bool, 4: integer, 8: float, 16: other, 32: an integer of 19 digits or more) and the number of rows, for each column.
        """

def find_files(patterns: Sequence[str]) -> list[str]:
    """
    The files that braces and wildcards name, in byte order. Raises FileNotFoundError.
    """

class VideoReader:
    """
    Frames of an MP4 or MOV file by their numbers, in the order they are shown, from 0.

    Args:
        path: path or URL; of s3:// only the packets of the frames that are asked for are read.
        threads: of the decoder.
    Raises: millrace.CorruptionError (naming the file and frame), FileNotFoundError,
        NotImplementedError (FFmpeg is missing: what to install; another container or codec).
    """

    def __init__(self, path: str | os.PathLike[str], *, threads: int = 1) -> None: ...

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> numpy.typing.NDArray[numpy.uint8]:
        """uint8 [height, width, 3], RGB. Raises: IndexError."""

    def frames(self, numbers: Sequence[int], *, layout: str = 'hwc') -> numpy.typing.NDArray[numpy.uint8]:
        """
        Frames in any order, also repeated; those near each other are decoded together.

        Returns: uint8 [len(numbers), height, width, 3], RGB; with layout='chw' [len(numbers), 3, height, width].
        Raises: ValueError (no such frame), millrace.CorruptionError.
        """

    def planes(self, number: int) -> numpy.typing.NDArray[numpy.uint8]:
        """
        The decoded planes one behind the other, uint8 [bytes]: of yuv420p Y, then U and V of half the size.
        """

    def frame_near(self, seconds: float, tolerance_s: float = 0.0001) -> int:
        """
        The number of the frame nearest to a time, the earlier of two equally near.

        Raises: ValueError, unless it is less than tolerance_s away.
        """

    @property
    def width(self) -> int: ...

    @property
    def height(self) -> int: ...

    @property
    def codec(self) -> str: ...

    @property
    def pixel_format(self) -> str: ...

    @property
    def fps(self) -> tuple[int, int]:
        """
        Frames a second as numerator and denominator: exact where all frames last as long, else the mean.
        """

    @property
    def time_base(self) -> tuple[int, int]:
        """Seconds of a tick, as numerator and denominator."""

    @property
    def pts(self) -> numpy.typing.NDArray[numpy.int64]:
        """int64 [frames]: ticks."""

    @property
    def key_frames(self) -> list[bool]:
        """Whether each frame is a key frame."""

    @property
    def has_b_frames(self) -> bool:
        """Whether frames are decoded in another order than they are shown in."""

def lerobot_convert(source: str | os.PathLike[str], target: str | os.PathLike[str], *, to: str, modality: str | None = None, dry_run: bool = False) -> MadeDatasetResult:
    """
    Makes a dataset of version `to` of one of another version; the same as `millrace lerobot convert`.

    Args:
        source: the dataset's folder, a path or URL; it is only read.
        target: a new folder on this machine. A call that was stopped is continued by the same call.
        to: '2.0', '2.1', '3.0' or 'groot': 2.1 with modality.json and GR00T's stats.json.
        modality: for 'groot', the text of a spec with lines such as state.arm = observation.state[0:5];
            None: the source's modality.json, else one that is proposed from names.
        dry_run: count what would be made, and write nothing.
    Returns: a dict: output, version, episodes, frames, files, reused, cut_episodes, copied_videos,
        encoded_videos, min_psnr_db, inherited (rules that source and result break),
        proposed (lines of a spec).
    Raises: FileExistsError, ValueError, millrace.CorruptionError naming the damaged file, NotImplementedError (a
        library is missing).
    """

def lerobot_split(source: str | os.PathLike[str], target: str | os.PathLike[str], *, episodes: str | Sequence[int] | None = None, parts: dict | None = None, fractions: dict | None = None, dry_run: bool = False) -> list[MadeDatasetResult]:
    """
    Makes datasets of some episodes of one; the same as `millrace lerobot split`.

    Args:
        source, target, dry_run: as of convert.
        episodes: those of the dataset `target`: "0-9,12" or a sequence of numbers.
        parts: names and episodes, {"train": range(80), "val": "80-99"}, of datasets below `target`.
        fractions: names and fractions of the episodes in their order, {"train": 0.9, "val": 0.1}.
    Returns: a list of dicts as of convert, one for each dataset. Raises as convert.
    """

def lerobot_merge(sources: Sequence[str | os.PathLike[str]], target: str | os.PathLike[str], *, to: str | None = None, dry_run: bool = False) -> MadeDatasetResult:
    """
    Makes one dataset of several with the same features and fps; the same as `millrace lerobot merge`.

    Args:
        sources: the datasets in the order of their episodes.
        target, dry_run: as of convert.
        to: the version to write; None: that of the sources.
    Returns, raises: as convert.
    """

def lerobot_delete(source: str | os.PathLike[str], target: str | os.PathLike[str], episodes: str | Sequence[int], *, dry_run: bool = False) -> MadeDatasetResult:
    """
    Makes a dataset without some episodes of another; the same as `millrace lerobot delete`.

    Args:
        source, target, dry_run: as of convert.
        episodes: those to leave out: "3,7-9" or a sequence of numbers.
    Returns, raises: as convert.
    """

def lerobot_diff(a: str | os.PathLike[str], b: str | os.PathLike[str], *, frames: bool = False) -> LeRobotDiffResult:
    """
    Says what differs between two datasets of any versions; the same as `millrace lerobot diff --json`.

    Args:
        a, b: the datasets' folders, paths or URLs.
        frames: also compare decoded frames of videos; of files with equal bytes none is decoded.
    Returns: a dict: a, b (url, version, episodes, frames), differences (their number), info, tasks, episodes,
        features (rows, differ, first_episode, first_row, largest), stats, cameras, not_compared.
    Raises: FileNotFoundError, millrace.CorruptionError, NotImplementedError (a library is missing).
    """

def lerobot_download(name: str, *, out: str | os.PathLike[str] = '', revision: str = '', include: Sequence[str] = [], exclude: Sequence[str] = [], replace: bool = False, dry_run: bool = False, memory_bytes: int = 41943040) -> DownloadResult:
    """
    Gets a dataset from the Hugging Face Hub, checked and pinned to one commit; the same as
    `millrace lerobot download`. A call that was stopped or killed continues when it is made again.

    Args:
        name: a name of the organisation lerobot, 'org/name', or 'hf://datasets/org/name[@revision]'.
        out: a path or URL; "": the name, in the current folder.
        revision: a tag, branch or commit; "": the newest version tag, or main where there is none.
        include, exclude: patterns of rsync; with include only what matches one, and nothing that exclude matches.
        replace: where `out` holds another commit, bring this one and remove the files that it does not have.
        memory_bytes: as of millrace.sync.
    Returns: a dict: repo, revision, commit, output, copied_files, copied_bytes, skipped_files, warnings, ...
    Raises: FileNotFoundError (no such dataset or revision, or a private one), PermissionError (gated, a refused
        token), FileExistsError (`out` holds another commit), ConnectionError, millrace.CorruptionError, OSError.
    """

class LeRobotFeed:
    """
    Rows of a robot dataset; millrace.lerobot.Dataset is the way to use it. Thread-safe.
    """

    def __init__(self, url: str | os.PathLike[str], *, episodes: Sequence[int] | None = None, cameras: Sequence[str] | None = None, delta_timestamps: Mapping[str, Sequence[float]] = {}, delta_rows: Mapping[str, Sequence[int]] = {}, tolerance_s: float = 0.0001, skip_first: int = 0, skip_last: int = 0, float_pictures: bool = False, float_table_pictures: bool = False, channels_last: bool = False, size: tuple[int, int] = (0, 0), fit: str = 'crop', cache: str = '', cache_bytes: str = '0', threads: int = 0, most_decoders: int = 32, decoder_bytes: int = 1073741824, row_bytes: int = 1073741824) -> None: ...

    def __len__(self) -> int: ...

    def read(self, rows: Sequence[int]) -> dict[str, Any]:
        """
        The rows with these numbers as arrays [len(rows), ...] and lists of texts, by name.
        """

    @property
    def fps(self) -> float: ...

    @property
    def version(self) -> str: ...

    @property
    def episodes(self) -> list[int]: ...

    @property
    def first_rows(self) -> list[int]:
        """Of each episode, and behind them the number of rows."""

    @property
    def skipped_rows(self) -> int: ...

    def read_text(self, path: str) -> str | None:
        """A file of the dataset by its path there; None: there is none."""

    @property
    def cameras(self) -> list[str]: ...

    @property
    def tasks(self) -> list[str]: ...

    @property
    def features(self) -> dict[str, dict[str, Any]]: ...
