// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/foreign/foreign_files.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <regex>
#include <set>
#include <utility>
#include <vector>

#include "millrace/base/io/io.h"
#include "millrace/base/io/path.h"
#include "millrace/base/text/ascii.h"
#include "millrace/checkpoint/io/damage.h"
#include "millrace/formats/pickle.h"
#include "millrace/formats/safetensors.h"
#include "millrace/formats/torch_zip.h"

namespace millrace::checkpoint {
namespace {

constexpr int64_t kMostJson = 256 << 20, kMostMetadata = int64_t{1} << 30;

template <class... Args>
tl::unexpected<Error> unusable(fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected(Error(ErrorCode::kCorruption, fmt::format(format, std::forward<Args>(args)...)));
}

// "" or "a/b/".
std::string_view folder_of(std::string_view path) {
  return path.substr(0, path.rfind('/') + 1);
}

Result<std::unique_ptr<RandomReader>> open(const ForeignFiles& of, std::string_view path) {
  const Location at = of.place(path);
  auto reader = at.storage->open_read(at.key);
  if (!reader) return tl::unexpected(as_damage(reader.error(), at));
  return reader;
}

Result<std::string> read_text(const ForeignFiles& of, std::string_view path, int64_t limit) {
  ASSIGN_OR_RETURN(const auto reader, open(of, path));
  return read_all(*reader, limit);
}

// Python's json module writes NaN, Infinity and integers of any length, which JSON parsers refuse: the Trainer's state
// has a NaN after a step that overflowed, a tokenizer's settings have 10^30. Puts other numbers in their place.
std::string without_python_numbers(std::string text) {
  constexpr size_t kMostDigits = 18;  // that fit 64 bits
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string) {
      if (text[i] == '"') in_string = false;
      if (text[i] == '\\') ++i;
      continue;
    }
    if (text[i] == '"') in_string = true;
    for (const std::string_view name : {"NaN", "Infinity"}) {
      if (std::string_view(text).substr(i, name.size()) == name) text.replace(i, name.size(), name.size(), '1');
    }
    if (!is_digit(text[i])) continue;
    size_t end = i;
    while (end < text.size() && is_digit(text[end])) ++end;
    const bool is_integer = end == text.size() || (text[end] != '.' && text[end] != 'e' && text[end] != 'E');
    if (is_integer && end - i > kMostDigits) text[i + 1] = '.';
    while (end < text.size() && (is_digit(text[end]) || text[end] == '.')) ++end;
    i = end - 1;
  }
  return text;
}

// A JSON document of `of`; it lives as long as the parser.
Result<simdjson::dom::element> parse(simdjson::dom::parser& parser, std::string text, std::string_view path) {
  simdjson::dom::element document;
  auto error = parser.parse(text).get(document);
  if (error != simdjson::SUCCESS) error = parser.parse(without_python_numbers(std::move(text))).get(document);
  if (error != simdjson::SUCCESS) return unusable("{} is not JSON: {}", path, simdjson::error_message(error));
  return document;
}

Status check_json(const ForeignFiles& of, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, read_text(of, path, kMostJson));
  simdjson::dom::parser parser;
  return parse(parser, text, path).map([](auto) {});
}

// What torch.save writes: a zip archive, or (before torch 1.6) pickles, which do not tell their size.
enum class TorchForm { kZip, kPickle, kOther };
Result<TorchForm> form_of(const RandomReader& reader, std::string_view path) {
  if (reader.size() < 4) return unusable("{} has {} bytes: it is cut", path, reader.size());
  std::array<std::byte, 4> magic{};
  RETURN_IF_ERROR(reader.read_at(0, magic));
  if (as_text(magic) == "PK\x03\x04") return TorchForm::kZip;
  return magic[0] == std::byte{0x80} ? TorchForm::kPickle : TorchForm::kOther;
}

Status check_torch(const ForeignFiles& of, const std::string& path, bool is_torch) {
  ASSIGN_OR_RETURN(const auto reader, open(of, path));
  ASSIGN_OR_RETURN(const TorchForm form, form_of(*reader, path));
  if (form == TorchForm::kZip) return formats::read_torch_zip(*reader).map([](const auto&) {});
  if (form == TorchForm::kOther && is_torch)
    return unusable("{} is not what torch.save writes: neither a zip archive nor a pickle", reader->name());
  return {};
}

