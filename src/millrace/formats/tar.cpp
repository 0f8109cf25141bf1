// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/tar.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "millrace/base/text/strings.h"
#include "millrace/formats/detail/tar_block.h"

namespace millrace::formats {

namespace {

constexpr int64_t kWindowMin = 64 << 10;  // after a jump over a large payload: the next headers
constexpr int64_t kWindowMax = 1 << 20;   // doubled up to here while members lie close together
constexpr int64_t kLargeGap = 256 << 10;  // a jump this far past the window is not worth reading through

// webdataset's own notes are in such folders and files, and no sample is meant.
bool is_note(std::string_view name) {
  const std::string_view first = name.substr(0, name.find('/'));
  return first.size() >= 4 && first.starts_with("__") && first.ends_with("__");
}

}  // namespace

TarReader::TarReader(const RandomReader& archive) : archive_(archive) {}

Status TarReader::fill(int64_t offset, int64_t size) {
  const int64_t window_end = window_begin_ + static_cast<int64_t>(window_.size());
  if (offset >= window_begin_ && offset + size <= window_end) return {};
  const int64_t doubled = std::clamp(2 * (window_end - window_begin_), kWindowMin, kWindowMax);
  const int64_t want = std::max(size, offset - window_end > kLargeGap ? kWindowMin : doubled);
  window_.resize(static_cast<size_t>(std::min(want, archive_.size() - offset)));
  window_begin_ = offset;
  if (auto read = archive_.read_at(offset, window_); !read) {
    window_.clear();
    return read;
  }
  return {};
}

Result<std::optional<TarMember>> TarReader::next() {
  const auto view = [this](int64_t offset, int64_t size) -> Result<const char*> {
    RETURN_IF_ERROR(fill(offset, size));
    return as_text(window_).data() + (offset - window_begin_);
  };
  for (;;) {
    if (at_ == archive_.size()) {
      return fail(ErrorCode::kCorruption, "{}: it ends at offset {} without end-of-archive blocks: it was cut",
                  archive_.name(), at_);
    }
    std::string name;
    ASSIGN_OR_RETURN(const tar::Found found, tar::find_header(view, at_, archive_.size(), archive_.name(), 0, name));
    if (found.kind == tar::BlockKind::kZero) {
      RETURN_IF_ERROR(check_end(found.begin));
      return std::nullopt;
    }
    at_ = found.end;
    if (found.kind == tar::BlockKind::kOther) {
      skipped_.links += found.type == '1' || found.type == '2' ? 1 : 0;
      continue;
    }
    if (found.name.data() != name.data()) name = found.name;
    if (name.find('.', name.rfind('/') + 1) == std::string::npos && !is_note(name)) {  // npos + 1 is 0
      if (skipped_.unnamed++ == 0) skipped_.first_unnamed = name;
    }
    return TarMember{std::move(name), found.begin, found.data, found.size, found.end};
  }
}

Result<TarSkipped> count_skipped(const RandomReader& archive) {
  TarReader reader(archive);
  for (;;) {
    ASSIGN_OR_RETURN(const auto member, reader.next());
    if (!member) return reader.skipped();
  }
}

Status TarReader::check_end(int64_t begin) {
  for (int64_t at = begin; at < archive_.size();) {
    RETURN_IF_ERROR(fill(at, std::min(kTarBlock, archive_.size() - at)));
    const std::string_view bytes = as_text(window_).substr(static_cast<size_t>(at - window_begin_));
    const size_t data = bytes.find_first_not_of('\0');
    if (data == std::string_view::npos) {
      at += static_cast<int64_t>(bytes.size());
      continue;
    }
    const int64_t found = at + static_cast<int64_t>(data);
    return fail(ErrorCode::kCorruption, "{}: zeros at offset {}, and data behind them at {}: {}", archive_.name(),
                begin, found, found - begin < 2 * kTarBlock ? "a hole?" : "a hole, or joined archives?");
  }
  if (archive_.size() - begin < 2 * kTarBlock) {
    return fail(ErrorCode::kCorruption,
                "{}: the end-of-archive blocks at offset {} have {} bytes instead of {}: it was cut", archive_.name(),
                begin, archive_.size() - begin, 2 * kTarBlock);
  }
  return {};
}

Result<TarView> next_tar_view(std::span<const std::byte> bytes, size_t& at, std::string& name_storage,
                              std::string_view source, int64_t base_offset) {
  const char* const text = as_text(bytes).data();
  const auto view = [text](int64_t offset, int64_t) -> Result<const char*> { return text + offset; };
  ASSIGN_OR_RETURN(const tar::Found found,
                   tar::find_header(view, static_cast<int64_t>(at), static_cast<int64_t>(bytes.size()), source,
                                    base_offset, name_storage));
  if (found.kind == tar::BlockKind::kZero) {
    return fail(ErrorCode::kCorruption, "{}: zeros at offset {}, where a member must be", source,
                base_offset + found.begin);
  }
  at = static_cast<size_t>(found.end);
  return TarView{found.name, bytes.subspan(static_cast<size_t>(found.data), static_cast<size_t>(found.size)),
                 found.kind != tar::BlockKind::kOther};
}

std::string field_name(std::string_view name) {
  return lower_case(name);
}

std::optional<SampleName> split_sample_name(std::string_view member_name) {
  if (is_note(member_name)) return std::nullopt;
  const size_t slash = member_name.rfind('/');
  const size_t base = slash == std::string_view::npos ? 0 : slash + 1;
  const size_t dot = member_name.find('.', base);
  if (dot == std::string_view::npos) return std::nullopt;
  if (dot == base) {
    // webdataset's pattern then lets the key end in the slash, if the component before it has no dot.
    if (base == 0) return std::nullopt;
    const size_t parent = slash == 0 ? std::string_view::npos : member_name.rfind('/', slash - 1);
    const size_t parent_begin = parent == std::string_view::npos ? 0 : parent + 1;
    if (member_name.substr(parent_begin, slash - parent_begin).find('.') != std::string_view::npos) return std::nullopt;
  }
  return SampleName{member_name.substr(0, dot), field_name(member_name.substr(dot + 1))};
}

SampleReader::SampleReader(const RandomReader& archive, FieldSets field_sets)
    : archive_(archive), field_sets_(field_sets), reader_(archive) {}

Result<std::optional<SampleExtent>> SampleReader::next() {
  for (;;) {
    if (!pending_ && !ended_) {
      ASSIGN_OR_RETURN(pending_, reader_.next());
      ended_ = !pending_;
    }
    if (!pending_) break;
    auto name = split_sample_name(pending_->name);
    if (name) {
      if (!sample_.members.empty() && name->key != sample_.key) break;
      RETURN_IF_ERROR(add(std::move(*name)));
    }
    pending_.reset();
  }
  if (sample_.members.empty()) return std::nullopt;
  if (first_fields_.empty()) first_fields_ = sample_.fields;
  if (field_sets_ == FieldSets::kSame &&
      !std::is_permutation(sample_.fields.begin(), sample_.fields.end(), first_fields_.begin(), first_fields_.end())) {
    return fail(ErrorCode::kCorruption,
                "{}: incomplete sample {} at offset {}: it has the fields {}, the first sample {}", archive_.name(),
                tar::quoted_member(sample_.key), sample_.begin, fmt::join(sample_.fields, " "),
                fmt::join(first_fields_, " "));
  }
  return std::exchange(sample_, {});
}

Status SampleReader::add(SampleName name) {
  if (std::find(sample_.fields.begin(), sample_.fields.end(), name.field) != sample_.fields.end()) {
    return fail(ErrorCode::kCorruption, "{}: member {} at offset {} repeats a field of its sample", archive_.name(),
                tar::quoted_member(pending_->name), pending_->begin);
  }
  if (sample_.members.empty()) {
    sample_.key = name.key;
    sample_.begin = pending_->begin;
  }
  sample_.end = pending_->end;
  sample_.fields.push_back(std::move(name.field));
  sample_.members.push_back(std::move(*pending_));
  return {};
}

}  // namespace millrace::formats
