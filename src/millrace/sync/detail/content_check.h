// SPDX-License-Identifier: Apache-2.0
#pragma once

// Checks the bytes of a copy while they pass, and compares them: with the source's block hashes, the checksum that its
// storage keeps, the old target, and the parts that an earlier process has sent. Belongs to one copy.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "millrace/sync/detail/content_hash.h"
#include "millrace/sync/detail/copy_plan.h"
#include "millrace/sync/detail/part.h"

namespace millrace::sync {

class ContentCheck {
 public:
  // REQUIRES: `job` and `plan` outlive this.
  ContentCheck(const CopyJob& job, const CopyPlan& plan) : job_(job), plan_(plan) {}

  // Begins at the first byte of the object. `whole_blocks`: parts are whole blocks, so that each can be checked alone.
  void restart(bool whole_blocks);
  // The next bytes of the object, which an earlier process has written and this one has read back.
  void take_resumed(std::span<const std::byte> content) {
    if (!plan_.known) hash_->update(content);
  }

  // Hashes the next part. Where the source's block hashes are known, holds it against them: one that differs is read
  // again once, by `read_again`. Errors: corruption, those of reading. REQUIRES: parts come in order; the part has its
  // content.
  [[nodiscard]] Status take(Part& part, const std::function<Status()>& read_again);

  // Decides what to do with a part after take(). `sent_md5s`: of what an earlier process has sent, by
  // offset.
  [[nodiscard]] Result<PartAction> choose(const Part& part, const std::map<int64_t, std::string>& sent_md5s);
  // Whether the old target has in this range what the source has by its block hashes. Reads into the part's buffer.
  bool old_is_known_content(const Part& part) const;

  // The hash of everything so far; none where the source's block hashes are known.
  std::optional<Hash128> digest() const { return plan_.known ? std::nullopt : std::optional(hash_->digest()); }
  // XXH3-128 of the object, and of its blocks where they are kept. REQUIRES: all parts were taken, or are known.
  Hash128 object_hash() const { return plan_.known ? plan_.known->object_hash : hash_->digest(); }
  const std::vector<Hash128>& blocks() const { return plan_.known ? plan_.known->blocks : hash_->blocks(); }

 private:
  struct WrongBlock {
    size_t block = 0;
    Hash128 hash;
  };
  template <class Take>
  [[nodiscard]] Status for_each_piece(const Part& part, Take&& take);
  [[nodiscard]] Status hash(Part& part, ContentHash& hash);
  [[nodiscard]] Status check_ended_blocks();
  [[nodiscard]] Status check_whole() const;
  [[nodiscard]] Result<std::optional<WrongBlock>> find_wrong_block(Part& part);
  [[nodiscard]] Status wrong_block(const WrongBlock& wrong) const;
  bool old_is_same(const Part& part);

  const CopyJob& job_;
  const CopyPlan& plan_;
  bool checks_each_part_ = false;
  std::optional<ContentHash> hash_;
  size_t checked_blocks_ = 0;
  std::vector<std::byte> scratch_;
};

}  // namespace millrace::sync