// model.safetensors.index.json names the file of each tensor.
Status check_index(const ForeignFiles& of, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, read_text(of, path, kMostJson));
  simdjson::dom::parser parser;
  ASSIGN_OR_RETURN(const simdjson::dom::element document, parse(parser, text, path));
  simdjson::dom::object map;
  if (document["weight_map"].get(map) != simdjson::SUCCESS) return unusable("{} has no weight_map", path);
  std::set<std::string> wanted;
  for (const auto& member : map) {
    std::string_view file;
    if (member.value.get(file) == simdjson::SUCCESS) wanted.emplace(file);
  }
  for (const std::string& file : wanted) {
    if (!of.has(fmt::format("{}{}", folder_of(path), file)))
      return unusable("{} is missing, which {} names", file, path);
  }
  return {};
}

// Of "model-00002-of-00003.safetensors" all three must be there, and their index.
Status check_shards(const ForeignFiles& of) {
  static const std::regex kShard(R"((.*)-(\d{5})-of-(\d{5})\.(safetensors|bin))");
  std::set<std::string> checked;
  for (const auto& [path, file] : of.files) {
    std::smatch match;
    if (!std::regex_match(path, match, kShard)) continue;
    const std::string stem = match[1], suffix = match[4];
    const int64_t count = std::stoll(match[3]);
    if (!checked.insert(fmt::format("{}-{}.{}", stem, count, suffix)).second) continue;
    for (int64_t i = 1; i <= count; ++i) {
      const std::string shard = fmt::format("{}-{:05}-of-{:05}.{}", stem, i, count, suffix);
      if (!of.has(shard)) return unusable("{} is missing", shard);
    }
    const std::string index = fmt::format("{}.{}.index.json", stem, suffix);
    if (!of.has(index)) return unusable("{} is missing, which names the tensors of {} files", index, count);
  }
  return {};
}

// What .metadata says of the files beside it.
Status check_metadata(const ForeignFiles& of, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, read_text(of, path, kMostMetadata));
  ASSIGN_OR_RETURN(const formats::PickleContent content, formats::read_pickle(text, path));
  const std::string folder(folder_of(path));
  for (const formats::PickledRange& range : content.ranges) {
    const auto file = of.files.find(folder + range.file);
    if (file == of.files.end()) return unusable("{}{} is missing, which {} names", folder, range.file, path);
    if (range.offset < 0 || range.length < 0 || range.length > INT64_MAX - range.offset)
      return unusable("{} names a range outside of any file", path);
    if (file->second.size < range.offset + range.length)
      return unusable("{} has {} bytes, but {} says that it has at least {}", file->first, file->second.size, path,
                      range.offset + range.length);
  }
  return {};
}

// Folders with *.distcp: .metadata comes last.
Status check_metadata_is_there(const ForeignFiles& of) {
  for (const auto& [path, file] : of.files) {
    if (path.ends_with(".distcp") && !of.has(fmt::format("{}.metadata", folder_of(path))))
      return unusable("{}.metadata is missing, which is written last: the save did not end", folder_of(path));
  }
  return {};
}

// The files of DeepSpeed's ranks in one folder.
struct DeepSpeedRanks {
  std::set<int64_t> model;                                              // mp_rank_*_model_states.pt
  std::map<std::string, std::map<int64_t, std::set<int64_t>>> by_kind;  // of each kind, model rank: data ranks
  std::string first;                                                    // a file of the model's state
};

std::map<std::string, DeepSpeedRanks> deepspeed_folders(const ForeignFiles& of) {
  static const std::regex kModel(R"(mp_rank_(\d{1,9})_model_states\.pt)");
  static const std::regex kZero(R"(((?:bf16_)?zero)_pp_rank_(\d{1,9})_mp_rank_(\d{1,9})_(model|optim)_states\.pt)");
  std::map<std::string, DeepSpeedRanks> folders;
  for (const auto& [path, file] : of.files) {
    const std::string name(base_name(path));
    std::smatch match;
    if (std::regex_match(name, match, kModel)) {
      DeepSpeedRanks& ranks = folders[std::string(folder_of(path))];
      ranks.model.insert(std::stoll(match[1]));
      if (ranks.first.empty()) ranks.first = path;
    } else if (std::regex_match(name, match, kZero)) {
      DeepSpeedRanks& ranks = folders[std::string(folder_of(path))];
      ranks
          .by_kind[fmt::format("{}_pp_rank_{{}}_mp_rank_{{:02}}_{}_states.pt", match[1].str(), match[4].str())]
                  [std::stoll(match[3])]
          .insert(std::stoll(match[2]));
      if (ranks.first.empty() && match[4] == "model") ranks.first = path;
    }
  }
  return folders;
}

