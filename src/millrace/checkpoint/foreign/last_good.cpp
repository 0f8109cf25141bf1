// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/foreign/last_good.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <regex>
#include <utility>

#include "millrace/base/text/strings.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/foreign/follow.h"
#include "millrace/checkpoint/foreign/foreign_files.h"
#include "millrace/checkpoint/records/keys.h"

namespace millrace::checkpoint {
namespace {

constexpr std::string_view kTracker = "latest_checkpointed_iteration.txt";

// A checkpoint that may be the one, before its files are looked at.
struct Candidate {
  FoundCheckpoint found;
  ForeignFiles files;
  FileTime modified;  // the newest of its files
};

std::optional<int64_t> number_of(std::string_view digits) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() || value < 0) return std::nullopt;
  return value;
}

std::optional<int64_t> match_number(const std::string& text, const std::regex& pattern) {
  std::smatch match;
  return std::regex_search(text, match, pattern) ? number_of(match[1].str()) : std::nullopt;
}

// The number at the end of a name ("step-100", "global_step200"), or that behind "step=" in Lightning's names.
std::optional<int64_t> step_in(const std::string& name, CheckpointKind kind) {
  static const std::regex kEnd(R"((\d+)$)"), kLightning(R"((?:^|[^a-z])step=(\d+))");
  return match_number(name, kind == CheckpointKind::kLightning ? kLightning : kEnd);
}

// Which program writes such a folder or file; nullopt: it is no checkpoint. Those of Millrace are found apart.
std::optional<CheckpointKind> kind_of(const std::string& name, const ForeignFiles& files, bool is_tag) {
  static const std::regex kIteration(R"(iter_\d{7,})"), kGlobalStep(R"(global_step\d+)");
  if (name.ends_with(".ckpt")) return CheckpointKind::kLightning;
  if (files.has("")) return std::nullopt;  // another file
  if (std::regex_match(name, kIteration)) return CheckpointKind::kMegatron;
  if (is_tag || std::regex_match(name, kGlobalStep)) return CheckpointKind::kDeepSpeed;
  const bool is_dcp = std::ranges::any_of(files.files, [](const auto& each) {
    return each.first.find('/') == std::string::npos && (each.first == ".metadata" || each.first.ends_with(".distcp"));
  });
  if (is_dcp && !files.has("trainer_state.json")) return CheckpointKind::kDcp;
  if (trainer_step(name)) return CheckpointKind::kTrainer;
  return std::nullopt;
}

// What lies in the root: its own files, and those of each folder and *.ckpt.
struct Listing {
  ForeignFiles root;
  std::map<std::string, ForeignFiles> entries;
};

Result<Listing> list_all(const Location& root) {
  Listing listing;
  listing.root.at = root;
  const std::string prefix = prefix_below(root);
  ListPages pages(*root.storage, prefix, {.empty_folders = root.storage->capabilities().folders});
  while (!pages.is_at_end()) {
    ASSIGN_OR_RETURN(const ListPage page, pages.next());
    for (const ObjectInfo& object : page.objects) {
      const std::string path = object.key.substr(prefix.size());
      const size_t slash = path.find('/');
      const ListedFile file{object.size, object.modified};
      if (slash == path.npos) listing.root.files.emplace(path, file);
      const std::string name = path.substr(0, slash);
      ForeignFiles& entry = listing.entries[name];
      entry.at = root.child(name);
      if (slash == path.npos) entry.files.emplace("", file);
      if (slash != path.npos && !path.ends_with('/')) entry.files.emplace(path.substr(slash + 1), file);
    }
  }
  return listing;
}

// A small text file of the root without the spaces around it; empty where it is not there.
Result<std::string> root_text(const Listing& listing, std::string_view name) {
  if (!listing.root.has(name)) return std::string();
  const Location at = listing.root.place(name);
  const auto text = read_object(*at.storage, at.key, 4096);
  if (!text) return is_unusable(text.error()) ? Result<std::string>(std::string()) : tl::unexpected(text.error());
  return std::string(trimmed(*text));
}

// What the two files that name the last whole save say. DeepSpeed's also tells which folder is its.
struct Pointers {
  std::string tag, iteration;
  bool has_tag = false, has_iteration = false;
};

// Newer ones than the file names did not end.
std::string check_pointers(const Candidate& candidate, const Pointers& pointers) {
  const auto& [name, kind, step, reason] = candidate.found;
  if (kind == CheckpointKind::kMegatron) {
    if (!pointers.has_iteration) return fmt::format("{} is missing, which Megatron writes last", kTracker);
    const auto last = number_of(pointers.iteration);
    if (!last) return fmt::format("{} holds no number, so which save ended last is not known", kTracker);
    if (step && *step > *last) return fmt::format("{} says {}: the save did not end", kTracker, *last);
  }
  if (kind == CheckpointKind::kDeepSpeed && pointers.has_tag) {
    static const std::regex kEnd(R"((\d+)$)");
    const auto last = match_number(pointers.tag, kEnd);
    if (step && last && *step > *last) return fmt::format("latest names {}: the save did not end", pointers.tag);
  }
  return {};
}

