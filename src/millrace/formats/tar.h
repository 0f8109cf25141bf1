// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tar archives as WebDataset uses them: a strict reader and a deterministic writer (docs/format/tar.md). Reads ustar,
// GNU long names and PAX (path and size); refuses a sparse member. Defects that other readers ignore are errors here,
// naming file, member and offset: a bad header checksum, an archive cut at any place, missing end-of-archive blocks,
// zero blocks in the middle, data after the end. Free functions are thread-safe; a TarReader belongs to one thread.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"

namespace millrace::formats {

inline constexpr int64_t kTarBlock = 512;

// One regular member. Readers skip directories, links and devices, as webdataset does.
struct TarMember {
  std::string name;
  int64_t begin = 0;  // first byte of its first header (PAX and long-name headers belong to the member)
  int64_t data_offset = 0;
  int64_t size = 0;  // of the data
  int64_t end = 0;   // first byte after the padding
};

// Members that belong to no sample although a user may expect them to. webdataset passes over them without a word.
struct TarSkipped {
  int64_t links = 0;          // hard and symbolic links; they hold no data
  int64_t unnamed = 0;        // files without a dot in the last part of their name, so without a key and a field
  std::string first_unnamed;  // the first of them
};

// Walks an archive member by member through a window. Does not read payloads.
class TarReader {
 public:
  // `archive` must outlive the reader.
  explicit TarReader(const RandomReader& archive);

  // Returns the next member; nullopt after the last one, if the end-of-archive blocks are there and only zeros follow.
  // Errors: corruption, unsupported (sparse, multi-volume), those of read_at.
  [[nodiscard]] Result<std::optional<TarMember>> next();
  // Returns what the members so far have that belongs to no sample.
  const TarSkipped& skipped() const { return skipped_; }

 private:
  [[nodiscard]] Status fill(int64_t offset, int64_t size);
  [[nodiscard]] Status check_end(int64_t begin);

  const RandomReader& archive_;
  std::vector<std::byte> window_;
  int64_t window_begin_ = 0;
  int64_t at_ = 0;
  TarSkipped skipped_;
};

// Returns what a whole archive has that belongs to no sample. Errors: those of TarReader::next.
[[nodiscard]] Result<TarSkipped> count_skipped(const RandomReader& archive);

// One member in memory that holds consecutive whole members (a sample's extent). Its members are views into that
// memory.
struct TarView {
  std::string_view name;
  std::span<const std::byte> data;
  bool is_regular = true;  // false: a directory, link or device, which readers skip
};
// Reads the member at `at` and moves `at` to its end. `source` and `base_offset` (of bytes[0] in the archive) are for
// messages. A long name (PAX, GNU, ustar with a prefix) is stored in `name_storage` and valid until the next call with
// it.
// Errors: corruption; unsupported (sparse).
[[nodiscard]] Result<TarView> next_tar_view(std::span<const std::byte> bytes, size_t& at, std::string& name_storage,
                                            std::string_view source, int64_t base_offset);

// The key and field of a member's name by webdataset's rule. The key ends at the first dot of the last path component;
// the field is the rest, in lower case (ASCII). split_sample_name() returns nullopt for names that webdataset skips
// ("README", ".hidden", "__dir__/x.txt").
struct SampleName {
  std::string_view key;  // points into the member's name
  std::string field;
};
// Converts a field's name that a user gave to the form of SampleName::field.
std::string field_name(std::string_view name);
std::optional<SampleName> split_sample_name(std::string_view member_name);

// A sample: a run of adjacent members with one key.
struct SampleExtent {
  std::string key;
  std::vector<std::string> fields;  // in archive order
  std::vector<TarMember> members;
  int64_t begin = 0;  // first header byte of the first member
  int64_t end = 0;    // first byte after the padding of the last member
};
enum class FieldSets {
  kSame,  // every sample has the fields of the first one
  kAny,   // samples may have different fields
};
// Groups the members of an archive into samples. A field that occurs twice in a sample is corruption, naming the
// sample. With FieldSets::kSame, so is a sample whose set of fields differs from that of the first ("incomplete
// sample"). Belongs to one thread.
class SampleReader {
 public:
  // `archive` must outlive the reader.
  explicit SampleReader(const RandomReader& archive, FieldSets field_sets = FieldSets::kSame);

  // Returns the next sample; nullopt after the last one, if the whole archive is sound. After an error of read_at the
  // call may be repeated without loss. Errors: those of TarReader::next, corruption as above.
  [[nodiscard]] Result<std::optional<SampleExtent>> next();
  // Returns TarReader::skipped().
  const TarSkipped& skipped() const { return reader_.skipped(); }

 private:
  [[nodiscard]] Status add(SampleName name);  // moves pending_ into sample_

  const RandomReader& archive_;
  const FieldSets field_sets_;
  TarReader reader_;
  std::optional<TarMember> pending_;  // was read, and is not yet in a sample
  SampleExtent sample_;               // the sample that is being put together
  std::vector<std::string> first_fields_;
  bool ended_ = false;
};

// Appends one regular member: header (mode 0444, uid, gid and mtime 0, owner "" so that bytes are the same on every
// run), data and zero padding. Names over 100 bytes use the ustar prefix when they can, else one PAX header; no other
// PAX headers. Errors: invalid_argument (empty name or NUL in it).
[[nodiscard]] Status append_tar_member(std::string& out, std::string_view name, std::span<const std::byte> data);
// Do the same for data that the caller appends to `out` between the two calls. The first call returns the offset
// `begin` that the second call takes.
[[nodiscard]] Result<size_t> begin_tar_member(std::string& out, std::string_view name);
void end_tar_member(std::string& out, size_t begin);
// Appends the two zero blocks that end an archive.
void append_tar_end(std::string& out);

}  // namespace millrace::formats
