// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <stop_token>

#include "millrace/base/text/units.h"
#include "millrace/cli/command.h"
#include "millrace/cli/link_status.h"
#include "millrace/cli/task_flag.h"
#include "millrace/link/guardian.h"
#include "millrace/link/release.h"
#include "millrace/link/run.h"
#include "millrace/link/wait.h"

namespace millrace::cli {

namespace {

namespace fs = std::filesystem;

struct LinkArgs {
  link::LinkConfig config;
  std::string imports, exports, both_deletes, here_deletes, bucket_deletes;
  std::string quiet, poll, poll_most, take_over;
  std::vector<std::string> names;
  bool once = false, no_watch = false;
  std::string listen, secret_file, queue, task;
  std::string path, timeout, older_than, order, next_use, watermarks, stall_time;
  std::vector<std::string> pins;
  double keep_free = 0;
  bool dry_run = false;
  std::string patience;
  int group = -1;
  bool end = false;
  bool force = false;
};

double seconds_of(const std::string& flag, const std::string& text) {
  return usage_value(flag, parse_duration(text)).count();
}

link::HsmLimits hsm_limits(const LinkArgs& args) {
  link::HsmLimits limits;
  if (!args.stall_time.empty()) limits.stall_s = seconds_of("--stall-time", args.stall_time);
  return limits;
}

void add_stall_time(CLI::App& app, LinkArgs& args) {
  app.add_option(
         "--stall-time", args.stall_time,
         "For a link with --hsm: give up files that the HSM has made no progress with for this long (default: 5m)")
      ->option_text("TIME");
}

void check_add(LinkArgs& args) {
  link::LinkConfig& config = args.config;
  if (!args.imports.empty()) config.imports = usage_value("--import", link::parse_carries(args.imports));
  if (!args.exports.empty()) config.exports = usage_value("--export", link::parse_carries(args.exports));
  const auto removal = [](const std::string& flag, const std::string& text, link::Removal& rule, bool carried,
                          const char* side) {
    if (text.empty()) return;
    rule = usage_value(flag, link::parse_removal(text));
    if (!carried) throw CLI::ValidationError(flag, fmt::format("goes with {} ...,deleted", side));
  };
  const bool any = config.imports.deleted || config.exports.deleted;
  removal("--delete", args.both_deletes, config.here, any, "--import or --export");
  if (!args.both_deletes.empty()) config.there = config.here;
  removal("--delete-here", args.here_deletes, config.here, config.imports.deleted, "--import");
  removal("--delete-bucket", args.bucket_deletes, config.there, config.exports.deleted, "--export");
  if (!args.quiet.empty()) config.quiet_s = seconds_of("--quiet-time", args.quiet);
  if (!args.poll.empty()) config.poll_least_s = seconds_of("--poll", args.poll);
  if (!args.poll_most.empty()) config.poll_most_s = seconds_of("--poll-most", args.poll_most);
  config.poll_most_s = std::max(config.poll_most_s, config.poll_least_s);
  if (config.poll_least_s < 0.1) throw CLI::ValidationError("--poll", "is 100ms or more");
  if (!args.take_over.empty()) {
    config.take_over_s = seconds_of("--take-over", args.take_over);
    if (config.take_over_s < 1) throw CLI::ValidationError("--take-over", "is 1s or more");
  }
  if (!args.watermarks.empty()) {
    std::string watermarks = args.watermarks;  // 10:20 or 10%:20%
    std::erase(watermarks, '%');
    const size_t colon = std::min(watermarks.find(':'), watermarks.size());
    const auto low = parse_whole(watermarks.substr(0, colon));
    const auto high = parse_whole(watermarks.substr(std::min(colon + 1, watermarks.size())));
    if (!low || !high || *low < 1 || *high < *low || *high > 99) {
      throw CLI::ValidationError("--keep-free", "two percentages, 10:20: the first is not above the second");
    }
    config.release_below = static_cast<double>(*low) / 100;
    config.release_until = static_cast<double>(*high) / 100;
  }
  if (!config.next_use.empty()) {
    if (args.watermarks.empty()) throw CLI::ValidationError("--next-use", "goes with --keep-free");
    config.next_use = fs::absolute(config.next_use).string();
  }
  while (config.url.size() > 1 && config.url.ends_with('/')) config.url.pop_back();
  if (config.name.empty()) {
    std::string folder = config.directory;
    while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
    config.name = fs::path(folder).filename().string();
  }
}

Status run_link_add(const LinkArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const std::string links, link::links_folder());
  RETURN_IF_ERROR(link::add_link(links, args.config));
  ASSIGN_OR_RETURN(const link::LinkConfig config, link::read_link(links, args.config.name));
  context.out.print_done({{"type", "link"},
                          {"name", config.name},
                          {"directory", config.directory},
                          {"url", config.url},
                          {"import", link::carries_text(config.imports)},
                          {"export", link::carries_text(config.exports)},
                          {"conflict", link::conflict_rule_name(config.conflict)}},
                         fmt::format("{}: {} and {}; start it with `millrace link run {}`\n", config.name,
                                     config.directory, config.url, config.name));
  return {};
}

Status run_link_join(const LinkArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const std::string links, link::links_folder());
  ASSIGN_OR_RETURN(const link::LinkConfig config, link::join_link(links, args.config.directory, args.config.name));
  context.out.print_done(
      {{"type", "link_joined"}, {"name", config.name}, {"directory", config.directory}, {"url", config.url}},
      fmt::format("{}: {} and {}; `millrace link run {}` carries, or stands by while another node does\n", config.name,
                  config.directory, config.url, config.name));
  return {};
}

