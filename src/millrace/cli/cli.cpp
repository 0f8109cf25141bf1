// SPDX-License-Identifier: Apache-2.0
#include "millrace/cli/cli.h"

#include <algorithm>
#include <csignal>
#include <exception>
#include <span>
#include <string>
#include <string_view>

#include "millrace/base/io/open_files.h"
#include "millrace/base/text/edit_distance.h"
#include "millrace/cli/command.h"
#include "millrace/cli/signals.h"
#include "millrace/link/stub_reader.h"
#include "millrace/storage/url.h"

namespace millrace::cli {

namespace {

constexpr std::string_view kDescription =
    "The path of training data and checkpoints between object storage, parallel file systems, NVMe and GPUs.";

// The innermost verb on the command line, with the verbs above it: "millrace shards check".
const CLI::App& typed_verb(const CLI::App& root, std::string& name) {
  const CLI::App* app = &root;
  name = app->get_name();
  while (!app->get_subcommands().empty()) {
    app = app->get_subcommands().front();
    name += " " + app->get_name();
  }
  return *app;
}

std::string usage_message(const CLI::App& verb, const CLI::ParseError& error) {
  const std::vector<const CLI::App*> below = verb.get_subcommands([](const CLI::App*) { return true; });
  if (below.empty()) return error.what();
  std::string names;
  for (const CLI::App* app : below) names += (names.empty() ? "" : ", ") + app->get_name();
  const std::vector<std::string> rest = verb.remaining();
  if (rest.empty()) return "a verb is missing; there are " + names;
  const bool is_flag = rest.front().starts_with('-');
  return fmt::format("unknown {} '{}'; {} {}", is_flag ? "flag" : "verb", rest.front(),
                     is_flag ? "flags go behind one of the verbs" : "there are", names);
}

// "--nodez" of "--nodez=2", "-z" of "-zq"; empty for any other word: "-", "-5", "--", a value.
std::string_view flag_in(std::string_view argument) {
  if (argument.size() < 2 || argument[0] != '-' || (argument[1] >= '0' && argument[1] <= '9')) return {};
  if (argument[1] == '-') return argument.size() > 2 ? argument.substr(0, argument.find('=')) : std::string_view();
  return argument.substr(0, 2);
}

std::string nearest_flag(const CLI::App& verb, std::string_view wrong) {
  constexpr size_t kNear = 3;
  std::string nearest;
  size_t fewest = kNear + 1;
  for (const CLI::Option* option : verb.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      const size_t distance = edit_distance("--" + name, wrong);
      if (distance >= fewest || distance * 2 > name.size()) continue;
      fewest = distance;
      nearest = "--" + name;
    }
  }
  return nearest;
}

// The first unknown flag. The parser would complain about its value instead, or about an argument that the flag took.
// Empty when all flags are known.
std::string unknown_flag(const CLI::App& verb, std::span<const char* const> arguments) {
  for (const std::string_view argument : arguments) {
    if (argument == "--") break;
    const std::string flag(flag_in(argument));
    if (flag.empty() || verb.get_option_no_throw(flag) != nullptr) continue;
    const std::string nearest = nearest_flag(verb, flag);
    return fmt::format("unknown flag '{}'{}", flag, nearest.empty() ? "" : fmt::format("; {} is meant?", nearest));
  }
  return {};
}

// Parsing stopped before flags were read, so this searches for --json by hand.
bool asks_for_json(int argc, const char* const* argv) {
  return std::any_of(argv, argv + argc, [](const char* argument) { return std::string_view(argument) == "--json"; });
}

int usage_error(const CLI::App& root, const CLI::ParseError& error, std::span<const char* const> arguments, bool json) {
  std::string name;
  const CLI::App& verb = typed_verb(root, name);
  const bool has_verbs = !verb.get_subcommands([](const CLI::App*) { return true; }).empty();
  std::string message = has_verbs ? std::string() : unknown_flag(verb, arguments);
  if (message.empty()) message = usage_message(verb, error);
  Output out({.json = json});
  out.error(name, Error(ErrorCode::kInvalidArgument, message + " (see '" + name + " --help')"));
  return out.flush() ? kExitUsage : kExitFailed;
}

int print_help(const std::string& text) {
  Output out({});
  out.print_text(text);
  return out.flush() ? kExitDone : kExitFailed;
}

// Prints exclusions behind the description of an option. In the column of names they would push the description away.
class HelpFormatter final : public CLI::Formatter {
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string all = CLI::Formatter::make_option_opts(option);
    return all.substr(0, all.find(" Excludes:"));
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    std::string others;
    for (const CLI::Option* other : option->get_excludes()) others += (others.empty() ? "" : ", ") + other->get_name();
    const std::string description = CLI::Formatter::make_option_desc(option);
    return others.empty() ? description : fmt::format("{}; not with {}", description, others);
  }
};

