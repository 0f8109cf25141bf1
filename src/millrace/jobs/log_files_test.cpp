// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/log_files.h"

#include <gmock/gmock.h>

namespace millrace::jobs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// What 22.05.8 made of each pattern for job 75, element 2 of 73.
TEST(LogFiles, LettersAsSlurmExpandsThem) {
  const LogNames names{.number = "75", .array = "73", .task = "2", .name = "p.sh", .user = "root"};
  const std::pair<const char*, const char*> cases[] = {
      {"o-%j-%A-%a-%x-%n-%t-%s-%u.out", "o-75-73-2-p.sh-0-0-batch-root.out"},
      {"%3j-%5a", "075-00002"},
      {"%J", "75"},
      {"%N.out", "*.out"},
      {"%r", "*"},
      {"100%%", "100%"},
      {"%q-%", "%q-%"},
      {"\\%j.out", "%j.out"},
      {"a[1]*", "a\\[1\\]\\*"},
  };
  for (const auto& [pattern, glob] : cases) EXPECT_EQ(log_glob(pattern, names), glob);
  LogNames step = names;
  step.step = true;
  EXPECT_EQ(log_glob("%j-%t-%s-%n-%J", step), "75-*-*-*-75.*");
  EXPECT_EQ(log_glob("%j_%a", LogNames{}), "*_*");
}

TEST(LogFiles, StepsOfTheScript) {
  const std::string script =
      "#!/bin/bash\n#SBATCH --nodes=2\nsrun --output=logs/%j-%t.log python a.py\nsrun -e /e/%t -o none b\n"
      "srun -o $LOGS/x.log c\nsrun d\n";
  EXPECT_THAT(step_patterns(script, "/w"), ElementsAre("/w/logs/%j-%t.log", "/e/%t"));
}

TEST(LogFiles, StreamsOfAJob) {
  const slurm::JobDetails element{.number = "75",
                                  .array = "73",
                                  .task = "2",
                                  .name = "p",
                                  .user = "u",
                                  .output = "/w/slurm-73_2.out",
                                  .error = "/w/slurm-73_2.out"};
  const auto streams = log_patterns(element, nullptr, {"/w/%t"});
  ASSERT_EQ(streams.size(), 2U);
  EXPECT_EQ(streams[0].label, "73_2");
  EXPECT_EQ(streams[0].glob, "/w/slurm-73_2.out");
  EXPECT_EQ(streams[1].glob, "/w/*");
  const RunRecord run{.name = "p", .job_id = "73", .array = "1-3", .output = "/w/%A_%a.out", .error = "/w/%j.err"};
  EXPECT_EQ(log_patterns(element, &run, {})[1].glob, "/w/75.err");
  EXPECT_EQ(log_patterns(run, "", {})[0].glob, "/w/73_*.out");
  EXPECT_EQ(log_patterns(run, "2", {})[0].glob, "/w/73_2.out");
}

TEST(LogFiles, AMissingFileIsExplained) {
  const slurm::JobDetails waiting{.number = "1", .state = "PENDING", .reason = "Resources"};
  EXPECT_THAT(why_no_file({"1", "/tmp/x"}, &waiting), HasSubstr("the job waits (Resources)"));
  const slurm::JobDetails failed{.number = "1", .state = "FAILED"};
  EXPECT_THAT(why_no_file({"1", "/nowhere/logs/x"}, &failed), HasSubstr("no folder /nowhere/logs"));
  EXPECT_THAT(why_no_file({"1", "/tmp/x"}, nullptr), HasSubstr("not to be seen"));
}

}  // namespace
}  // namespace millrace::jobs