Status run_link_rm(const LinkArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const std::string links, link::links_folder());
  for (const std::string& name : args.names) {
    ASSIGN_OR_RETURN(const link::LinkConfig config, link::read_link(links, name));
    int64_t released = 0;
    if (const auto state = link::LinkState::open_to_read(link::home_of(links, name).state_path())) {
      ASSIGN_OR_RETURN(const link::StateCounts counts, (*state)->counts());
      released = counts.released;
    }
    if (released > 0 && !args.force) {
      return fail(
          ErrorCode::kInvalidArgument,
          "{} has {} released files, whose content is in the bucket only: `millrace link restore {}` first, or, "
          "where the directory is gone or needs no content, `millrace link rm --force {}`",
          name, released, config.directory, name);
    }
    if (!config.show_at.empty()) {
      const Status ended = link::end_guardian(config, link::home_of(links, name));
      if (!ended && ended.error().code() != ErrorCode::kNotFound) return ended;
    }
    RETURN_IF_ERROR(link::remove_link(links, name));
    context.out.print_done({{"type", "link_removed"}, {"name", name}},
                           fmt::format("{} is removed; files and objects stay\n", name));
  }
  return {};
}

// All links, or those that are named.
Result<std::vector<link::LinkConfig>> chosen_links(const std::string& links, const std::vector<std::string>& names) {
  if (names.empty()) {
    ASSIGN_OR_RETURN(std::vector<link::LinkConfig> all, link::read_links(links));
    if (!all.empty()) return all;
    return fail(ErrorCode::kNotFound, "there is no link yet (in {}): `millrace link add DIRECTORY URL` makes one",
                links);
  }
  std::vector<link::LinkConfig> chosen;
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(link::LinkConfig config, link::read_link(links, name));
    chosen.push_back(std::move(config));
  }
  return chosen;
}

void print_link_event(const std::string& name, const link::LinkEvent& event, Output& out) {
  const std::string moved = event.size > 0 ? "  " + format_bytes(event.size) : "";
  out.print_done(
      {{"type", "link_event"},
       {"link", name},
       {"event", event.kind},
       {"path", event.path},
       {"bytes", event.size},
       {"moved_bytes", event.moved_bytes},
       {"reason", event.text}},
      fmt::format("{}  {:12}  {}{}  ({})\n", name, event.kind, printable(event.path), moved, printable(event.text)));
}

