// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/cli/lint_flags.h"
#include "millrace/pcluster/new.h"

namespace millrace::cli {

namespace {

struct ClusterNewArgs {
  std::string spec, out;
  pcluster::Version version;
  bool force = false;
};

Status write_new_file(const std::string& path, const std::string& text, bool force) {
  std::error_code unknown;
  if (!force && std::filesystem::exists(path, unknown)) {
    return fail(ErrorCode::kAlreadyExists, "{} is there already; --force replaces it", path);
  }
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) return fail(ErrorCode::kPermissionDenied, "cannot write {}", path);
  return {};
}

Status run_cluster_new(const ClusterNewArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const std::string spec, read_lint_input(args.spec));
  ASSIGN_OR_RETURN(const std::string text, pcluster::new_config(spec, args.spec, args.version));
  if (args.out.empty()) {
    context.out.print({{"type", "cluster_file"}, {"pcluster", to_string(args.version)}, {"text", text}}, text);
    return {};
  }
  RETURN_IF_ERROR(write_new_file(args.out, text, args.force));
  context.out.print({{"type", "cluster_file"}, {"pcluster", to_string(args.version)}, {"file", args.out}},
                    fmt::format("wrote {}\n", printable(args.out)));
  return {};
}

}  // namespace

void add_cluster_new(Verbs& verbs, CLI::App& group) {
  auto args = std::make_shared<ClusterNewArgs>();
  CLI::App& app = verbs.add(group, "new", "Write a ParallelCluster file from a dozen lines",
                            {"millrace cluster new spec.yaml", "millrace cluster new spec.yaml --out cluster.yaml",
                             "millrace cluster new spec.yaml --pcluster 3.11.1 --out cluster.yaml --force"},
                            [args](Context& context) { return run_cluster_new(*args, context); });
  app.add_option("SPEC", args->spec, "Region, instances, storage and buckets as YAML; - is standard input")
      ->required()
      ->option_text(" ");
  app.add_option("--out", args->out, "Write here (default: standard output)")->option_text("FILE");
  app.add_flag("--force", args->force, "Replace an existing file");
  app.add_option_function<std::string>(
         "--pcluster",
         [args](const std::string& text) { args->version = usage_value("--pcluster", pcluster::parse_version(text)); },
         "The version of ParallelCluster to write for (default: the newest that is known, 3.16.3)")
      ->option_text("VERSION");
}

}  // namespace millrace::cli
