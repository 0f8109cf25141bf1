// SPDX-License-Identifier: Apache-2.0
#include "millrace/cluster/job_new.h"

#include <gmock/gmock.h>

#include "millrace/cluster/job_lint.h"

namespace millrace::cluster {
namespace {

using testing::HasSubstr;
using testing::Not;

JobSpec spec_of(JobKind kind) {
  JobSpec spec{.kind = kind, .log_dir = "/fsx/logs"};
  spec.command = {"train.py", "--resume", "latest"};
  if (kind != JobKind::kTrain) spec.command.clear();
  spec.inputs = {"/fsx/raw/*.txt"};
  spec.tokenizer = "/fsx/tokenizer.json";
  spec.output = "s3://bucket/shards";
  spec.folder = "/fsx/bench mark";
  if (kind == JobKind::kPreprocess || kind == JobKind::kStorage) spec.gpus_per_node = 0;
  return spec;
}

// Everything that a spec may ask for, kind by kind, without what a kind refuses.
std::vector<JobSpec> all_specs() {
  std::vector<JobSpec> all;
  for (const JobKind kind : {JobKind::kTrain, JobKind::kPreprocess, JobKind::kValidate, JobKind::kNccl,
                             JobKind::kStorage, JobKind::kGroot}) {
    all.push_back(spec_of(kind));
    JobSpec full = spec_of(kind);
    full.name = "a \"b\" #1";
    full.partition = "gpu";
    full.account = "team";
    full.nodes = kind == JobKind::kGroot ? 1 : 4;
    if (full.gpus_per_node > 0) full.gpu_type = "h200";
    full.exclusive = false;
    full.mem_per_gpu = "200G";
    full.efa = full.wait_all_nodes = true;
    full.image = "/fsx/images/a b.sqsh";
    full.mounts = {"/fsx:/fsx", "/nvme:/nvme"};
    full.stage = {{"s3://b/data", "/nvme/data"}};
    full.save = {{"/fsx/out", "s3://b/out"}};
    all.push_back(full);
    full.torchrun = false;
    if (kind == JobKind::kTrain) full.command = {"python", "train.py", "--resume", "it's", "$HOME"};
    full.signal_s = full.monitor_s = 0;
    full.efa = false;
    all.push_back(full);
  }
  return all;
}

TEST(JobNew, WhatIsWrittenPassesTheLint) {
  for (const JobSpec& spec : all_specs()) {
    const auto text = write_job(spec);
    ASSERT_TRUE(text) << text.error().to_string();
    const ScriptFile file{"job.sbatch", *text};
    std::string findings;
    for (const Finding& finding : lint_jobs(std::span(&file, 1))) {
      // The command is the user's; without a signal a long job is theirs to answer for.
      if (finding.rule->id == "SB07" && spec.signal_s == 0) continue;
      findings += finding_text(finding);
    }
    EXPECT_EQ(findings, "") << *text;
  }
}

TEST(JobNew, WordsOfTheUserStayOneWord) {
  JobSpec spec = spec_of(JobKind::kTrain);
  spec.command = {"train.py", "a b", "$(rm -rf x)", "it's"};
  EXPECT_THAT(*write_job(spec), HasSubstr("train.py 'a b' '$(rm -rf x)' 'it'\\''s' &"));
  EXPECT_EQ(shell_quoted(""), "''");
}

TEST(JobNew, WhatIsMissingIsNamed) {
  JobSpec spec;
  EXPECT_THAT(write_job(spec).error().message(), HasSubstr("--log-dir"));
  spec.log_dir = "/l";
  EXPECT_THAT(write_job(spec).error().message(), HasSubstr("COMMAND"));
  spec.command = {"python", "train.py"};
  EXPECT_THAT(write_job(spec).error().message(), HasSubstr("without python"));
  spec.kind = JobKind::kPreprocess;
  EXPECT_THAT(write_job(spec).error().message(), HasSubstr("--input"));
  spec = spec_of(JobKind::kGroot);
  spec.nodes = 2;
  EXPECT_THAT(write_job(spec).error().message(), HasSubstr("one node"));
  spec = spec_of(JobKind::kTrain);
  spec.time = "1h";
  EXPECT_THAT(write_job(spec).error().message(), HasSubstr("1h"));
  spec.time = "60";
  spec.name = "a\nb";
  EXPECT_FALSE(write_job(spec));
}

TEST(JobNew, LaunchersGetTheTasksTheyWant) {
  JobSpec spec = spec_of(JobKind::kTrain);
  EXPECT_THAT(*write_job(spec), HasSubstr("--ntasks-per-node=1\n"));
  EXPECT_THAT(*write_job(spec), HasSubstr("--cpus-per-task=96\n"));
  spec.torchrun = false;
  EXPECT_THAT(*write_job(spec), HasSubstr("--ntasks-per-node=8\n"));
  EXPECT_THAT(*write_job(spec), HasSubstr("--cpus-per-task=12\n"));
  EXPECT_THAT(*write_job(spec), Not(HasSubstr("torchrun")));
}

}  // namespace
}  // namespace millrace::cluster