// The lines of a file, without empty ones.
Result<std::vector<std::string>> read_lines(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream in(path);
  if (!in) return tl::unexpected<Error>(errno_error(errno, "open " + path));
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

// Each link on a thread of its own; all share one engine, and so its memory.
Status run_link_run(const LinkArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const std::string links, link::links_folder());
  ASSIGN_OR_RETURN(const std::vector<link::LinkConfig> chosen, chosen_links(links, args.names));
  ASSIGN_OR_RETURN(const std::unique_ptr<sync::TransferEngine> engine, sync::TransferEngine::create());
  link::NoticeBoard board;
  std::unique_ptr<http::Listener> listener;
  if (!args.listen.empty()) {
    std::string secret;
    if (!args.secret_file.empty()) {
      ASSIGN_OR_RETURN(const std::vector<std::string> lines, read_lines(args.secret_file));
      if (lines.empty()) return fail(ErrorCode::kInvalidArgument, "{} holds no secret", args.secret_file);
      secret = lines.front();
    }
    ASSIGN_OR_RETURN(listener, link::listen_for_notices(args.listen, secret, board));
    context.out.note("link run: takes notices at http://" + listener->bound());
  }
  std::unique_ptr<link::SqsQueue> queue;
  std::set<std::string> buckets;
  if (!args.queue.empty()) {
    ASSIGN_OR_RETURN(queue, link::SqsQueue::open(args.queue));
    for (const link::LinkConfig& config : chosen) buckets.insert(link::bucket_and_prefix(config.url).first);
  }
  if (!args.once) {
    for (const link::LinkConfig& config : chosen) {
      context.out.note(
          fmt::format("{}: keeps {} and {} in step until it is stopped", config.name, config.directory, config.url));
    }
  }
  std::vector<Status> ended(chosen.size());
  std::atomic<size_t> running = chosen.size();
  std::stop_source queue_stop;
  const std::stop_callback stops_queue(context.stop, [&] { queue_stop.request_stop(); });
  {
    std::vector<Thread> threads;
    if (queue) {
      threads.emplace_back("mr-queue", [&] {
        link::read_queue(
            *queue, buckets, board, [&](const std::string& text) { context.out.note("link run: " + text); },
            queue_stop.get_token());
      });
    }
    for (size_t i = 0; i < chosen.size(); ++i) {
      threads.emplace_back("mr-link", [&, i] {
        const link::LinkConfig& config = chosen[i];
        link::RunOptions options{
            .once = args.once, .watch = !args.no_watch, .shares = !args.task.empty(), .notices = &board};
        options.on_event = [&](const link::LinkEvent& event) {
          print_link_event(config.name, event, context.out);
          // A run without an end tells by `link status`: what failed may be mended by then.
          if (args.once && event.kind == "fail") context.out.count_finding();
        };
        options.on_note = [&](const std::string& text) { context.out.note(config.name + ": " + text); };
        ended[i] = link::run_link(config, link::home_of(links, config.name), *engine, options, context.stop);
        if (!ended[i] && chosen.size() > 1) context.out.note(config.name + ": ended: " + ended[i].error().to_string());
        if (--running == 0) queue_stop.request_stop();
      });
    }
  }
  for (const Status& status : ended) RETURN_IF_ERROR(status);
  return {};
}

Status run_link_guard(const LinkArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const std::string links, link::links_folder());
  const std::string& name = args.names.front();
  ASSIGN_OR_RETURN(const link::LinkConfig config, link::read_link(links, name));
  const link::LinkHome home = link::home_of(links, name);
  if (config.show_at.empty()) {
    return fail(ErrorCode::kInvalidArgument, "{} needs no guardian: it was added without --show-at", name);
  }
  if (args.end) {
    RETURN_IF_ERROR(link::end_guardian(config, home));
    context.out.print_done({{"type", "link_guardian_ended"}, {"name", name}},
                           fmt::format("{}: the guardian has ended, and {} is empty\n", name, config.show_at));
    return {};
  }
  link::GuardianOptions options{.group = args.group};
  options.on_note = [&](const std::string& text) { context.out.note(name + ": " + text); };
  if (!args.patience.empty()) {
    options.patience = std::chrono::milliseconds(static_cast<int64_t>(1e3 * seconds_of("--patience", args.patience)));
  }
  return link::run_guardian(config, home, options, context.stop);
}

Status run_link_status(const LinkArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const std::string links, link::links_folder());
  ASSIGN_OR_RETURN(const std::vector<link::LinkConfig> chosen, chosen_links(links, args.names));
  for (const link::LinkConfig& config : chosen) {
    RETURN_IF_ERROR(print_link_status(config, link::home_of(links, config.name), context));
  }
  return {};
}

Result<link::LinkedPath> linked_path(const std::string& typed) {
  ASSIGN_OR_RETURN(const std::string links, link::links_folder());
  return link::find_linked(links, typed);
}

