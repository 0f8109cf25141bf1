// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "millrace/base/text/units.h"
#include "millrace/cli/command.h"
#include "millrace/cli/watched_reader.h"
#include "millrace/formats/npy.h"
#include "millrace/formats/tar.h"

namespace millrace::cli {

namespace {

constexpr size_t kShownIds = 12;
constexpr size_t kShownCharacters = 200;
constexpr int64_t kMaxFieldBytes = int64_t{1} << 30;  // of a field that is decoded for printing
constexpr std::array<std::string_view, 6> kIdFields{"token_ids.npy", "token_ids.json", "token_ids.u16",
                                                    "token_ids.u32", "input_ids.npy",  "input_ids.json"};
constexpr std::array<std::string_view, 2> kTextFields{"text.txt", "txt"};

struct CatArgs {
  std::string url;
  std::optional<int64_t> sample;
  int64_t limit = std::numeric_limits<int64_t>::max();
  bool fields = false;
};

struct DecodedSample {
  std::optional<std::vector<uint32_t>> ids;
  std::optional<std::string> text;
};

Result<std::string> read_member(const RandomReader& reader, const formats::TarMember& member) {
  if (member.size > kMaxFieldBytes) {
    return fail(ErrorCode::kResourceExhausted, "{}: {} of {} is too large to print; see --fields", reader.name(),
                member.name, format_bytes(member.size));
  }
  std::string data(static_cast<size_t>(member.size), '\0');
  RETURN_IF_ERROR(reader.read_at(member.data_offset, std::as_writable_bytes(std::span(data))));
  return data;
}

// The first member whose field is one of `fields`, and that field: a member's own name may have capital letters.
struct FoundMember {
  const formats::TarMember& member;
  std::string_view field;
};
std::optional<FoundMember> find_member(const formats::SampleExtent& sample, std::span<const std::string_view> fields) {
  for (const std::string_view field : fields) {
    const auto found = std::find(sample.fields.begin(), sample.fields.end(), field);
    if (found != sample.fields.end())
      return FoundMember{sample.members[static_cast<size_t>(found - sample.fields.begin())], field};
  }
  return std::nullopt;
}

Result<DecodedSample> decode_sample(const RandomReader& reader, const formats::SampleExtent& sample) {
  DecodedSample decoded;
  if (const auto found = find_member(sample, kIdFields)) {
    ASSIGN_OR_RETURN(const std::string data, read_member(reader, found->member));
    const std::string source = fmt::format("{}: {}", reader.name(), found->member.name);
    decoded.ids.emplace();
    RETURN_IF_ERROR(formats::parse_ids(found->field, as_bytes(data), *decoded.ids, source));
  }
  if (const auto found = find_member(sample, kTextFields)) {
    ASSIGN_OR_RETURN(decoded.text, read_member(reader, found->member));
  }
  return decoded;
}

Json sample_json(int64_t number, std::string_view url, const formats::SampleExtent& sample) {
  Json fields = Json::object();
  for (size_t i = 0; i < sample.fields.size(); ++i) fields[sample.fields[i]] = sample.members[i].size;
  return {{"type", "sample"}, {"number", number}, {"shard", url}, {"key", sample.key}, {"fields", fields}};
}

std::string sample_text(int64_t number, const formats::SampleExtent& sample) {
  std::string text = fmt::format("{}  {}  ", number, printable(sample.key));
  for (size_t i = 0; i < sample.fields.size(); ++i) {
    text +=
        fmt::format("{}{} {}", i == 0 ? "" : ", ", printable(sample.fields[i]), format_bytes(sample.members[i].size));
  }
  return text + "\n";
}

std::string decoded_text(const DecodedSample& decoded) {
  std::string text;
  if (decoded.ids) {
    const std::span<const uint32_t> shown(decoded.ids->data(), std::min(kShownIds, decoded.ids->size()));
    text += fmt::format("    {}: {}{}\n", counted(static_cast<int64_t>(decoded.ids->size()), "id"),
                        fmt::join(shown, " "), shown.size() < decoded.ids->size() ? " …" : "");
  }
  if (decoded.text) text += "    " + printable(*decoded.text, kShownCharacters) + "\n";
  return text;
}

void add_decoded(const DecodedSample& decoded, Json& object, std::string& text) {
  if (decoded.ids) object["ids"] = *decoded.ids;
  if (decoded.text) object["text"] = *decoded.text;
  text += decoded_text(decoded);
}

Status print_sample(const CatArgs& args, int64_t number, std::string_view url, const RandomReader& reader,
                    const formats::SampleExtent& sample, Output& out) {
  Json object = sample_json(number, url, sample);
  std::string text = sample_text(number, sample);
  if (!args.fields) {
    ASSIGN_OR_RETURN(const DecodedSample decoded, decode_sample(reader, sample));
    add_decoded(decoded, object, text);
  }
  out.print(object, text);
  return {};
}

// For a shard whose samples are bare ids, which only its index separates.
Status cat_ids(const CatArgs& args, const Shard& shard, const formats::ShardIndex& index, const RandomReader& reader,
               Output& out, int64_t& number, int64_t& printed) {
  std::string data;
  for (size_t i = 0; i < index.offset.size() && printed < args.limit; ++i, ++number) {
    if (args.sample && *args.sample > number) continue;
    Json object = {{"type", "sample"},
                   {"number", number},
                   {"shard", shard.location.url},
                   {"key", fmt::format("{}", i)},
                   {"fields", {{index.ids_field, index.size[i]}}}};
    std::string text =
        fmt::format("{}  {}  {} {}\n", number, i, index.ids_field, format_bytes(static_cast<int64_t>(index.size[i])));
    if (!args.fields) {
      data.resize(index.size[i]);
      RETURN_IF_ERROR(
          reader.read_at(static_cast<int64_t>(index.offset[i]), std::as_writable_bytes(std::span<char>(data))));
      DecodedSample decoded;
      decoded.ids.emplace();
      RETURN_IF_ERROR(formats::parse_ids(index.ids_field, as_bytes(data), *decoded.ids, reader.name()));
      add_decoded(decoded, object, text);
    }
    out.print(object, text);
    ++printed;
  }
  return {};
}

// Prints the wanted samples of one shard. `number` counts samples over all shards, `printed` the printed ones.
Status cat_shard(const CatArgs& args, const Shard& shard, Context& context, int64_t& number, int64_t& printed) {
  Progress progress;
  ASSIGN_OR_RETURN(const auto reader, open_watched(shard, context.stop, progress));
  ASSIGN_OR_RETURN(const std::optional<StoredIndex> stored, read_index(shard));
  if (stored && stored->index.kind == formats::SampleExtentKind::kIds) {
    return cat_ids(args, shard, stored->index, *reader, context.out, number, printed);
  }
  formats::SampleReader samples(*reader);
  for (; printed < args.limit; ++number) {
    ASSIGN_OR_RETURN(const std::optional<formats::SampleExtent> sample, samples.next());
    if (!sample) return {};
    if (args.sample && *args.sample > number) continue;
    RETURN_IF_ERROR(print_sample(args, number, shard.location.url, *reader, *sample, context.out));
    ++printed;
  }
  return {};
}

// The number of samples, when it is known without reading the shard.
Result<std::optional<int64_t>> known_samples(const Shard& shard) {
  if (shard.entry) return shard.entry->samples;
  ASSIGN_OR_RETURN(const std::optional<StoredIndex> stored, read_index(shard));
  return stored ? std::optional(stored->index.samples()) : std::nullopt;
}

Status run_shards_cat(CatArgs args, Context& context) {
  if (args.sample && args.limit == std::numeric_limits<int64_t>::max()) args.limit = 1;
  ASSIGN_OR_RETURN(const std::vector<Shard> shards, find_shards({args.url}));
  int64_t number = 0, printed = 0;
  for (const Shard& shard : shards) {
    if (args.sample && number < *args.sample) {
      ASSIGN_OR_RETURN(const std::optional<int64_t> samples, known_samples(shard));
      if (samples && number + *samples <= *args.sample) {
        number += *samples;
        continue;
      }
    }
    RETURN_IF_ERROR(cat_shard(args, shard, context, number, printed));
    if (printed == args.limit) break;
  }
  if (args.sample && printed == 0) {
    return fail(ErrorCode::kOutOfRange, "{}: no sample {}; there are {}", url_to_show(args.url), *args.sample, number);
  }
  return {};
}

}  // namespace

void add_shards_cat(Verbs& verbs, CLI::App& shards) {
  auto args = std::make_shared<CatArgs>();
  CLI::App& app = verbs.add(shards, "cat", "Print samples: key, fields, token ids and text",
                            {"millrace shards cat shards --limit 3", "millrace shards cat shards --sample 1000 --json",
                             "millrace shards cat shards/00000.tar --fields"},
                            [args](Context& context) { return run_shards_cat(*args, context); });
  app.add_option("URL", args->url, "A folder of shards, a shard or a brace pattern of them")
      ->required()
      ->option_text(" ");
  app.add_option("--sample", args->sample, "Start with this sample, counted from 0 over all shards, and print one")
      ->check(CLI::Range(int64_t{0}, kMaxCount))
      ->option_text("N");
  app.add_option("--limit", args->limit, "Print at most this many samples (default: all)")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->option_text("N");
  app.add_flag("--fields", args->fields, "Print fields and sizes only, without decoding");
}

}  // namespace millrace::cli