Status check_files(const Candidate& candidate) {
  switch (candidate.found.kind) {
    case CheckpointKind::kTrainer:
      return check_trainer(candidate.files, candidate.found.step.value_or(0));
    case CheckpointKind::kLightning:
      return check_lightning(candidate.files);
    case CheckpointKind::kDcp:
      return check_dcp(candidate.files);
    case CheckpointKind::kMegatron:
      return check_megatron(candidate.files);
    case CheckpointKind::kDeepSpeed:
      return check_deepspeed(candidate.files);
    case CheckpointKind::kMillrace:
      return {};  // found with its reason
  }
  return {};
}

// Lightning's names need not have the step: its file has.
Status find_step(Candidate& candidate) {
  if (candidate.found.step || candidate.found.kind != CheckpointKind::kLightning) return {};
  const std::string_view path = candidate.files.has("") ? "" : "meta.pt";
  if (!candidate.files.has(path)) return {};
  const auto numbers = torch_numbers(candidate.files, path);
  if (!numbers) return is_unusable(numbers.error()) ? Status() : tl::unexpected(numbers.error());
  if (const auto step = numbers->find("global_step"); step != numbers->end()) candidate.found.step = step->second;
  return {};
}

Result<std::vector<Candidate>> foreign_candidates(const Listing& listing, const Pointers& pointers) {
  std::vector<Candidate> candidates;
  for (const auto& [name, files] : listing.entries) {
    if (parse_step_name(name)) continue;
    const auto kind = kind_of(name, files, !pointers.tag.empty() && name == pointers.tag);
    if (!kind) continue;
    Candidate candidate{.found = {name, *kind, step_in(name, *kind), {}}, .files = files, .modified = {}};
    for (const auto& [path, file] : files.files) candidate.modified = std::max(candidate.modified, file.modified);
    RETURN_IF_ERROR(find_step(candidate));
    candidate.found.reason = check_pointers(candidate, pointers);
    candidates.push_back(std::move(candidate));
  }
  return candidates;
}

// Millrace's own steps: only those of the newest line are continued.
Status add_own(const Location& root, const Listing& listing, std::vector<Candidate>& candidates) {
  ASSIGN_OR_RETURN(const auto steps, list_steps(root, {.check_sizes = true}));
  for (const auto& [name, files] : listing.entries) {
    const auto number = parse_step_name(name);
    if (!number) continue;
    Candidate candidate{.found = {name, CheckpointKind::kMillrace, number, {}}, .files = {}, .modified = {}};
    const auto info = std::ranges::find(steps, *number, &StepInfo::step);
    std::string& reason = candidate.found.reason;
    if (info == steps.end())
      reason = "manifest.json is missing, which is written last";
    else if (const auto damage = info->any_damage())
      reason = damage->message();
    else if (info->is_left)
      reason = "left behind by a run that went back to an earlier step";
    candidates.push_back(std::move(candidate));
  }
  return {};
}

// Newest first: by step. One without goes before the first that is older by its files' time.
std::vector<Candidate> in_order(std::vector<Candidate> candidates) {
  const auto unknown = std::stable_partition(candidates.begin(), candidates.end(),
                                             [](const Candidate& each) { return each.found.step; });
  std::vector<Candidate> ordered(std::make_move_iterator(candidates.begin()), std::make_move_iterator(unknown));
  std::ranges::stable_sort(ordered, [](const Candidate& a, const Candidate& b) {
    return a.found.step != b.found.step ? *a.found.step > *b.found.step : a.modified > b.modified;
  });
  for (auto each = unknown; each != candidates.end(); ++each) {
    const auto older =
        std::ranges::find_if(ordered, [&](const Candidate& other) { return other.modified < each->modified; });
    ordered.insert(older, std::move(*each));
  }
  return ordered;
}

}  // namespace

std::string_view kind_name(CheckpointKind kind) {
  switch (kind) {
    case CheckpointKind::kMillrace:
      return "millrace";
    case CheckpointKind::kTrainer:
      return "trainer";
    case CheckpointKind::kLightning:
      return "lightning";
    case CheckpointKind::kDcp:
      return "dcp";
    case CheckpointKind::kMegatron:
      return "megatron";
    case CheckpointKind::kDeepSpeed:
      return "deepspeed";
  }
  return "";
}

Result<LastGood> find_last_good(const Location& root) {
  ASSIGN_OR_RETURN(const Listing listing, list_all(root));
  Pointers pointers{.has_tag = listing.root.has("latest"), .has_iteration = listing.root.has(kTracker)};
  ASSIGN_OR_RETURN(pointers.tag, root_text(listing, "latest"));
  ASSIGN_OR_RETURN(pointers.iteration, root_text(listing, kTracker));
  ASSIGN_OR_RETURN(std::vector<Candidate> candidates, foreign_candidates(listing, pointers));
  RETURN_IF_ERROR(add_own(root, listing, candidates));
  LastGood result;
  for (Candidate& candidate : in_order(std::move(candidates))) {
    if (candidate.found.reason.empty()) {
      const Status checked = check_files(candidate);
      if (!checked && !is_unusable(checked.error())) return tl::unexpected(checked.error());
      if (!checked) candidate.found.reason = checked.error().message();
    }
    if (candidate.found.reason.empty()) {
      result.good = std::move(candidate.found);
      break;
    }
    result.passed_over.push_back(std::move(candidate.found));
  }
  return result;
}

}  // namespace millrace::checkpoint