Status run_link_wait(const LinkArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const link::LinkedPath path, linked_path(args.path));
  std::optional<std::chrono::duration<double>> timeout;
  if (!args.timeout.empty()) timeout = std::chrono::duration<double>(seconds_of("--within", args.timeout));
  ASSIGN_OR_RETURN(const link::WaitReport report,
                   link::wait_for(path.config, path.home, path.below, timeout, context.stop, nullptr));
  if (report.filtered + report.passed > 0) {
    context.out.note(fmt::format("link wait: does not ask about {} that the filter leaves out and {} links or devices",
                                 counted(report.filtered, "file"), report.passed));
  }
  Json proofs = Json::object();
  std::string by = report.files == 0 ? "there is none" : "";
  for (const auto& [proof, files] : report.proofs) {
    proofs[proof] = files;
    by += fmt::format("{}{} by {}", by.empty() ? "" : ", ", format_count(files), proof);
  }
  context.out.print_done(
      {{"type", "link_wait"},
       {"link", path.config.name},
       {"path", path.below},
       {"files", report.files},
       {"bytes", report.bytes},
       {"proofs", proofs},
       {"filtered", report.filtered},
       {"passed", report.passed},
       {"seconds", report.seconds}},
      fmt::format("{}, {}, proven to be in the bucket ({}) after {}\n", counted(report.files, "file"),
                  format_bytes(report.bytes), by, format_duration(report.seconds)));
  return {};
}

Status run_link_release(const LinkArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const link::LinkedPath path, linked_path(args.path));
  link::ReleaseOptions options{
      .home = path.home, .below = path.below, .keep_free = args.keep_free / 100, .dry_run = args.dry_run};
  if (!args.older_than.empty()) options.older_than_s = seconds_of("--older-than", args.older_than);
  options.pins = args.pins;
  options.hsm = hsm_limits(args);
  if (!args.next_use.empty()) {
    ASSIGN_OR_RETURN(options.next_use, link::read_order(path.config, args.next_use));
  }
  options.on_file = [&](const std::string& file, int64_t size, const std::string& left) {
    context.out.print_done(
        {{"type", "link_release_file"}, {"path", file}, {"bytes", size}, {"left", left}, {"dry_run", args.dry_run}},
        left.empty() ? fmt::format("{}  {}  {}\n", args.dry_run ? "would release" : "released", printable(file),
                                   format_bytes(size))
                     : fmt::format("left  {}: {}\n", printable(file), printable(left)),
        args.dry_run);
  };
  ASSIGN_OR_RETURN(const auto state, link::LinkState::open(path.home.state_path()));
  ASSIGN_OR_RETURN(const Location here, open_url(path.config.directory));
  ASSIGN_OR_RETURN(const link::ReleaseReport report, link::release(path.config, here, *state, options, context.stop));
  context.out.print({{"type", "link_release"},
                     {"link", path.config.name},
                     {"files", report.files},
                     {"bytes", report.bytes},
                     {"left", report.left},
                     {"free_share", report.free_share},
                     {"dry_run", args.dry_run}},
                    fmt::format("{}{}, {}; {} stay; {:.1f} % of the file system is free\n",
                                args.dry_run ? "would release " : "released ", counted(report.files, "file"),
                                format_bytes(report.bytes), report.left, 100 * report.free_share));
  return {};
}

Status run_link_restore(const LinkArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const link::LinkedPath path, linked_path(args.path));
  link::RestoreOptions options{.below = path.below, .hsm = hsm_limits(args), .dry_run = args.dry_run};
  if (!args.order.empty()) {
    ASSIGN_OR_RETURN(options.order, link::read_order(path.config, args.order));
  }
  options.on_file = [&](const std::string& file, int64_t size, const std::string& error) {
    context.out.print_done(
        {{"type", "link_restore_file"}, {"path", file}, {"bytes", size}, {"error", error}, {"dry_run", args.dry_run}},
        error.empty() ? "" : fmt::format("failed  {}: {}\n", printable(file), printable(error)));
    if (!error.empty()) context.out.count_finding();
  };
  ASSIGN_OR_RETURN(const auto state, link::LinkState::open(path.home.state_path()));
  ASSIGN_OR_RETURN(const Location here, open_url(path.config.directory));
  ASSIGN_OR_RETURN(const Location there, open_url(path.config.url));
  ASSIGN_OR_RETURN(const auto engine, sync::TransferEngine::create());
  Progress progress;
  const auto view = context.out.watch(progress, "restore");
  ASSIGN_OR_RETURN(const link::RestoreReport report,
                   link::restore(path.config, here, there, *state, *engine, options, context.stop, &progress));
  context.out.print({{"type", "link_restore"},
                     {"link", path.config.name},
                     {"files", report.files},
                     {"bytes", report.bytes},
                     {"failed", report.failed},
                     {"dry_run", args.dry_run}},
                    fmt::format("{}{}, {}\n", args.dry_run ? "would restore " : "restored ",
                                counted(report.files, "file"), format_bytes(report.bytes)));
  return {};
}

