// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "millrace/base/thread/executor.h"
#include "millrace/episodes/convert_run.h"
#include "millrace/episodes/episodes.h"
#include "millrace/formats/episode_pack.h"
#include "millrace/storage/url.h"

namespace millrace::episodes {
namespace {

// Large datasets are packed in parts, which lie in a folder beside the output until all are there. A part is itself a
// packed file, named after what it was made from, so that the next run takes it as it is.
constexpr const char* kPartsEnding = ".parts";
// A part is read back into memory.
constexpr int64_t kMostPartBytes = int64_t{64} << 30;

std::string output_of(const ConvertRun& run) {
  if (!run.options().output.empty()) return run.options().output;
  const SourceFiles& sources = run.sources();
  return sources.root + "/" + (sources.single ? sources.files.front().name + kPackEnding : std::string(kPackName));
}

class PackedConversion {
 public:
  PackedConversion(ConvertRun& run, CsvSchema schema, Location target)
      : run_(run),
        schema_(std::move(schema)),
        columns_(schema_.columns(run.options().is_float64)),
        target_(std::move(target)),
        parts_(target_) {
    parts_.key += kPartsEnding;
    parts_.url += kPartsEnding;
  }

  Status convert() {
    std::vector<size_t> all(run_.sources().files.size());
    std::iota(all.begin(), all.end(), size_t{0});
    const Hash128 identity = run_.identity(all, schema_);
    ASSIGN_OR_RETURN(const bool kept, is_kept(identity));
    if (kept) {
      for (const size_t i : all) run_.count_kept(i, schema_);
      return {};
    }
    const auto parts = split(all);
    if (run_.options().dry_run) return check_only(parts);
    if (parts.size() == 1) return write_whole(parts.front(), identity);
    for (const auto& files : parts) RETURN_IF_ERROR(make_part(files));
    return join(parts, identity);
  }

 private:
  using Files = std::vector<size_t>;
  using ReadEpisodes = std::vector<std::optional<CsvEpisode>>;  // nullopt: the file failed

  // Whether the output is there, made from the same files. Errors: already_exists (it is something else).
  Result<bool> is_kept(Hash128 identity) const {
    const auto file = target_.storage->open_read(target_.key);
    if (!file && file.error().code() == ErrorCode::kNotFound) return false;
    if (!file) return tl::unexpected(file.error());
    const auto found = formats::episode_pack_identity(**file);
    if (found) return *found == identity;
    if (found.error().code() != ErrorCode::kCorruption) return tl::unexpected(found.error());
    return fail(ErrorCode::kAlreadyExists,
                "{} is there already and holds no packed episodes: remove it, or choose another file (--out)",
                target_.url);
  }

  // Runs of files with about part_bytes of CSV each.
  std::vector<Files> split(const Files& all) const {
    std::vector<Files> parts;
    int64_t bytes = run_.options().part_bytes;  // of the last part; the first file begins one
    for (const size_t i : all) {
      if (bytes >= run_.options().part_bytes) {
        parts.emplace_back();
        bytes = 0;
      }
      parts.back().push_back(i);
      bytes += run_.file(i).size;
    }
    return parts;
  }

