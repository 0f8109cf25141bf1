// SPDX-License-Identifier: Apache-2.0
#pragma once

// A Storage maps keys to byte objects: a directory on Lustre or NVMe, an S3 bucket, a cache, plain memory. Everything
// in Millrace that moves bytes goes through this interface. Backends: memory.h, local/local.h, s3/s3.h,
// web/http_storage.h. testing/fault.h wraps any of them. `open_url` in url.h finds the backend for a URL or path.
//
// A key is a relative path with '/' between components: "run1/step-10/rank-0.safetensors". Backends with
// Capabilities::folders take only legal paths (check_key); object stores take any key (check_object_key), so that
// objects of other programs can be read, copied and removed: "a//b", "./x", "dir/". Any other key is invalid_argument.
// A prefix in `list` is any leading part of a key.
//
// Three rules hold for every backend. The conformance suite (testing/conformance.h) tests them:
//  - An open pins a version. Reads give the bytes of that version or fail with corruption ("changed while reading").
//  - A write is invisible until commit() and atomic at commit(): a reader sees the old object or the new one. A Writer
//    dropped without commit leaves nothing behind. After kill -9 it leaves at most an upload, which `list` does not
//    show and `list_uploads` and `abort_uploads` find.
//  - A capability flag says what a backend cannot do; the call answers unsupported.
//
// Thread-safe: all of Storage, read_at of readers, write_at of writers. After fork, a Storage and readers opened before
// it work in the child; writers opened before it belong to the parent.

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "millrace/base/io/file_time.h"
#include "millrace/base/io/io.h"
#include "millrace/base/io/local_file.h"
#include "millrace/base/progress.h"
#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"
#include "millrace/storage/checksum.h"
#include "millrace/storage/object_headers.h"

namespace millrace {

enum class Locality {
  kLocal,   // this machine's memory or a file system: reading costs less than a transfer, a stat next to nothing
  kRemote,  // a service: each call is a request, and writes go in parts (Writer::part_bytes)
};

struct Capabilities {
  Locality locality = Locality::kRemote;
  bool conditional_write = false;  // WriteOptions::condition other than replace is atomic against other processes
  bool copy_range = false;         // Writer::copy_range moves bytes without passing through this process
  bool list_uploads = false;       // unfinished writes of dead processes can be found and aborted
  bool knows_dead = false;         // list_uploads can tell them from those of living processes
  bool free_space = false;         // free_space() answers
  bool durable = false;            // commit(durable) and make_durable survive a power cut (else: they mean visible)
  bool resume = false;             // Writer::suspend and Storage::resume_write work
  bool notes = false;              // Writer::set_note and read_back work
  bool sends_files = false;        // Operation::Send does not read the bytes into memory
  bool file_checksums = false;     // sends_files, and uses Send::crc32c
  bool headers = false;            // objects have ObjectHeaders, metadata and tags, and copy_range can keep them
  bool folders = false;            // keys are paths: no key is an object and a folder at once

