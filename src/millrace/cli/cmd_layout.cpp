// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/base/text/units.h"
#include "millrace/cli/lint_flags.h"
#include "millrace/layout/layout.h"

namespace millrace::cli {

namespace {

struct LayoutArgs {
  std::string file;
  bool dry_run = false;
};

Result<layout::Layout> read_layout(const LayoutArgs& args) {
  ASSIGN_OR_RETURN(const std::string text, read_lint_input(args.file));
  return layout::parse_layout(text, args.file);
}

std::string state_text(const layout::DirectoryState& state) {
  std::string text = state.created ? "created" : "";
  if (!state.mended.empty()) text = fmt::format("mended: {}", fmt::join(state.mended, "; "));
  if (!state.differences.empty())
    text += fmt::format("{}{}", text.empty() ? "" : "; ", fmt::join(state.differences, "; "));
  return text.empty() ? "as declared" : text;
}

void print_mounts(const std::vector<layout::MountState>& mounts, Output& out) {
  TextTable table({{"mount"}, {"type"}, {"size", true}, {"free", true}, {"state"}});
  for (const layout::MountState& mount : mounts) {
    table.add({mount.path, mount.type.empty() ? "-" : mount.type, mount.ready ? format_bytes(mount.size_bytes) : "-",
               mount.ready ? format_bytes(mount.free_bytes) : "-", mount.ready ? "ready" : "not mounted"});
    out.print_json({{"type", "layout_mount"},
                    {"path", mount.path},
                    {"filesystem", mount.type},
                    {"ready", mount.ready},
                    {"bytes", mount.size_bytes},
                    {"free", mount.free_bytes}});
  }
  out.print_text(table.to_string() + "\n");
}

void print_directories(const std::vector<layout::DirectoryState>& directories, Output& out) {
  TextTable table({{"directory"}, {"mode", true}, {"owner"}, {"group"}, {"stripe"}, {"state"}});
  for (const layout::DirectoryState& state : directories) {
    const std::string mode = state.exists ? fmt::format("{:o}", state.mode) : "-";
    const auto or_dash = [](const std::string& text) { return text.empty() ? std::string("-") : text; };
    table.add({state.path, mode, or_dash(state.owner), or_dash(state.group), or_dash(state.stripe), state_text(state)});
    out.print_json({{"type", "layout_directory"},
                    {"path", state.path},
                    {"exists", state.exists},
                    {"mode", mode},
                    {"owner", state.owner},
                    {"group", state.group},
                    {"stripe", state.stripe},
                    {"created", state.created},
                    {"mended", state.mended},
                    {"differences", state.differences}});
  }
  out.print_text(table.to_string());
}

// Remaining differences make the exit status 3.
void print_layout(const layout::Report& report, Context& context) {
  print_mounts(report.mounts, context.out);
  print_directories(report.directories, context.out);
  int64_t created = 0, mended = 0, different = 0;
  for (const layout::DirectoryState& state : report.directories) {
    created += state.created ? 1 : 0;
    mended += state.mended.empty() ? 0 : 1;
    different += state.differences.empty() ? 0 : 1;
    if (!state.differences.empty()) context.out.count_finding();
  }
  const auto all = static_cast<int64_t>(report.directories.size());
  context.out.print({{"type", "layout_summary"},
                     {"directories", all},
                     {"created", created},
                     {"mended", mended},
                     {"different", different}},
                    fmt::format("{}: {} created, {} mended, {} not as declared\n",
                                all == 1 ? "1 directory" : fmt::format("{} directories", format_count(all)), created,
                                mended, different));
}

Status run_layout_show(const LayoutArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const layout::Layout wanted, read_layout(args));
  ASSIGN_OR_RETURN(const layout::Report report, layout::show_layout(wanted));
  print_layout(report, context);
  return {};
}

Status run_layout_apply(const LayoutArgs& args, Context& context) {
  if (args.dry_run) return run_layout_show(args, context);
  ASSIGN_OR_RETURN(const layout::Layout wanted, read_layout(args));
  const auto waiting = [&](const std::string& mount) { context.out.note("waiting for " + printable(mount)); };
  ASSIGN_OR_RETURN(const layout::Report report, layout::apply_layout(wanted, context.stop, waiting));
  print_layout(report, context);
  return {};
}

Status run_layout_clean(const LayoutArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const layout::Layout wanted, read_layout(args));
  layout::CleanOptions options{.dry_run = args.dry_run};
  const std::string_view verb = args.dry_run ? "would remove" : "removed";
  options.on_removed = [&](const layout::Removal& removal) {
    context.out.print({{"type", "removed"}, {"path", removal.path}, {"bytes", removal.bytes}},
                      fmt::format("{} {}{}  {}\n", verb, printable(removal.path), removal.directory ? "/" : "",
                                  format_bytes(removal.bytes)));
  };
  ASSIGN_OR_RETURN(const layout::CleanReport report, layout::clean_layout(wanted, options, context.stop));
  std::string text =
      fmt::format("{} {} and {}, {}; {} younger", verb, counted(report.files, "file"),
                  report.directories == 1 ? "1 directory" : fmt::format("{} directories", report.directories),
                  format_bytes(report.bytes), counted(report.kept, "file"));
  if (report.other_mounts > 0) text += fmt::format("; {} other mounts not entered", report.other_mounts);
  context.out.print({{"type", "clean_summary"},
                     {"dry_run", args.dry_run},
                     {"files", report.files},
                     {"directories", report.directories},
                     {"bytes", report.bytes},
                     {"kept", report.kept},
                     {"other_mounts", report.other_mounts},
                     {"failed", report.failed}},
                    text + "\n");
  if (!report.first_failure) return {};
  Error error = *report.first_failure;
  return tl::unexpected(error.add_context(fmt::format("{} stayed, the first", report.failed)));
}

CLI::App& add_layout_verb(Verbs& verbs, CLI::App& group, const std::string& name, const std::string& description,
                          const std::array<std::string, 3>& examples, const std::shared_ptr<LayoutArgs>& args,
                          Status (*run)(const LayoutArgs&, Context&)) {
  CLI::App& app =
      verbs.add(group, name, description, examples, [args, run](Context& context) { return run(*args, context); });
  app.add_option("FILE", args->file, "Mounts, classes and directories as YAML; - is standard input")
      ->required()
      ->option_text(" ");
  return app;
}

}  // namespace

void add_layout(Verbs& verbs) {
  CLI::App& group = verbs.add_group("layout", "Create and check a cluster's directory trees from one declaration");
  auto args = std::make_shared<LayoutArgs>();
  CLI::App& apply =
      add_layout_verb(verbs, group, "apply", "Wait for mounts, make missing directories, correct those that differ",
                      {"millrace layout apply layout.yaml", "millrace layout apply layout.yaml --dry-run",
                       "millrace layout apply layout.yaml --json"},
                      args, run_layout_apply);
  apply.add_flag("--dry-run", args->dry_run, "Say what differs; make no change and do not wait");
  add_layout_verb(
      verbs, group, "show", "Compare a declaration with the file systems",
      {"millrace layout show layout.yaml", "millrace layout show layout.yaml --json", "millrace layout show - --quiet"},
      args, run_layout_show);
  CLI::App& clean = add_layout_verb(verbs, group, "clean", "Remove files that are older than their class allows",
                                    {"millrace layout clean layout.yaml --dry-run", "millrace layout clean layout.yaml",
                                     "millrace layout clean layout.yaml --json"},
                                    args, run_layout_clean);
  clean.add_flag("--dry-run", args->dry_run, "Say what would be removed; remove no file");
}

}  // namespace millrace::cli
