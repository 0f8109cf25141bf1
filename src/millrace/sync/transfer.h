// SPDX-License-Identifier: Apache-2.0
#pragma once

// The copy of one object from any Storage to any Storage: in parts, many at once, under one memory cap; resumed where
// an earlier process was killed; only the changed blocks where both sides can be compared; hashed while the bytes
// pass. sync.h decides what to copy; this is how. docs/design/copy.md.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/base/progress.h"
#include "millrace/base/status.h"
#include "millrace/storage/url.h"

namespace millrace::sync {

// Objects larger than this have their hash in blocks of it, so that a change moves only the blocks that changed. A part
// of an upload can be a block (S3 asks for 5 MiB), and a request for one uses a connection well.
inline constexpr int64_t kBlockBytes = 8 << 20;

// Properties that an object in an object store gets instead of the source's.
struct ObjectChanges {
  ObjectHeaders headers;                                       // the non-empty ones replace the source's
  std::optional<std::map<std::string, std::string>> metadata;  // instead of the source's
  std::optional<ObjectTags> tags;                              // instead of the source's, which are not read then
  bool guess_type = true;  // set the type of an uploaded file by its name (storage/object_headers.h)

  // Whether headers, metadata and tags stay those of the source.
  bool are_none() const { return headers == ObjectHeaders() && !metadata && !tags; }
};

struct TransferOptions {
  bool dry_run = false;  // read and compare as far as the copy would, and write nothing: the report says what would be
  bool delta = true;     // compare by block hashes and move what differs
  bool resume = true;    // resume what a killed process left, where it proves to be right
  bool sidecar = true;   // keep block hashes beside objects that are larger than a block, where the target keeps none
  bool posix = false;    // owner, mode and times go along; in a sync those of folders too
  // Between object stores an object keeps its headers, metadata and tags but for these. See check_changes().
  ObjectChanges object;
  Durability durability = Durability::kDurable;
  // The target's entry in a listing. It saves a request, and lets a small object be compared too.
  std::optional<ObjectInfo> target;
  // The version that the copy may replace; "": none may be there. Another one fails with already_exists
  // (WriteOptions::condition says how far that is atomic). Default: whatever is there.
  std::optional<std::string> replaces;
};

// Errors: invalid_argument (changes are asked for, and the target's storage keeps no such thing).
[[nodiscard]] Status check_changes(const Location& target, const ObjectChanges& changes);

struct TransferReport {
  ObjectInfo object;  // the object at the target
  // XXH3-128 of the content, from the bytes that passed or were read for comparison; a copy inside a server has one
  // only where the source's block hashes are known.
  std::optional<Hash128> hash;
  int64_t moved_bytes = 0;    // went through this process to the target
  int64_t copied_bytes = 0;   // the target's server copied by itself
  int64_t resumed_bytes = 0;  // an earlier process had moved them
  bool unchanged = false;     // the target had this content already, and nothing was written
};

// A copy to be started.
struct CopyRequest {
  Location from;
  ObjectInfo source;  // from a listing or stat of `from`
  Location to;
  TransferOptions options;
  std::stop_token stop;
  Progress* progress = nullptr;
  // Called once before the copy, on a thread of the engine, where it may block: whether the copy is needed at all.
  // False ends the request, without a call of `done`. Default: it is.
  std::function<bool()> is_wanted;
  // Called once, on a thread of the engine; it must be brief, and must not wait.
  std::function<void(Result<TransferReport>)> done;
};
// For messages: "copy URL to URL".
std::string describe(const CopyRequest& request);

// Five blocks: twenty GETs of 2 MiB, which keep a server busy that gives each connection 80 MiB/s.
inline constexpr int64_t kTransferMemoryBytes = 40 << 20;
inline constexpr int64_t kLeastTransferMemoryBytes = 2 * kBlockBytes;

struct EngineOptions {
  // Memory for parts in flight, whatever the objects' sizes; at least kLeastTransferMemoryBytes. Larger values allow
  // more S3 connections.
  int64_t memory_bytes = kTransferMemoryBytes;
  // Copies that have begun and not ended, and threads. Of objects up to 256 KiB 128 more.
  int objects_at_once = 32;
};

// The resources that transfers share: memory, threads, one queue of copies (detail/copy_scheduler.h). Thread-safe;
// blocks in copy().
class TransferEngine {
 public:
  // Errors: invalid_argument, resource_exhausted (the process has not that much memory to give).
  [[nodiscard]] static Result<std::unique_ptr<TransferEngine>> create(const EngineOptions& options = {});
  ~TransferEngine();

  // `source` is what a listing or stat of `from` said; the copy is of that version. The target is the old object or
  // the new one, never a mixture; after an error or a stop it is the old one, and what was moved of a large object
  // waits for the next copy. Errors: those of reading and writing, each naming both URLs; corruption (the source
  // changed, or a part came out with another hash), cancelled. `progress` counts bytes, not items.
  [[nodiscard]] Result<TransferReport> copy(const Location& from, const ObjectInfo& source, const Location& to,
                                            const TransferOptions& options = {}, std::stop_token stop = {},
                                            Progress* progress = nullptr);

  // As copy(), without waiting. All have ended before the engine does.
  void start(CopyRequest request);

  // Memory of the parts in flight; never more than EngineOptions::memory_bytes.
  int64_t memory_in_use_bytes() const;

 private:
  struct Impl;
  explicit TransferEngine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::sync