void add_link_add(Verbs& verbs, CLI::App& group) {
  auto args = std::make_shared<LinkArgs>();
  CLI::App& app = verbs.add(
      group, "add", "Declare a link: a directory, a bucket and the rules between them; nothing is copied yet",
      {"millrace link add /fsx/datasets s3://bucket/datasets",
       "millrace link add /fsx/run1 s3://bucket/run1 --import none --export new,changed",
       "millrace link add /fsx/d s3://bucket/d --import new,changed,deleted --delete trash:7d"},
      [args](Context& context) { return run_link_add(*args, context); }, [args] { check_add(*args); });
  app.add_option("DIRECTORY", args->config.directory, "An existing directory that belongs to no other link")
      ->required()
      ->option_text(" ");
  app.add_option("URL", args->config.url, "s3://bucket/prefix, or another directory")->required()->option_text(" ");
  app.add_option("--name", args->config.name, "Name of the link (default: the directory's name)")->option_text("NAME");
  app.add_option("--import", args->imports, "Changes that the directory takes from the bucket (default: new,changed)")
      ->option_text("new,changed,deleted|none");
  app.add_option("--export", args->exports, "Changes that the bucket takes from the directory (default: new,changed)")
      ->option_text("new,changed,deleted|none");
  app.add_option("--delete", args->both_deletes, "What a removal does to the other side's copy (default: trash:7d)")
      ->option_text("propagate|trash:TIME");
  app.add_option("--delete-here", args->here_deletes, "As --delete, for files of the directory only")
      ->option_text("propagate|trash:TIME");
  app.add_option("--delete-bucket", args->bucket_deletes, "As --delete, for objects of the bucket only")
      ->option_text("propagate|trash:TIME");
  app.add_option("--max-delete", args->config.max_delete,
                 "Remove nothing from a side if more than N would be removed (default: 1000)")
      ->check(CLI::Range(int64_t{0}, kMaxCount))
      ->option_text("N");
  add_choice_flag(
      app, "--conflict", {"both", "bucket", "directory", "newest"},
      [args](const std::string& rule) { args->config.conflict = *link::parse_conflict_rule(rule); },
      "Version to keep where both sides changed (default: both, the directory's under another name)");
  app.add_option("--quiet-time", args->quiet,
                 "Treat a file as finished when it has not changed for this long (default: 2s)")
      ->option_text("TIME");
  app.add_option("--poll", args->poll, "Time between two listings of the bucket while it changes (default: 2s)")
      ->option_text("TIME");
  app.add_option("--poll-most", args->poll_most,
                 "Longest time between two listings while nothing changes (default: 60s)")
      ->option_text("TIME");
  app.add_flag("--lazy", args->config.lazy,
               "Imported files have no content until `link restore` brings it; not for root without --show-at");
  app.add_option("--show-at", args->config.show_at,
                 "With --lazy, as root: show the directory here too, where any program that opens a file without "
                 "content waits until it is there")
      ->option_text("EMPTY_DIRECTORY")
      ->needs("--lazy");
  app.add_flag("--hsm", args->config.hsm,
               "Release and restore by the HSM of the directory's Lustre or FSx (lfs hsm_release, hsm_restore)")
      ->excludes("--lazy");
  app.add_option("--changelog", args->config.changelog,
                 "Changelog of Lustre that tells of changes by other nodes: lustre-MDT0000:cl1 (needs root and lfs)")
      ->option_text("MDT:USER");
  app.add_option(
         "--take-over", args->take_over,
         "Several nodes may run the link (`link join`): one does; another takes over when that one has been silent "
         "for this time (30s)")
      ->option_text("TIME");
  app.add_option("--keep-free", args->watermarks,
                 "While it runs, release files when less than LOW percent of the file system is free, until HIGH "
                 "percent are free")
      ->option_text("LOW:HIGH");
  app.add_option("--pin", args->config.pins, "Never release files that match (rsync's rules)")
      ->option_text("PATTERN")
      ->expected(1)
      ->take_all();
  app.add_option("--next-use", args->config.next_use,
                 "File of paths in the order of their next use, read again each time; --keep-free releases them last")
      ->option_text("FILE");
  for (const auto& [flag, sign, text] :
       {std::tuple("--include", "+ ", "Carry matching files (rsync's rules; the first match decides)"),
        std::tuple("--exclude", "- ", "Leave matching files alone on both sides")}) {
    app.add_option_function<std::vector<std::string>>(
           flag, [](const std::vector<std::string>&) {}, text)
        ->option_text("PATTERN")
        ->expected(1)
        ->take_all()
        ->each([args, sign = std::string(sign)](const std::string& pattern) {
          args->config.filter.push_back(sign + pattern);
        });
  }
}