void add_shards(Verbs& verbs) {
  CLI::App& shards = verbs.add_group("shards", "List, check and index shards, and print samples");
  add_shards_ls(verbs, shards);
  add_shards_check(verbs, shards);
  add_shards_index(verbs, shards);
  add_shards_cat(verbs, shards);
}

void add_cluster(Verbs& verbs) {
  CLI::App& cluster = verbs.add_group("cluster", "Write cluster files, and check them without an account");
  add_cluster_new(verbs, cluster);
  add_cluster_lint(verbs, cluster);
}

struct TopVerb {
  std::string_view name;
  void (*add)(Verbs& verbs);
};
// In the order of `millrace --help`.
constexpr TopVerb kVerbs[] = {
    {"cp", add_cp},
    {"mv", add_mv},
    {"sync", add_sync},
    {"ls", add_ls},
    {"rm", add_rm},
    {"verify", add_verify},
    {"stage", add_stage},
    {"cat", add_cat},
    {"split", add_split},
    {"prepare", add_prepare},
    {"shards", add_shards},
    {"ckpt", add_ckpt},
    {"plan", add_plan},
    {"cluster", add_cluster},
    {"job", add_job},
    {"runs", add_runs},
    {"env", add_env},
    {"link", add_link},
    {"monitor", add_monitor},
    {"doctor", add_doctor},
    {"bench", add_bench},
    {"layout", add_layout},
    {"lerobot", add_lerobot},
    {"episodes", add_episodes},
    {"tokenizer", add_tokenizer},
    {"completion", add_completion},
};

// Adds the verb `typed` alone, and none for --version: building the flags of all verbs takes as long as the rest of a
// start. Adds all where `typed` is not a verb, for help and errors, and for completion, which lists them.
void add_verbs(Verbs& verbs, std::string_view typed) {
  if (typed == "--version") return;
  const auto* one = std::ranges::find(kVerbs, typed, &TopVerb::name);
  if (one != std::end(kVerbs) && one->add != add_completion) {
    one->add(verbs);
    return;
  }
  for (const TopVerb& verb : kVerbs) verb.add(verbs);
}

int run_verb(Verbs& verbs, const std::string& name) {
  raise_open_file_limit();
  set_process_url_options(verbs.url_options());
  link::read_stubs_from_buckets();
  const SignalStop signals;
  Output out(verbs.options());
  Context context{out, signals.token()};
  const StopScope stops(signals.token());
  Status status = verbs.chosen()(context);
  const std::optional<int> signal = signals.received();
  const bool stopped = !status && status.error().code() == ErrorCode::kCancelled && signal;
  if (stopped) {
    out.note(fmt::format("{}: stopped by {}", name, *signal == SIGINT ? "SIGINT" : "SIGTERM"));
  } else if (!status) {
    out.error(name, status.error());
  }
  if (const Status flushed = out.flush(); !flushed) {
    out.error(name, flushed.error());
    return kExitFailed;
  }
  if (stopped) return 128 + *signal;
  if (!status) return kExitFailed;
  return out.findings() > 0 ? kExitFindings : kExitDone;
}

int parse_and_run(int argc, const char* const* argv) {
  CLI::App root{std::string(kDescription), "millrace"};
  root.set_version_flag("--version", "millrace " MILLRACE_VERSION);
  root.require_subcommand(1);
  root.formatter(std::make_shared<HelpFormatter>());
  root.get_formatter()->label("SUBCOMMAND", "VERB");
  Verbs verbs(root);
  add_verbs(verbs, argc > 1 ? argv[1] : "");
  try {
    root.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return print_help(root.help());
  } catch (const CLI::CallForVersion& version) {
    return print_help(std::string(version.what()) + "\n");
  } catch (const CLI::ParseError& error) {
    return usage_error(root, error, {argv + 1, argv + std::max(argc, 1)}, asks_for_json(argc, argv));
  }
  std::string name;
  typed_verb(root, name);
  return run_verb(verbs, name);
}

}  // namespace

int run_cli(int argc, const char* const* argv) {
  // Output sees a reader that went away as an error of write.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond `ulimit -f` is an error of its write, not the end of the program
  try {
    return parse_and_run(argc, argv);
  } catch (const std::exception& error) {
    Output({}).error("millrace", Error(ErrorCode::kInternal, error.what()));
    return kExitFailed;
  }
}

}  // namespace millrace::cli