  bool is_local() const { return locality == Locality::kLocal; }
};

// Attributes that a file system stores beside the bytes. In S3, the user metadata that FSx for Lustre reads and writes
// (file-permissions, -owner, -group, -atime, -mtime; times in ns).
struct PosixAttributes {
  uint32_t mode = 0;  // st_mode: type and permissions; 0: mode, owner and group are unknown and stay as they are
  uint32_t owner = 0;
  uint32_t group = 0;
  FileTime accessed;
  FileTime modified;
};

// The kind of an entry in a listing.
enum class ObjectKind {
  kFile,
  kLink,     // a symbolic link that was not followed: on request, or because it leads nowhere or in a circle
  kSpecial,  // a socket, pipe or device
  // A directory that this user may not read (its key ends in '/'), or a name in a directory that this user may not
  // enter.
  kUnreadable,
  kFolder,  // an empty folder: its key ends in '/'
};

struct ObjectInfo {
  std::string key;
  int64_t size = 0;
  std::string version;  // see RandomReader::version(); may be empty in a listing
  FileTime modified;
  std::map<std::string, std::string> metadata;   // from stat only
  std::shared_ptr<const ObjectHeaders> headers;  // from stat only; null: none is set
  std::optional<PosixAttributes> posix;          // from stat only
  ObjectKind kind = ObjectKind::kFile;           // others only where ListOptions ask for them
  // When content or attributes of a file last changed (ctime). Restoring `modified` does not hide a change from it.
  // Zero where the backend has none.
  FileTime changed;
  uint32_t mode = 0;  // permissions of a file (of 0777), also in listings; 0: the backend has none
};

struct ListOptions {
  bool recursive = true;   // false: one level; deeper keys are folded into `prefixes`, each ending in '/'
  std::string page_token;  // from the page before; empty for the first page
  int64_t max_keys = 1000;
  bool follow_links = true;  // symbolic links count as their targets; false: they are kLink
  // `objects` also holds entries that are not files; a link in a circle ends in '/' there. Without it, an unreadable
  // entry is an error, unless the prefix begins there.
  bool others = false;
  // `objects` also holds empty folders, where the backend has folders and the listing is recursive: not the one in
  // which it begins.
  bool empty_folders = false;
};
struct ListPage {
  std::vector<ObjectInfo> objects;  // in byte order of the key
  std::vector<std::string> prefixes;
  std::string next_page_token;  // empty on the last page
};

struct OpenOptions {
  // When set, opening any other version fails with corruption.
  std::string expected_version;
  // With expected_version: the object's size from a listing. A backend for which opening costs a request may then skip
  // it; the first read finds a difference.
  std::optional<int64_t> known_size;
  // Most of the object is read once, in large pieces (aligned memory is best): it need not stay in the page cache.
  bool once = false;
};

struct WriteOptions {
  enum class Condition { kReplace, kIfAbsent, kIfVersion };
  Condition condition = Condition::kReplace;
  std::string version;          // used by kIfVersion
  int64_t size_hint_bytes = 0;  // 0: unknown. Space is checked and preallocated where possible
  int64_t part_bytes = 0;       // the preferred Writer::part_bytes; 0: the backend's choice
  int stripe_count = 0;         // Lustre: number of servers; 0: by the size hint, -1: all. Ignored elsewhere
  bool sparse = false;          // runs of zeros become holes where the backend has holes
  uint32_t mode = 0;            // permissions, less the umask; 0: those of any new file
  bool brief = false;           // written and committed at once: cannot be suspended, nor noted
  std::map<std::string, std::string> metadata;  // at most 2 KiB in all, ASCII; unsupported where there is none
  ObjectHeaders headers;                        // ASCII. Without effect where there are none, as tags
  ObjectTags tags;
  // The object is one that copy_range copies from its first to its last byte, and has the metadata, headers and tags of
  // that one: those above are not looked at. Errors of commit: permission_denied (its tags may not be read).
  bool keeps_source = false;
  std::optional<PosixAttributes> posix;  // set at commit; attributes that the process may not set stay
};

enum class Durability {
  kVisible,  // atomic and visible; a power cut may undo it until make_durable
  kDurable,  // survives a power cut when commit returns
};

// A part that a resumed write holds already. `etag` proves its content where the backend has one: the MD5 in hex.
struct WrittenPart {
  int64_t offset = 0;
  int64_t size = 0;
  std::string etag;
};

class CompletionQueue;
class PendingOperation;  // submit.h

// One object being written. Write operations may come from many threads; commit once, after all of them returned.
class Writer : public ByteSink {
 public:
  ~Writer() override = default;

  // Writes `data` at `offset`. Gaps that are never written read as zeros. REQUIRES: offset >= 0.
  // Errors: resource_exhausted (no space), permission_denied, unavailable.
  [[nodiscard]] virtual Status write_at(int64_t offset, std::span<const std::byte> data) = 0;
  // Writes behind the bytes appended so far. For one thread. Do not mix with write_at.
  [[nodiscard]] Status append(std::span<const std::byte> data) final;
  // Copies [source_offset, source_offset + size) of `source` to `offset`. What Storage::copies_from holds for does not
  // pass through this process, also behind wrappers (RandomReader::copy_source).
  [[nodiscard]] virtual Status copy_range(const RandomReader& source, int64_t source_offset, int64_t size,
                                          int64_t offset) = 0;
  // Makes the object visible under its key, all at once, and returns what became visible. Errors: already_exists
  // (kIfAbsent lost, kIfVersion differs), resource_exhausted, unavailable. After an error no object is visible and the
  // destroyed writer leaves nothing, with two exceptions: the message says that the object is visible and only the last
  // step of making it durable failed; or suspend() was called, which the writer of a service allows then.
  [[nodiscard]] virtual Result<ObjectInfo> commit(Durability durability = Durability::kDurable) = 0;