void add_link_paths(Verbs& verbs, CLI::App& group) {
  auto wait = std::make_shared<LinkArgs>();
  CLI::App& waits = verbs.add(
      group, "wait", "Wait until every file below PATH is proven to be in the bucket",
      {"millrace link wait /fsx/run1/checkpoints/step-1000", "millrace link wait /fsx/run1 --within 10m",
       "millrace link wait . --json"},
      [wait](Context& context) { return run_link_wait(*wait, context); },
      [wait] {
        if (!wait->timeout.empty()) seconds_of("--within", wait->timeout);
      });
  waits.add_option("PATH", wait->path, "A file or a directory of a link")->required()->option_text(" ");
  waits.add_option("--within", wait->timeout, "Give up after this time (default: never)")->option_text("TIME");

  auto release = std::make_shared<LinkArgs>();
  CLI::App& releases = verbs.add(
      group, "release", "Give the blocks of files back whose content is proven to be in the bucket",
      {"millrace link release /fsx/datasets --older-than 3d", "millrace link release /fsx/datasets --keep-free 20",
       "millrace link release /fsx/datasets --keep-free 20 --next-use shards.txt --pin '*.json'"},
      [release](Context& context) { return run_link_release(*release, context); },
      [release] {
        if (!release->older_than.empty()) seconds_of("--older-than", release->older_than);
        hsm_limits(*release);
      });
  releases.add_option("PATH", release->path, "A file or a directory of a link")->required()->option_text(" ");
  releases.add_option("--older-than", release->older_than, "Only files that were not used for this long")
      ->option_text("TIME");
  releases
      .add_option("--keep-free", release->keep_free,
                  "Stop when this percentage of the file system is free; the longest unused files go first")
      ->transform(CLI::Validator(
          [](std::string& text) {
            if (text.ends_with('%')) text.pop_back();
            return std::string();
          },
          ""))
      ->check(CLI::Range(0.0, 100.0))
      ->option_text("PERCENT");
  releases
      .add_option("--pin", release->pins, "Leave files that match (rsync's rules), beside those that `link add` pinned")
      ->option_text("PATTERN")
      ->expected(1)
      ->take_all();
  releases
      .add_option("--next-use", release->next_use,
                  "File of paths, one a line, in the order in which training will use them: they go last, the latest "
                  "used first")
      ->option_text("FILE")
      ->needs("--keep-free");
  add_stall_time(releases, *release);
  releases.add_flag("--dry-run", release->dry_run, "Show what would be released");

  auto restore = std::make_shared<LinkArgs>();
  CLI::App& restores = verbs.add(
      group, "restore", "Bring the content of released files back",
      {"millrace link restore /fsx/datasets", "millrace link restore /fsx/datasets --order shards.txt",
       "millrace link restore /fsx/datasets/part-3 --dry-run"},
      [restore](Context& context) { return run_link_restore(*restore, context); }, [restore] { hsm_limits(*restore); });
  restores.add_option("PATH", restore->path, "A file or a directory of a link")->required()->option_text(" ");
  restores.add_option("--order", restore->order, "File of paths, one a line, that come first")->option_text("FILE");
  add_stall_time(restores, *restore);
  restores.add_flag("--dry-run", restore->dry_run, "Show what would be restored");
}

}  // namespace