Status check_ranks(const ForeignFiles& of, const std::string& folder, const DeepSpeedRanks& ranks) {
  if (ranks.first.empty()) return unusable("{}*_model_states.pt is missing", folder);
  for (int64_t rank = 0; rank < std::ssize(ranks.model); ++rank) {
    if (!ranks.model.contains(rank)) return unusable("{}mp_rank_{:02}_model_states.pt is missing", folder, rank);
  }
  ASSIGN_OR_RETURN(const auto numbers, torch_numbers(of, ranks.first));
  const auto known = numbers.find("dp_world_size");
  for (const auto& [name, by_model] : ranks.by_kind) {
    int64_t data_ranks = known == numbers.end() ? 1 : known->second, models = std::ssize(ranks.model);
    for (const auto& [model, data] : by_model) {
      models = std::max(models, model + 1);
      data_ranks = std::max(data_ranks, *data.rbegin() + 1);
    }
    for (int64_t model = 0; model < models; ++model) {
      const auto data = by_model.find(model);
      for (int64_t rank = 0; rank < data_ranks; ++rank) {
        if (data == by_model.end() || !data->second.contains(rank))
          return unusable("{}{} is missing: it has {} data-parallel ranks", folder,
                          fmt::format(fmt::runtime(name), rank, model), data_ranks);
      }
    }
  }
  return {};
}

Status check_file(const ForeignFiles& of, const std::string& path) {
  const auto ends = [&](std::string_view suffix) { return path.ends_with(suffix); };
  if (ends(".safetensors")) {
    ASSIGN_OR_RETURN(const auto reader, open(of, path));
    return formats::parse_safetensors_header(*reader).map([](const auto&) {});
  }
  if (ends(".index.json")) return check_index(of, path);
  if (ends(".json")) return check_json(of, path);
  if (path.empty() || ends(".pt") || ends(".pth") || ends(".ckpt")) return check_torch(of, path, true);
  if (ends(".bin")) return check_torch(of, path, base_name(path).starts_with("pytorch_model"));
  if (base_name(path) == ".metadata") return check_metadata(of, path);
  return {};
}

}  // namespace

bool ForeignFiles::has_below(std::string_view prefix) const {
  const auto next = files.lower_bound(prefix);
  return next != files.end() && next->first.starts_with(prefix);
}

bool is_unusable(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kCorruption:
    case ErrorCode::kNotFound:  // removed since it was listed
    case ErrorCode::kOutOfRange:
    case ErrorCode::kUnsupported:
      return true;
    default:
      return is_damage(error);
  }
}

Result<std::map<std::string, int64_t, std::less<>>> torch_numbers(const ForeignFiles& of, std::string_view path) {
  ASSIGN_OR_RETURN(const auto reader, open(of, path));
  ASSIGN_OR_RETURN(const TorchForm form, form_of(*reader, path));
  std::map<std::string, int64_t, std::less<>> none;
  if (form != TorchForm::kZip) return none;
  ASSIGN_OR_RETURN(const auto members, formats::read_torch_zip(*reader));
  const auto pickle = formats::read_torch_pickle(*reader, members);
  if (!pickle) return is_unusable(pickle.error()) ? Result<decltype(none)>(none) : tl::unexpected(pickle.error());
  ASSIGN_OR_RETURN(auto content, formats::read_pickle(*pickle, reader->name()));
  return std::move(content.numbers);
}

Status check_every_file(const ForeignFiles& of) {
  if (of.files.empty()) return unusable("it holds no file");
  RETURN_IF_ERROR(check_shards(of));
  RETURN_IF_ERROR(check_metadata_is_there(of));
  for (const auto& [folder, ranks] : deepspeed_folders(of)) RETURN_IF_ERROR(check_ranks(of, folder, ranks));
  for (const auto& [path, file] : of.files) RETURN_IF_ERROR(check_file(of, path));
  return {};
}