  // Starts the request that commit() would wait for, where a commit is one request. `queue` gets a completion with
  // `tag`; after it, commit() does not wait. Only commit() may follow. False: commit() does it all.
  [[nodiscard]] virtual bool start_commit(Durability, uint64_t /*tag*/, CompletionQueue&) { return false; }

  // Takes those of `writes` (writes and sends to this writer) out of the list that need no thread, and starts them, all
  // at once. A writer around another, which does something to each write, takes none.
  virtual void start_writes(std::vector<std::unique_ptr<PendingOperation>>& /*writes*/) {}

  // 0: write_at takes any range. Else the size of a part: writes of whole parts (the object's last may be shorter) may
  // come in any order and are not copied. Any other write must begin where the one before ended. copy_range takes whole
  // parts.
  virtual int64_t part_bytes() const { return 0; }

  // Ends this writer and leaves the written bytes where list_uploads finds them, so that another process can continue
  // (Storage::resume_write). The default is unsupported.
  [[nodiscard]] virtual Status suspend();
  // Stores a small text with the unfinished write. It survives the process; commit or drop removes it.
  [[nodiscard]] virtual Status set_note(std::string_view note);
  // For a resumed write, the last note. After a power cut it may be an older one, or damaged.
  virtual std::string_view note() const { return {}; }
  // For a resumed write: reads bytes that an earlier process wrote, to check them. Works where notes work; elsewhere
  // parts() proves the content. Errors: out_of_range (past the written bytes).
  [[nodiscard]] virtual Status read_back(int64_t offset, std::span<std::byte> out);
  // For a resumed write, the parts that it holds, where the backend knows them; elsewhere the note must record them.
  // Includes parts of a different size than this writer's, which it cannot use.
  virtual std::span<const WrittenPart> parts() const { return {}; }

 private:
  int64_t appended_ = 0;
};

// How a submitted operation ended.
struct Completion {
  uint64_t tag = 0;
  Status status;
};

// Completions come out in the order in which operations end. A subclass may override push() to take them differently.
// Thread-safe; must outlive the operations submitted with it.
class CompletionQueue {
 public:
  virtual ~CompletionQueue() = default;
  virtual void push(Completion completion);
  // Waits for a completion and takes it out. REQUIRES: an operation submitted with this queue has not been taken out
  // yet.
  Completion wait();
  // Returns when `count` completions are queued, or `deadline` has passed. Takes none out. A caller that waits for many
  // wakes up once. REQUIRES: no other thread waits.
  void wait_for(size_t count, Clock::time_point deadline);
  std::optional<Completion> try_pop();

 private:
  Mutex mutex_;
  CondVar pushed_;
  std::deque<Completion> done_ GUARDED_BY(mutex_);
  size_t wanted_ GUARDED_BY(mutex_) = 1;  // wait_for() returns when this many completions are queued
};

struct ReadRange {
  const RandomReader* reader = nullptr;
  int64_t offset = 0;
  std::span<std::byte> out;
};
struct WriteRange {
  Writer* writer = nullptr;
  int64_t offset = 0;
  std::span<const std::byte> data;
};
// Writes a range of a file of this machine; the bytes need not pass through memory of this process.
struct SendRange {
  Writer* writer = nullptr;
  int64_t offset = 0;
  const FileRange* file = nullptr;
  uint32_t crc32c = 0;           // CRC-32C of the bytes, where Capabilities::file_checksums asks for it
  Progress* progress = nullptr;  // counts bytes as they are sent, and takes back bytes that must be sent again
};

// A read, a write, or a send. Everything it points to must live until the completion. When its stop token is set or its
// deadline passes before it starts, it ends as cancelled or timeout. Once started, it runs to its end.
struct Operation {
  using Read = ReadRange;
  using Write = WriteRange;
  using Send = SendRange;

