// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/download.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "millrace/base/text/json_members.h"
#include "millrace/http/numbers.h"

namespace millrace::lerobot {
namespace {

constexpr std::string_view kOwner = "lerobot";
constexpr int kNewestMajor = 3;  // of the format that Millrace reads

// Names of the data-preparation guide that LeRobot's list of datasets (src/lerobot/__init__.py, v0.3.3) does not have,
// and what comes nearest there.
struct GuideName {
  std::string_view name, instead;
};
constexpr GuideName kGuideNames[] = {
    {"pusht_sim", "lerobot/pusht or lerobot/pusht_image"},
    {"aloha_real_1_episodes", "lerobot/aloha_static_cups_open or lerobot/aloha_mobile_cabinet"},
    {"xarm_lift_medium_human", "lerobot/xarm_lift_medium or lerobot/xarm_lift_medium_replay"},
    {"droid_sample",
     "demo_data/droid_sample of the Git repository NVIDIA/Isaac-GR00T, or lerobot/droid_100 of the Hub"},
};

struct Wanted {
  HubRepo repo;
  std::string revision;  // empty: not typed
};

// What .millrace/hub.json says.
struct Note {
  std::string endpoint, repo, revision, commit;
  bool replaces = false;  // files of another commit may still be there
  bool complete = false;
};

Result<Wanted> parse_name(const DownloadOptions& options) {
  Wanted wanted{{HubRepo::Kind::kDataset, options.name}, options.revision};
  constexpr std::string_view kScheme = "hf://";
  if (options.name.starts_with(kScheme)) {
    ASSIGN_OR_RETURN(const HubUrl url, parse_hub_url(std::string_view(options.name).substr(kScheme.size())));
    if (url.repo.kind != HubRepo::Kind::kDataset || !url.path.empty()) {
      return fail(ErrorCode::kInvalidArgument,
                  "\"{}\": a dataset of the Hub is hf://datasets/ORG/NAME[@REVISION]; cp copies anything else",
                  options.name);
    }
    wanted.repo = url.repo;
    if (wanted.revision.empty()) wanted.revision = url.revision;
  } else if (options.name.find('/') == std::string::npos) {
    wanted.repo.id = fmt::format("{}/{}", kOwner, options.name);
  }
  return wanted;
}

std::string_view short_name(std::string_view id) {
  return id.substr(id.find('/') + 1);
}

Error explain_guide_name(const HubRepo& repo, Error error) {
  if (error.code() != ErrorCode::kNotFound) return error;
  for (const GuideName& guide : kGuideNames) {
    if (repo.id != fmt::format("{}/{}", kOwner, guide.name)) continue;
    return Error(error.code(), fmt::format("{}; LeRobot's list of datasets has no {} either: take {}", error.message(),
                                           guide.name, guide.instead));
  }
  return error;
}

struct Numbered {
  int major = 0, minor = 0;
  auto operator<=>(const Numbered&) const = default;
};

// Of "v3.0".
std::optional<Numbered> version_of(std::string_view tag) {
  const size_t dot = tag.find('.');
  if (!tag.starts_with('v') || dot == tag.npos) return std::nullopt;
  const auto major = http::whole_number<int>(tag.substr(1, dot - 1)),
             minor = http::whole_number<int>(tag.substr(dot + 1));
  if (!major || !minor) return std::nullopt;
  return Numbered{*major, *minor};
}

Result<std::optional<Note>> read_note(const Location& target) {
  const Location at = target.child(kHubNote);
  const auto text = read_object(*at.storage, at.key, 1 << 20);
  if (!text && text.error().code() == ErrorCode::kNotFound) return std::nullopt;
  if (!text) return tl::unexpected(text.error());
  const auto json = nlohmann::json::parse(*text, nullptr, false);
  Note note{text_or_empty(json, "endpoint"), text_or_empty(json, "repo"), text_or_empty(json, "revision"),
            text_or_empty(json, "commit")};
  note.replaces = bool_at(json, "replaces").value_or(false);
  note.complete = bool_at(json, "complete").value_or(false);
  if (!note.repo.empty() && note.commit.size() == 40) return note;
  return fail(ErrorCode::kCorruption,
              "{}: it does not say which commit is there: remove it, then what is there is compared "
              "by its hashes",
              at.url);
}

Status write_note(const Location& target, const Note& note, const std::vector<std::string>& rules) {
  const nlohmann::ordered_json json{{"type", "hub_download"},    {"endpoint", note.endpoint}, {"repo", note.repo},
                                    {"revision", note.revision}, {"commit", note.commit},     {"filters", rules},
                                    {"replaces", note.replaces}, {"complete", note.complete}};
  const Location at = target.child(kHubNote);
  return with_context(write_object(*at.storage, at.key, json.dump(2) + "\n"), at.url).map([](const ObjectInfo&) {});
}

// Why the target may not become a copy of `next`; empty when it may.
std::string conflict(const Note& there, const Note& next) {
  if (there.repo != next.repo) return fmt::format("the dataset {}", there.repo);
  if (there.commit == next.commit) return {};
  return fmt::format("commit {} of {}, {}", there.commit.substr(0, 8), there.repo, there.revision);
}

// One download, step by step.
class Download {
 public:
  Download(const DownloadOptions& options, const std::stop_token& stop, Progress* progress)
      : options_(options), stop_(stop), progress_(progress) {}

