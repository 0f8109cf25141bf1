// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tar archives as WebDataset uses them: a strict reader and a deterministic writer (docs/format/tar.md). Reads ustar,
// GNU long names and PAX (path and size); a sparse member is refused. What other readers pass over in silence is an
// error here that names file, member and offset: a bad header checksum, an archive cut at any place, missing
// end-of-archive blocks, zero blocks in the middle, data behind the end. Free functions are thread-safe; a TarReader
// belongs to one thread.

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
  int64_t end = 0;   // first byte behind the padding
};

// Walks an archive member by member through a window; payloads are not read.
class TarReader {
 public:
  // `archive` must outlive the reader.
  explicit TarReader(const RandomReader& archive);

  // The next member. nullopt after the last one, if the end-of-archive blocks are there and only zeros follow.
  // Errors: corruption, unsupported (sparse, multi-volume), those of read_at.
  [[nodiscard]] Result<std::optional<TarMember>> next();
  // Hard and symbolic links that were passed over so far: they hold no data.
  int64_t links() const { return links_; }

 private:
  [[nodiscard]] Status fill(int64_t offset, int64_t size);
  [[nodiscard]] Status check_end(int64_t begin);

  const RandomReader& archive_;
  std::vector<std::byte> window_;
  int64_t window_begin_ = 0;
  int64_t at_ = 0;
  int64_t links_ = 0;
};

// The hard and symbolic links of a whole archive. Errors: those of TarReader::next.
[[nodiscard]] Result<int64_t> count_links(const RandomReader& archive);

// One member inside memory that holds whole members back to back (a sample's extent): views, no copies.
struct TarView {
  std::string_view name;
  std::span<const std::byte> data;
  bool is_regular = true;  // else a directory, link or device, which readers skip
};
// Reads the member at `at` and moves `at` behind it. `source` and `base_offset` (of bytes[0] in the archive) are for
// messages.
// A long name (PAX, GNU, ustar with a prefix) is kept in `name_storage` and lives until the next call with it.
// Errors: corruption; unsupported (sparse).
[[nodiscard]] Result<TarView> next_tar_view(std::span<const std::byte> bytes, size_t& at, std::string& name_storage,
                                            std::string_view source, int64_t base_offset);

// Key and field of a member name by webdataset's rule: the key ends at the first dot of the last path component, the
// field is the rest, in lower case (ASCII). nullopt for names that webdataset skips ("README", ".hidden",
// "__dir__/x.txt").
struct SampleName {
  std::string_view key;  // lies in the member's name
  std::string field;
};
// A field's name as SampleName has it, for names that people give.
std::string field_name(std::string_view name);
std::optional<SampleName> split_sample_name(std::string_view member_name);

// A sample: a run of adjacent members with one key.
struct SampleExtent {
  std::string key;
  std::vector<std::string> fields;  // in archive order
  std::vector<TarMember> members;
  int64_t begin = 0;  // first header byte of the first member
  int64_t end = 0;    // behind the padding of the last member
};
enum class FieldSets {
  kSame,  // every sample has the fields of the first one
  kAny,   // the reader of a sample knows which fields it needs
};
// Groups the members of an archive. A repeated field in one sample, or, with FieldSets::kSame, a sample whose set of
// fields differs from the first sample's, is corruption that names the sample ("incomplete sample"). Belongs to one
// thread.
class SampleReader {
 public:
  // `archive` must outlive the reader.
  explicit SampleReader(const RandomReader& archive, FieldSets field_sets = FieldSets::kSame);

  // The next sample. nullopt after the last one, if the whole archive is sound. After an error of read_at
  // the call may be repeated without loss. Errors: those of TarReader::next, corruption as above.
  [[nodiscard]] Result<std::optional<SampleExtent>> next();
  // As TarReader::links.
  int64_t links() const { return reader_.links(); }

 private:
  [[nodiscard]] Status add(SampleName name);  // pending_ to sample_

  const RandomReader& archive_;
  const FieldSets field_sets_;
  TarReader reader_;
  std::optional<TarMember> pending_;  // read and not yet in a sample
  SampleExtent sample_;               // being put together
  std::vector<std::string> first_fields_;
  bool ended_ = false;
};

// Appends one regular member: header (mode 0444, uid, gid and mtime 0, owner "" so that bytes are the same on every
// run), data and zero padding. Names over 100 bytes use the ustar prefix when they can, else one PAX header; no other
// PAX headers. Errors: invalid_argument (empty name or NUL in it).
[[nodiscard]] Status append_tar_member(std::string& out, std::string_view name, std::span<const std::byte> data);
// The same for data that is made in place: what is appended to `out` between the two calls. The first gives where that
// begins, the second takes it.
[[nodiscard]] Result<size_t> begin_tar_member(std::string& out, std::string_view name);
void end_tar_member(std::string& out, size_t begin);
// The two zero blocks that end an archive.
void append_tar_end(std::string& out);

}  // namespace millrace::formats