  uint64_t tag = 0;
  std::variant<Read, Write, Send> what;
  std::stop_token stop;
  Clock::time_point deadline = Clock::time_point::max();
  int priority = 0;  // higher runs earlier
};

// Performs the operation on this thread, with the blocking calls of the reader or writer.
[[nodiscard]] Status perform_operation(const Operation& operation);

// The bytes and files that ordinary writes may still use, and what limits them.
struct FreeSpace {
  int64_t bytes = 0;
  std::string limit = "the file system";  // or "the quota of user 1000 (10.0 GB, of which 9.98 GB are used)"
  std::optional<int64_t> files = {};      // files that may still be made; nullopt where nothing limits them
  std::string files_limit = {};           // "the quota of user 1000 (100,000 files, of which 99,990 are used)"
};

class Storage {
 public:
  virtual ~Storage() = default;

  // For messages: "file:///data", "memory:".
  virtual std::string_view name() const = 0;
  // Identifies this storage among all others: its name, and the server behind it.
  virtual std::string identity() const { return std::string(name()); }
  virtual Capabilities capabilities() const = 0;
  // Identifies the server that copies objects: equal for the storages of one server. A wrapper answers for the storage
  // behind it.
  virtual const void* copier() const { return this; }
  // Whether copy_range of a writer here takes objects of `other` without moving them through this process.
  bool copies_from(const Storage& other) const { return capabilities().copy_range && copier() == other.copier(); }

  // This storage with a stop token. Once `stop` is set, requests through it, and through the readers and writers that
  // it opens, end as cancelled within a moment, whatever the server does. Null where calls wait for no server.
  virtual std::shared_ptr<Storage> with_stop(std::stop_token) const { return nullptr; }
  // This storage without limits of requests and bytes a second, and without a stop token. Null where there are none.
  [[nodiscard]] virtual Result<std::shared_ptr<Storage>> without_limits() const { return nullptr; }

  // Errors: not_found, permission_denied, corruption (expected_version differs), invalid_argument (a directory).
  [[nodiscard]] virtual Result<std::unique_ptr<RandomReader>> open_read(std::string_view key,
                                                                        const OpenOptions& options = {}) = 0;
  // Errors: already_exists (kIfAbsent and it is there; checked again at commit), resource_exhausted (the size hint
  // does not fit), permission_denied, invalid_argument. Missing parent directories are made.
  [[nodiscard]] virtual Result<std::unique_ptr<Writer>> open_write(std::string_view key,
                                                                   const WriteOptions& options = {}) = 0;

  // Starts `operations`; each ends with exactly one completion in `queue`. Never blocks on I/O and runs no user code.
  // Operations that have not started when the Storage is destroyed end as cancelled.
  virtual void submit(std::span<const Operation> operations, CompletionQueue& queue) = 0;

  // Errors: not_found.
  [[nodiscard]] virtual Result<ObjectInfo> stat(std::string_view key) = 0;
  // The checksum of the whole content that the backend keeps for this version; nullopt where it keeps or tells none.
  // Errors: not_found, corruption (another version is there).
  [[nodiscard]] virtual Result<std::optional<ContentChecksum>> checksum(const ObjectInfo&) { return std::nullopt; }
  // The tags of an object; none where the backend has none. Errors: not_found, permission_denied.
  [[nodiscard]] virtual Result<ObjectTags> tags(std::string_view /*key*/) { return ObjectTags(); }
  // One page of keys that start with `prefix`; objects and prefixes together are at most max_keys. A prefix with
  // nothing below it is an empty page, not an error; a listing that could not be completed is an error, never a
  // shorter page. Errors: invalid_argument (max_keys < 1, a prefix that no key can have).
  [[nodiscard]] virtual Result<ListPage> list(std::string_view prefix, const ListOptions& options = {}) = 0;
  // Removes the keys; a key that is not there counts as removed. Errors: the first failure, after trying all.
  [[nodiscard]] virtual Status remove(std::span<const std::string> keys) = 0;

  // Removes the empty folders below the folder `key`, then `key`. A missing folder is no error. Errors:
  // invalid_argument (it holds a file, and stays), permission_denied.
  [[nodiscard]] virtual Status remove_empty_folder(std::string_view /*key*/) { return {}; }

  // Makes a folder and those above it that are missing, where the backend has folders. Errors: invalid_argument (a file
  // is in the way), permission_denied.
  [[nodiscard]] virtual Status make_folder(std::string_view /*key*/) { return {}; }
  // Removes the folder `key` if nothing is in it. A missing folder is no error. Errors: invalid_argument (it holds
  // something, and stays), permission_denied.
  [[nodiscard]] virtual Status remove_folder(std::string_view /*key*/) { return {}; }