void add_link(Verbs& verbs) {
  CLI::App& group = verbs.add_group("link", "Keep a directory and a bucket in step (what FSx calls a DRA)");
  add_link_add(verbs, group);
  auto join = std::make_shared<LinkArgs>();
  CLI::App& joins = verbs.add(group, "join", "Take part on this node in a link that another node made (--take-over)",
                              {"millrace link join /fsx/datasets", "millrace link join /fsx/datasets --name data",
                               "millrace link join . --json"},
                              [join](Context& context) { return run_link_join(*join, context); });
  joins.add_option("DIRECTORY", join->config.directory, "The link's, as this node sees it")
      ->required()
      ->option_text(" ");
  joins.add_option("--name", join->config.name, "Name of the link on this node (default: the same as there)")
      ->option_text("NAME");

  auto run = std::make_shared<LinkArgs>();
  CLI::App& runs = verbs.add(
      group, "run", "Keep links in step until stopped by Ctrl-C or SIGTERM",
      {"millrace link run", "millrace link run datasets --task 3/16",
       "millrace link run --queue https://sqs.eu-central-1.amazonaws.com/123456789012/datasets"},
      [run](Context& context) { return run_link_run(*run, context); },
      [run, &verbs] {
        if (!run->task.empty()) share_budgets(run->task, verbs.url_options());
      });
  runs.add_option("NAME", run->names, "Links (default: all of this user on this machine)")->option_text("...");
  runs.add_flag("--once", run->once, "Look at everything once, wait for files that are not finished, and end");
  runs.add_option(
          "--listen", run->listen,
          "Take notices of buckets here, by POST: Ceph's push endpoint, S3 events forwarded by SNS or a function")
      ->option_text("[HOST:]PORT");
  runs.add_option("--secret-file", run->secret_file,
                  "File whose first line every notice must carry (OpaqueData of Ceph's topic)")
      ->option_text("FILE");
  runs.add_option("--queue", run->queue,
                  "Take notices of buckets from this SQS queue: S3 events, sent there directly or by SNS")
      ->option_text("URL")
      ->excludes("--once");
  runs.add_option("--task", run->task,
                  "Do share I of N of the work of a link with --take-over (I from 0); slurm: take both from Slurm")
      ->option_text("I/N|slurm");
  runs.add_flag("--no-watch", run->no_watch, "Find changes of the directory by looking, not by inotify");

  auto guard = std::make_shared<LinkArgs>();
  CLI::App& guards = verbs.add(
      group, "guard", "Let programs that open files without content wait for it (--show-at); `link run` starts it",
      {"millrace link guard datasets", "millrace link guard datasets --patience 5m",
       "millrace link guard datasets --end"},
      [guard](Context& context) { return run_link_guard(*guard, context); },
      [guard] {
        if (!guard->patience.empty()) seconds_of("--patience", guard->patience);
      });
  guards.add_option("NAME", guard->names, "A link that was added with --show-at")
      ->required()
      ->expected(1)
      ->option_text(" ");
  guards
      .add_option("--patience", guard->patience,
                  "Time that programs wait for the next `link run` when the last one died (default: 30s)")
      ->option_text("TIME");
  guards.add_option("--group-fd", guard->group)->group("");  // what a guardian that died leaves to the next one
  guards.add_flag("--end", guard->end,
                  "End the guardian of this link, unless a program uses the shown directory or the link runs");

  auto status = std::make_shared<LinkArgs>();
  CLI::App& statuses =
      verbs.add(group, "status", "Show what links did, what waits and what went wrong; status 3 when something did",
                {"millrace link status", "millrace link status datasets", "millrace link status --json"},
                [status](Context& context) { return run_link_status(*status, context); });
  statuses.add_option("NAME", status->names, "Links (default: all)")->option_text("...");
  add_link_paths(verbs, group);

  auto rm = std::make_shared<LinkArgs>();
  CLI::App& rms = verbs.add(group, "rm", "Forget a link; files and objects stay",
                            {"millrace link rm datasets", "millrace link rm a b", "millrace link rm datasets --json"},
                            [rm](Context& context) { return run_link_rm(*rm, context); });
  rms.add_option("NAME", rm->names, "Links")->required()->option_text("...");
  rms.add_flag("--force", rm->force, "Also a link with released files, which then stay without content");
}

}  // namespace millrace::cli