  Result<DownloadReport> run() {
    ASSIGN_OR_RETURN(wanted_, parse_name(options_));
    ASSIGN_OR_RETURN(hub_options_, HubOptions::from(process_url_options()));
    report_.repo = wanted_.repo.id;
    report_.target = options_.target.empty() ? std::string(short_name(wanted_.repo.id)) : options_.target;
    ASSIGN_OR_RETURN(target_, open_url(report_.target));
    ASSIGN_OR_RETURN(there_, read_note(target_));
    RETURN_IF_ERROR(choose());
    RETURN_IF_ERROR(check_target());
    RETURN_IF_ERROR(look_at_dataset());
    RETURN_IF_ERROR(copy());
    return std::move(report_);
  }

 private:
  bool continues() const {
    return there_ && !there_->complete && there_->repo == wanted_.repo.id &&
           there_->endpoint == hub_options_.endpoint &&
           (wanted_.revision.empty() || wanted_.revision == there_->revision);
  }

  // Decides upon revision and commit.
  Status choose() {
    std::string revision = continues() ? there_->revision : wanted_.revision;
    if (revision.empty()) {
      ASSIGN_OR_RETURN(revision, choose_revision());
    }
    ASSIGN_OR_RETURN(source_, open_hub_storage(wanted_.repo, revision, hub_options_, stop_));
    if (continues()) source_->pin({there_->commit, {}});
    const auto commit = source_->commit();
    if (!commit) return tl::unexpected(explain_guide_name(wanted_.repo, commit.error()));
    report_.revision = revision;
    report_.commit = commit->id;
    return {};
  }

  Result<std::string> choose_revision() {
    ASSIGN_OR_RETURN(const auto repo, open_hub_storage(wanted_.repo, "", hub_options_, stop_));
    const auto main = repo->commit();  // its error says more than that of refs()
    if (!main) return tl::unexpected(explain_guide_name(wanted_.repo, main.error()));
    ASSIGN_OR_RETURN(const auto refs, repo->refs());
    const auto newest = newest_version(refs);
    if (!newest) {
      report_.warnings.push_back("it has no version tag, so main is taken");
      return "main";
    }
    if (newest->commit != main->id) {
      report_.warnings.push_back(
          fmt::format("main is another commit than the tag {}; --revision main takes that", newest->name));
    }
    return newest->name;
  }

  Note note(bool complete) const {
    return {hub_options_.endpoint, report_.repo, report_.revision, report_.commit, replaces_ && !complete, complete};
  }

  Status check_target() {
    if (!there_ || options_.replace) return {};
    const std::string holds = conflict(*there_, note(false));
    if (holds.empty()) return {};
    return fail(
        ErrorCode::kAlreadyExists,
        "{} holds {}, and {} is commit {}: give another folder, or --replace, which also removes the files that "
        "the new one does not have",
        target_.url, holds, report_.revision, report_.commit.substr(0, 8));
  }

  Status look_at_dataset() {
    const auto info = read_object(*source_, "meta/info.json");
    if (!info && info.error().code() == ErrorCode::kNotFound) {
      report_.warnings.push_back("it has no meta/info.json, so it is no LeRobot dataset of v2.0 or later");
      return {};
    }
    if (!info) return tl::unexpected(info.error());
    const auto json = nlohmann::json::parse(*info, nullptr, false);
    const std::string said = text_or_empty(json, "codebase_version");
    if (version_of(report_.revision) && said != report_.revision) {
      report_.warnings.push_back(fmt::format("the tag is {}, and meta/info.json says \"{}\"", report_.revision, said));
    }
    return {};
  }

  Status copy() {
    sync::SyncOptions options = options_.sync;
    const auto rules = filter_rules(options_.include, options_.exclude);
    for (const std::string& rule : rules) RETURN_IF_ERROR(options.filter.add_lines(rule, "--include and --exclude"));
    options.delete_extra = replaces_ = options_.replace || (continues() && there_->replaces);
    if (!options.dry_run) RETURN_IF_ERROR(write_note(target_, note(false), rules));
    const Location source{source_, "", std::string(source_->name())};
    ASSIGN_OR_RETURN(report_.sync, sync::sync(source, target_, options, stop_, progress_));
    if (!options.dry_run && report_.sync.status()) return write_note(target_, note(true), rules);
    return {};
  }

  const DownloadOptions& options_;
  const std::stop_token stop_;
  Progress* const progress_;
  DownloadReport report_;
  Wanted wanted_;
  HubOptions hub_options_;
  Location target_;
  std::optional<Note> there_;
  bool replaces_ = false;
  std::shared_ptr<HubStorage> source_;
};

}  // namespace

std::optional<HubRef> newest_version(const std::vector<HubRef>& refs) {
  std::optional<HubRef> newest;
  Numbered best;
  for (const HubRef& ref : refs) {
    const auto version = ref.is_tag ? version_of(ref.name) : std::nullopt;
    if (!version || version->major > kNewestMajor || (newest && *version <= best)) continue;
    newest = ref;
    best = *version;
  }
  return newest;
}

std::vector<std::string> filter_rules(const std::vector<std::string>& include,
                                      const std::vector<std::string>& exclude) {
  std::vector<std::string> rules;
  const auto add = [&](char sign, const std::string& pattern) {
    rules.push_back(fmt::format("{} {}{}", sign, pattern, pattern.ends_with('/') ? "***" : ""));
  };
  for (const std::string& pattern : exclude) add('-', pattern);
  for (const std::string& pattern : include) add('+', pattern);
  if (!include.empty()) rules.insert(rules.end(), {"+ */", "- *"});
  return rules;
}

Result<DownloadReport> download_dataset(const DownloadOptions& options, const std::stop_token& stop,
                                        Progress* progress) {
  return Download(options, stop, progress).run();
}

}  // namespace millrace::lerobot