  // Owner, mode and times of the folder `key`. In S3 they are the metadata of the empty object "KEY/", as FSx for
  // Lustre exports directories. nullopt: there is no such folder, or nothing is known of it.
  [[nodiscard]] virtual Result<std::optional<PosixAttributes>> folder_attributes(std::string_view /*key*/) {
    return std::nullopt;
  }
  // Sets owner, mode and times of a folder, and makes it if it is missing. Leaves a symbolic link in its place alone,
  // and the owner if this user may not set it. Errors: permission_denied (the folder belongs to another user).
  [[nodiscard]] virtual Status set_folder_attributes(std::string_view /*key*/, const PosixAttributes& /*attributes*/) {
    return {};
  }

  // Unfinished writes to keys that start with `prefix`: those of dead processes (knows_dead), or of all processes but
  // this one. `key` is the key that would have been written, `version` identifies the upload, `size` is the space that
  // it takes, as far as the backend knows.
  [[nodiscard]] virtual Result<std::vector<ObjectInfo>> list_uploads(std::string_view prefix) = 0;
  [[nodiscard]] virtual Status abort_uploads(std::span<const ObjectInfo> uploads) = 0;

  // Continues a write that list_uploads found and keeps its bytes. `options` as in open_write. Errors: not_found,
  // unavailable (another process is writing it), unsupported.
  [[nodiscard]] virtual Result<std::unique_ptr<Writer>> resume_write(const ObjectInfo& upload,
                                                                     const WriteOptions& options = {});

  // Makes committed keys and the directories above them survive a power cut, with as few syncs as the backend can.
  [[nodiscard]] virtual Status make_durable(std::span<const std::string> keys) = 0;

  // The space that an ordinary write below `prefix` may still use: the least that the file system and quotas leave.
  // Errors: unsupported.
  [[nodiscard]] virtual Result<FreeSpace> free_space(std::string_view prefix) = 0;
};

// Whether `key` is a legal path: no leading '/', no empty, "." or ".." component, no NUL. Errors: invalid_argument,
// saying what is wrong with `key`.
[[nodiscard]] Status check_key(std::string_view key);
// Whether `key` can name an object of an object store: not empty, no NUL. Errors: invalid_argument.
[[nodiscard]] Status check_object_key(std::string_view key);

// Checks that `needed_bytes` fit below `prefix`. Call it before a large write. Errors: resource_exhausted: the message
// says what `what` needs, what is free, what limits it, and the way out. A storage that does not know its free space
// passes.
[[nodiscard]] Status check_space(Storage& storage, std::string_view prefix, int64_t needed_bytes,
                                 std::string_view what);

// Read and write small objects whole. `write_object` commits with `durability`.
[[nodiscard]] Result<std::string> read_object(Storage& storage, std::string_view key, int64_t limit_bytes = 64 << 20);
[[nodiscard]] Result<ObjectInfo> write_object(Storage& storage, std::string_view key, std::string_view content,
                                              const WriteOptions& options = {},
                                              Durability durability = Durability::kDurable);
// The pages of a listing, in order. For one thread at a time.
class ListPages {
 public:
  // REQUIRES: `storage` outlives it.
  ListPages(Storage& storage, std::string prefix, ListOptions options)
      : storage_(storage), prefix_(std::move(prefix)), options_(std::move(options)) {}
  bool is_at_end() const { return is_at_end_; }
  // Errors: those of list; unavailable when a page repeats the one before, or empty pages do not end. After an error,
  // is_at_end(). REQUIRES: !is_at_end().
  [[nodiscard]] Result<ListPage> next();

 private:
  [[nodiscard]] Status check_advance(const ListPage& page);

  Storage& storage_;
  const std::string prefix_;
  ListOptions options_;
  bool is_at_end_ = false;
  int empty_pages_ = 0;                 // in a row
  std::string last_key_, last_prefix_;  // last key and prefix of the pages so far
};
// Calls `visit` for every object of every page, in order. An error of `visit` ends the walk and is returned.
[[nodiscard]] Status for_each_object(Storage& storage, std::string_view prefix,
                                     const std::function<Status(const ObjectInfo&)>& visit, bool recursive = true);

}  // namespace millrace