  Result<ReadEpisodes> read(const Files& files) {
    ReadEpisodes episodes(files.size());
    RETURN_IF_ERROR(
        parallel_try(static_cast<int64_t>(files.size()), run_.threads(), "mr-episodes", [&](int64_t at) -> Status {
          ASSIGN_OR_RETURN(episodes[static_cast<size_t>(at)], run_.read(files[static_cast<size_t>(at)], schema_));
          return {};
        }));
    fail_others();
    return episodes;
  }
  // One file has one kind of rows.
  void fail_others() {
    for (const auto& [names, files] : run_.take_others()) {
      for (const size_t i : files) run_.fail_file(i, other_columns(i, names));
    }
  }
  Error other_columns(size_t i, const std::vector<std::string>& names) const {
    const auto not_in = [](const std::vector<std::string>& these, const std::vector<std::string>& those) {
      std::vector<std::string> missing;
      std::ranges::copy_if(these, std::back_inserter(missing),
                           [&](const auto& name) { return std::ranges::find(those, name) == those.end(); });
      return missing;
    };
    const auto lacks = not_in(schema_.names, names), more = not_in(names, schema_.names);
    std::string how;
    if (!lacks.empty()) how += fmt::format(": it lacks {}", fmt::join(lacks, ", "));
    if (!more.empty())
      how += fmt::format("{} {}", lacks.empty() ? ": it has also" : " and has also", fmt::join(more, ", "));
    if (how.empty()) how = ": they have another order";
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}: its columns are not those of the other files{}; one packed file has one kind of "
                             "columns: name the files by a pattern, or use --to npz",
                             run_.file(i).url, how));
  }

  Status add(const Files& files, const ReadEpisodes& episodes, formats::EpisodePackWriter& pack) const {
    for (size_t i = 0; i < files.size(); ++i) {
      if (!episodes[i]) continue;
      const CsvEpisode& episode = *episodes[i];
      RETURN_IF_ERROR(pack.add(run_.file(files[i]).name, episode.rows, episode.numbers, episode.texts));
    }
    return {};
  }
  Status check_only(const std::vector<Files>& parts) {
    DroppingSink nowhere;
    formats::EpisodePackWriter pack(nowhere, columns_, {});
    for (const Files& files : parts) {
      ASSIGN_OR_RETURN(const auto episodes, read(files));
      RETURN_IF_ERROR(add(files, episodes, pack));
    }
    RETURN_IF_ERROR(pack.finish());
    run_.count_output(pack.bytes());
    return {};
  }
  // A file that lacks episodes is never taken for the whole.
  Hash128 identity_or_none(Hash128 identity) const { return run_.has_any_failed() ? Hash128() : identity; }
  Status write_whole(const Files& files, Hash128 identity) {
    ASSIGN_OR_RETURN(const auto episodes, read(files));
    if (run_.have_all_failed()) return {};
    ASSIGN_OR_RETURN(const auto out, target_.storage->open_write(target_.key));
    formats::EpisodePackWriter pack(*out, columns_, identity_or_none(identity));
    RETURN_IF_ERROR(add(files, episodes, pack));
    return commit(pack, *out);
  }
  Status commit(formats::EpisodePackWriter& pack, Writer& out) {
    RETURN_IF_ERROR(pack.finish());
    const auto written = out.commit();
    if (!written) return tl::unexpected(written.error());
    run_.count_output(pack.bytes());
    return {};
  }

  Location place_of(const Files& files) const {
    return parts_.child(to_hex(run_.identity(files, schema_)) + kPackEnding);
  }

  // A part in memory; null when it is not there as a whole.
  struct Part {
    std::string file;
    std::unique_ptr<formats::EpisodePack> pack;
  };
  std::unique_ptr<Part> open_part(const Files& files) const {
    const Location place = place_of(files);
    auto file = read_object(*place.storage, place.key, kMostPartBytes);
    if (!file) return nullptr;
    auto part = std::make_unique<Part>(Part{*std::move(file), nullptr});
    auto pack = formats::EpisodePack::parse(as_bytes(part->file), place.url);
    if (!pack || !(*pack)->check_rows(0, (*pack)->rows()) || (*pack)->columns() != columns_) return nullptr;
    part->pack = *std::move(pack);
    return part;
  }
  Status make_part(const Files& files) {
    if (run_.options().stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    if (const auto part = open_part(files)) return count_part(*part, files);
    ASSIGN_OR_RETURN(const auto episodes, read(files));
    const Location place = place_of(files);
    ASSIGN_OR_RETURN(const auto out, place.storage->open_write(place.key));
    formats::EpisodePackWriter pack(*out, columns_, {});
    RETURN_IF_ERROR(add(files, episodes, pack));
    RETURN_IF_ERROR(pack.finish());
    const auto written = out->commit(Durability::kVisible);
    return written ? Status() : tl::unexpected(written.error());
  }
  // Files that the part lacks have failed in the earlier run: they are read again, to say why.
  Status count_part(const Part& part, const Files& files) {
    const auto& names = part.pack->names();
    for (const size_t i : files) {
      if (std::ranges::find(names, run_.file(i).name) != names.end()) {
        run_.count_kept(i, schema_);
      } else {
        ASSIGN_OR_RETURN(const auto episode, run_.read(i, schema_));
        if (episode)
          return fail(ErrorCode::kCorruption, "{}: it changed while it was packed: run it again", run_.file(i).url);
        fail_others();
      }
    }
    return {};
  }

  Status join(const std::vector<Files>& parts, Hash128 identity) {
    if (run_.have_all_failed()) return remove_parts();
    ASSIGN_OR_RETURN(const auto out, target_.storage->open_write(target_.key));
    formats::EpisodePackWriter pack(*out, columns_, identity_or_none(identity));
    for (const Files& files : parts) {
      if (run_.options().stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
      const auto part = open_part(files);
      if (part == nullptr) return fail(ErrorCode::kCorruption, "{}: it cannot be read back", place_of(files).url);
      RETURN_IF_ERROR(append(*part->pack, pack));
    }
    RETURN_IF_ERROR(commit(pack, *out));
    return remove_parts();
  }
  Status append(const formats::EpisodePack& part, formats::EpisodePackWriter& pack) const {
    const size_t row_bytes = columns_.row_bytes();
    for (size_t i = 0; i < part.names().size(); ++i) {
      const uint64_t begin = part.first_rows()[i], end = part.first_rows()[i + 1];
      std::vector<formats::CsvTexts> texts;
      for (size_t column = 0; column < columns_.texts.size(); ++column) {
        ASSIGN_OR_RETURN(auto cells, part.texts(column, static_cast<int64_t>(begin), static_cast<int64_t>(end)));
        texts.push_back(std::move(cells));
      }
      RETURN_IF_ERROR(pack.add(part.names()[i], static_cast<int64_t>(end - begin),
                               part.numbers().subspan(begin * row_bytes, (end - begin) * row_bytes), texts));
    }
    return {};
  }
  // Those of earlier inputs too.
  Status remove_parts() {
    std::vector<std::string> keys;
    RETURN_IF_ERROR(for_each_object(*parts_.storage, parts_.key + "/", [&](const ObjectInfo& object) -> Status {
      keys.push_back(object.key);
      return {};
    }));
    RETURN_IF_ERROR(parts_.storage->remove(keys));
    return parts_.storage->remove_empty_folder(parts_.key);
  }

  // For the size of what a dry run would write.
  class DroppingSink final : public ByteSink {
   public:
    Status append(std::span<const std::byte>) override { return {}; }
  };

  ConvertRun& run_;
  const CsvSchema schema_;
  const formats::EpisodeColumns columns_;
  const Location target_;
  Location parts_;
};

}  // namespace

Result<std::string> convert_to_pack(ConvertRun& run) {
  const std::string output = output_of(run);
  std::vector<size_t> all(run.sources().files.size());
  std::iota(all.begin(), all.end(), size_t{0});
  ASSIGN_OR_RETURN(const auto schema, run.decide(all));
  if (!schema) return output;  // every file has failed
  ASSIGN_OR_RETURN(Location target, open_url(output));
  RETURN_IF_ERROR(PackedConversion(run, *schema, std::move(target)).convert());
  return output;
}

}  // namespace millrace::episodes
