// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "millrace/cli/transfer_flags.h"
#include "millrace/sync/cp.h"

namespace millrace::cli {

void add_cp(Verbs& verbs) {
  struct Args : TransferArgs {
    bool recursive = false;
  };
  auto args = std::make_shared<Args>();
  CLI::App& app = verbs.add(
      verbs.root(), "cp", "Copy an object, or a tree with --recursive",
      {"millrace cp model.safetensors s3://bucket/models/", "millrace cp shards s3://bucket/shards --recursive",
       "millrace cp raw/corpus.jsonl /fsx/raw/ --posix --dry-run"},
      [args](Context& context) {
        return run_transfer(
            "cp", *args,
            [&](const sync::SyncOptions& options, std::stop_token stop, Progress* progress) {
              return sync::cp(args->source, args->target, args->recursive, options, stop, progress);
            },
            context);
      });
  add_source_and_target(app, args->source, args->target);
  app.add_flag("-r,--recursive", args->recursive, "Everything below SRC, to the same paths below DST");
  add_transfer_flags(app, *args);
}

}  // namespace millrace::cli
