// SPDX-License-Identifier: Apache-2.0
#pragma once

// Checks the bytes of a copy while they pass. Compares them with the source's block hashes, the checksum of the
// source's storage, the old target, and the parts that an earlier process has sent. Belongs to one copy.

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

  // Starts again at the first byte of the object. `whole_blocks`: parts are whole blocks, so that each part can be
  // checked by itself.
  void restart(bool whole_blocks);
  // Takes the next bytes of the object, which an earlier process has written and this process has read back.
  void take_resumed(std::span<const std::byte> content) {
    if (!plan_.known) hash_->update(content);
  }

  // Hashes the next part. If the source's block hashes are known, compares the part with them. A part that differs is
  // read again once, by `read_again`. Errors: corruption, those of reading. REQUIRES: parts come in order; the part
  // has its content.
  [[nodiscard]] Status take(Part& part, const std::function<Status()>& read_again);

  // Chooses the action for a part after take(). `sent_md5s`: MD5s of the parts that an earlier process has sent, by
  // offset.
  [[nodiscard]] Result<PartAction> choose(const Part& part, const std::map<int64_t, std::string>& sent_md5s);
  // Whether the old target in the part's range matches the source's block hashes. Reads into the part's buffer.
  bool old_is_known_content(const Part& part) const;

  // The hash of all bytes so far; none if the source's block hashes are known.
  std::optional<Hash128> digest() const { return plan_.known ? std::nullopt : std::optional(hash_->digest()); }
  // XXH3-128 of the object, and of its blocks if they are kept. REQUIRES: all parts were taken, or are known.
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