Status check_trainer(const ForeignFiles& of, int64_t step) {
  constexpr std::string_view kState = "trainer_state.json";
  if (of.files.empty()) return unusable("it holds no file");
  if (!of.has(kState)) return unusable("{} is missing, which the Trainer writes last", kState);
  ASSIGN_OR_RETURN(const std::string text, read_text(of, kState, kMostJson));
  simdjson::dom::parser parser;
  ASSIGN_OR_RETURN(const simdjson::dom::element state, parse(parser, text, kState));
  int64_t found = 0;
  if (state["global_step"].get(found) != simdjson::SUCCESS) return unusable("{} has no global_step", kState);
  if (found != step) return unusable("{} is of step {}", kState, found);
  const auto is_weights = [](const auto& each) {
    const std::string_view path = each.first;
    return path.starts_with("global_step") || path.starts_with("pytorch_model") || path.starts_with("adapter_model") ||
           path.ends_with(".safetensors") || path.ends_with(".safetensors.index.json");
  };
  if (std::ranges::none_of(of.files, is_weights)) return unusable("it holds no weights");
  // The Trainer begins with a new optimizer, in silence, when one of the two is not there.
  if (of.has("scheduler.pt") && !of.has_below("optimizer") && !of.has_below("global_step"))
    return unusable("optimizer.pt is missing, while scheduler.pt is there");
  if (of.has_below("global_step")) {
    if (!of.has("latest")) return unusable("latest is missing, which DeepSpeed writes last");
    ASSIGN_OR_RETURN(std::string tag, read_text(of, "latest", 4096));
    while (!tag.empty() && (tag.back() == '\n' || tag.back() == ' ')) tag.pop_back();
    if (!of.has_below(tag + "/")) return unusable("latest names {}, which is missing", tag);
  }
  return check_every_file(of);
}

Status check_megatron(const ForeignFiles& of) {
  static const std::regex kFolder(R"(mp_rank_(\d{2,})(?:_(\d{3,}))?(?:_(\d{3,}))?/(.*))");
  std::map<std::array<std::string, 3>, std::set<std::string>> ranks;
  std::array<std::set<std::string>, 3> axes;
  for (const auto& [path, file] : of.files) {
    std::smatch match;
    if (!std::regex_match(path, match, kFolder)) continue;
    const std::array<std::string, 3> rank{match[1], match[2], match[3]};
    ranks[rank].insert(match[4]);
    for (size_t i = 0; i < rank.size(); ++i) axes[i].insert(rank[i]);
  }
  if (!ranks.empty() && ranks.size() != axes[0].size() * axes[1].size() * axes[2].size())
    return unusable("the folder mp_rank_* of a rank is missing: {} are there of {} x {} x {}", ranks.size(),
                    axes[0].size(), axes[1].size(), axes[2].size());
  for (const auto& [rank, names] : ranks) {
    const std::string folder = fmt::format("mp_rank_{}{}{}{}{}", rank[0], rank[1].empty() ? "" : "_", rank[1],
                                           rank[2].empty() ? "" : "_", rank[2]);
    for (const std::string& name : ranks.begin()->second) {
      if (!names.contains(name)) return unusable("{}/{} is missing, which other ranks have", folder, name);
    }
    for (const std::string& name : names) {
      if (!ranks.begin()->second.contains(name)) return unusable("{} is missing of a rank, which {} has", name, folder);
    }
  }
  if (ranks.empty() && !of.has(".metadata"))
    return unusable(".metadata is missing, and no mp_rank_* is there: the save did not end");
  if (of.has("common.pt") && !of.has("metadata.json")) return unusable("metadata.json is missing");
  if (of.has("metadata.json")) {
    ASSIGN_OR_RETURN(const std::string text, read_text(of, "metadata.json", kMostJson));
    simdjson::dom::parser parser;
    ASSIGN_OR_RETURN(const simdjson::dom::element document, parse(parser, text, "metadata.json"));
    std::string_view common;
    if (document["common_backend"].get(common) == simdjson::SUCCESS && common == "torch" && !of.has("common.pt"))
      return unusable("common.pt is missing");
  }
  return check_every_file(of);
}

Status check_dcp(const ForeignFiles& of) {
  if (!of.has(".metadata")) return unusable(".metadata is missing, which is written last: the save did not end");
  return check_every_file(of);
}

Status check_lightning(const ForeignFiles& of) {
  if (of.has(".metadata") && !of.has("meta.pt")) return unusable("meta.pt is missing, which Lightning writes last");
  return check_every_file(of);
}

Status check_deepspeed(const ForeignFiles& of) {
  if (!deepspeed_folders(of).contains("")) return unusable("*_model_states.pt is missing");
  return check_every_file(of);
}

}  // namespace millrace::checkpoint
