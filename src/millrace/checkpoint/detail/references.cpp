// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/detail/references.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "millrace/checkpoint/detail/keys.h"

namespace millrace::checkpoint {

namespace {

// The place of a file in `before`: 0 is its own, then its sources in their order.
size_t file_of(const PartTensor& tensor) {
  return tensor.source ? *tensor.source + 1 : 0;
}

PartSource source_of(const PartRecord& part, size_t file) {
  if (file > 0) return part.sources[file - 1];
  return {.step = part.step,
          .attempt = part.attempt,
          .file_bytes = part.file_bytes,
          .data_offset = part.data_offset,
          .header_hash = part.header_hash};
}

bool is_same(const PartTensor& a, const PartTensor& b) {
  return a.bytes > 0 && a.dtype == b.dtype && a.shape == b.shape && a.box == b.box && a.hashes == b.hashes;
}

// Whether every tier of `needed` is one of `tiers`.
bool includes(const BaseParts::Tiers& tiers, const BaseParts::Tiers& needed) {
  for (size_t i = 0; i < needed.size(); ++i) {
    if (needed[i] && !tiers[i]) return false;
  }
  return true;
}

BaseParts::Tiers tiers_of(const Save& save) {
  BaseParts::Tiers tiers;
  for (size_t tier = 0; tier < save.tiers(); ++tier) tiers.push_back(save.goes_to(tier));
  return tiers;
}

bool is_durable(const Save& save, std::optional<size_t> but_for = std::nullopt) {
  for (size_t tier = 0; tier < save.tiers(); ++tier) {
    if (save.goes_to(tier) && tier != but_for && save.state(tier) != TierState::kDurable) return false;
  }
  return true;
}

// The files that are worth it, the one with the most bytes first.
std::vector<size_t> worthy_files(const PartRecord& before, const std::map<size_t, int64_t>& bytes_of) {
  std::vector<std::pair<int64_t, size_t>> worthy;
  for (const auto& [file, bytes] : bytes_of) {
    if (bytes >= source_of(before, file).file_bytes / kLeastShareOfFile) worthy.emplace_back(-bytes, file);
  }
  std::ranges::sort(worthy);
  worthy.resize(std::min(worthy.size(), kMostSources));
  std::vector<size_t> files;
  for (const auto& [bytes, file] : worthy) files.push_back(file);
  return files;
}

}  // namespace

Referred find_unchanged(const PartRecord& now, const PartRecord& before) {
  if (!before.shares || before.step >= now.step || before.chunk_bytes != now.chunk_bytes || before.rank != now.rank ||
      before.world_size != now.world_size)
    return {};
  std::vector<std::pair<const PartTensor*, const PartTensor*>> same;
  std::map<size_t, int64_t> bytes_of;
  for (const PartTensor& tensor : now.tensors) {
    const PartTensor* const known = before.find(tensor.name);
    if (known == nullptr || !is_same(tensor, *known)) continue;
    same.emplace_back(&tensor, known);
    bytes_of[file_of(*known)] += tensor.bytes;
  }
  const std::vector<size_t> files = worthy_files(before, bytes_of);
  Referred referred;
  for (const size_t file : files) referred.sources.push_back(source_of(before, file));
  for (const auto& [tensor, known] : same) {
    const auto at = std::ranges::find(files, file_of(*known));
    if (at == files.end()) continue;
    referred.tensors.push_back(*tensor);
    referred.tensors.back().begin = known->begin;
    referred.tensors.back().source = static_cast<size_t>(at - files.begin());
  }
  return referred;
}

void add_referred(PartRecord& part, const Referred& referred) {
  part.sources = referred.sources;
  part.tensors.insert(part.tensors.end(), referred.tensors.begin(), referred.tensors.end());
  std::ranges::sort(part.tensors, {}, &PartTensor::name);
}

Status check_sources(const Location& root, const PartRecord& part) {
  for (const PartSource& source : part.sources) {
    const Location file = step_location(root, source.step).child(source.attempt).child(part.places().file(part.rank));
    const auto there = file.storage->stat(file.key);
    if (there && there->size == source.file_bytes) continue;
    if (!there && there.error().code() != ErrorCode::kNotFound) return tl::unexpected<Error>(there.error());
    return fail(ErrorCode::kNotFound, "step {} refers to {}, which {}; the next save writes all", part.step, file.url,
                there ? "has another size now" : "is not there any more");
  }
  return {};
}

Result<std::shared_ptr<const PartRecord>> find_part(std::span<const Location> roots, const Ancestor& commit,
                                                    int64_t rank, int64_t world_size) {
  std::shared_ptr<const PartRecord> part;
  for (const Location& root : roots) {
    ASSIGN_OR_RETURN(const StoredManifest stored, read_manifest(root, commit.step));
    const Manifest& manifest = stored.manifest;
    if (manifest.attempt != commit.attempt || !manifest.shares || manifest.world_size() != world_size) return nullptr;
    const Location folder = step_location(root, commit.step).child(commit.attempt);
    const Location at = folder.child(manifest.places().record(rank));
    ASSIGN_OR_RETURN(const std::string text, read_object(*at.storage, at.key, kMaxRecordBytes));
    const ManifestPart& expected = manifest.parts[static_cast<size_t>(rank)];
    if (std::ssize(text) != expected.bytes || xxh3_128(text) != expected.hash) return nullptr;
    if (!part) {
      ASSIGN_OR_RETURN(PartRecord parsed, parse_part(text, at.url));
      part = std::make_shared<const PartRecord>(std::move(parsed));
    }
    const Location file = folder.child(manifest.places().file(rank));
    ASSIGN_OR_RETURN(const ObjectInfo there, file.storage->stat(file.key));
    if (there.size != part->file_bytes || part->rank != rank) return nullptr;
    RETURN_IF_ERROR(check_sources(root, *part));
  }
  return part;
}

std::vector<Ancestor> bases_of(std::span<const PartSource> sources) {
  std::vector<Ancestor> bases;
  for (const PartSource& source : sources) bases.push_back({source.attempt, source.step});
  std::ranges::sort(bases, [](const Ancestor& a, const Ancestor& b) {
    return std::pair(a.step, std::string_view(a.attempt)) < std::pair(b.step, std::string_view(b.attempt));
  });
  const auto twice = std::ranges::unique(bases);
  bases.erase(twice.begin(), twice.end());
  return bases;
}

void BaseParts::add(std::shared_ptr<Save> save, std::shared_ptr<const PartRecord> part) {
  MutexLock lock(mutex_);
  const bool is_known =
      std::ranges::any_of(under_way_, [&](const UnderWay& each) { return each.save->step() == save->step(); });
  chosen_.erase(save->step());
  if (!is_known) under_way_.push_back({std::move(save), std::move(part)});
}

void BaseParts::adopt(Tiers tiers, std::shared_ptr<const PartRecord> part) {
  MutexLock lock(mutex_);
  take({std::move(tiers), std::move(part)});
}

void BaseParts::forget(int64_t step) {
  MutexLock lock(mutex_);
  bases_.clear();
  chosen_.erase(step);
}

void BaseParts::close() {
  MutexLock lock(mutex_);
  bases_.clear();
  chosen_.clear();
  under_way_.clear();
}

void BaseParts::take(Base base) {
  const auto replaces = [](const Base& a, const Base& b) {
    return a.part->step > b.part->step && includes(a.tiers, b.tiers);
  };
  if (std::ranges::any_of(bases_, [&](const Base& each) { return replaces(each, base); })) return;
  std::erase_if(bases_, [&](const Base& each) { return replaces(base, each); });
  bases_.push_back(std::move(base));
}

void BaseParts::settle() {
  std::deque<UnderWay> left;
  for (UnderWay& each : under_way_) {
    if (!each.save->done()) {
      left.push_back(std::move(each));
    } else if (is_durable(*each.save)) {
      take({tiers_of(*each.save), std::move(each.part)});
    } else {
      bases_.clear();  // what a tier has is not known for certain any more
    }
  }
  under_way_ = std::move(left);
}

std::shared_ptr<const PartRecord> BaseParts::find(const Tiers& needed) {
  MutexLock lock(mutex_);
  settle();
  return newest(needed);
}

std::shared_ptr<const PartRecord> BaseParts::choose(int64_t step, const Tiers& needed) {
  MutexLock lock(mutex_);
  settle();
  auto chosen = newest(needed);
  if (chosen) chosen_[step] = chosen;
  return chosen;
}

std::shared_ptr<const PartRecord> BaseParts::newest(const Tiers& needed) {
  std::shared_ptr<const PartRecord> found;
  for (const Base& base : bases_) {
    if (includes(base.tiers, needed) && (!found || base.part->step > found->step)) found = base.part;
  }
  return found;
}

std::vector<int64_t> BaseParts::needed_in(size_t tier, const Save& ended) {
  MutexLock lock(mutex_);
  settle();
  const bool ends_everywhere = is_durable(ended, tier);
  const Tiers of_ended = tiers_of(ended);
  std::vector<int64_t> steps;
  const auto need_sources = [&](const PartRecord& part) {
    for (const PartSource& source : part.sources) steps.push_back(source.step);
  };
  for (const Base& base : bases_) {
    if (!base.tiers[tier] || (ends_everywhere && includes(of_ended, base.tiers))) continue;
    steps.push_back(base.part->step);
    need_sources(*base.part);
  }
  for (const auto& [step, part] : chosen_) {
    steps.push_back(part->step);
    need_sources(*part);
  }
  for (const UnderWay& each : under_way_) need_sources(*each.part);
  return steps;
}

}  // namespace millrace::checkpoint
