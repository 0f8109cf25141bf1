// SPDX-License-Identifier: Apache-2.0
#include "millrace/slurm/options.h"

#include <gmock/gmock.h>

namespace millrace::slurm {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

SbatchLines read(std::string_view text) {
  return read_sbatch_lines(shell::parse(text).lines);
}

TEST(JobOptions, LinesAreReadAsSbatchReadsThem) {
  const SbatchLines got = read(
      "#!/bin/bash\n#SBATCH --nodes=2   # two\n#SBATCH -n 4 -c8\t--exclusive\n\n# a comment\n"
      "#SBATCH --comment=\"a b # c\" --output=x#y\n#SBATCH --ntasks-per-n=3\n");
  EXPECT_THAT(got.unread, IsEmpty());
  EXPECT_THAT(got.rejected, IsEmpty());
  EXPECT_EQ(got.first, (Place{2, 1}));
  EXPECT_EQ(got.options.number("nodes"), 2);
  EXPECT_EQ(got.options.number("ntasks"), 4);
  EXPECT_EQ(got.options.number("cpus-per-task"), 8);
  EXPECT_TRUE(got.options.has("exclusive"));
  EXPECT_EQ(got.options.value("comment"), "a b # c");
  EXPECT_EQ(got.options.value("output"), "x");
  EXPECT_EQ(got.options.number("ntasks-per-node"), 3);
  EXPECT_EQ(got.options.find("cpus-per-task")->place, (Place{3, 14}));
}

TEST(JobOptions, LinesBehindACommandOrABlankDoNothing) {
  const SbatchLines got = read("#!/bin/bash\n #SBATCH --nodes=1\nset -e\n#SBATCH --time=1\n");
  EXPECT_FALSE(got.any());
  ASSERT_THAT(got.unread, SizeIs(2));
  EXPECT_EQ(got.unread[0].place, (Place{2, 2}));
  EXPECT_EQ(got.unread[1].place.line, 4);
  EXPECT_THAT(read("#SBATCH nodes=4 -t 5\n").rejected.at(0).message, HasSubstr("nodes=4"));
  EXPECT_EQ(read("#SBATCH nodes=4 -t 5\n").options.value("time"), "5");
}

TEST(JobOptions, WhatSbatchRefusesIsKnown) {
  EXPECT_FALSE(read("#SBATCH --nodez=4\n").options.all().at(0).known);
  EXPECT_EQ(nearest_sbatch_option("nodez"), "nodes");
  EXPECT_EQ(nearest_sbatch_option("shifter-image"), "");
  EXPECT_THAT(read("#SBATCH --nodes\n").rejected.at(0).message, HasSubstr("no value"));
  EXPECT_FALSE(read("#SBATCH --ntasks-per=4\n").options.all().at(0).known) << "the beginning of several";
}

// As sbatch and srun 22.05 take them, whose --help does not tell of all.
TEST(JobOptions, OldSpellingsAreKnown) {
  const SbatchLines got = read("#SBATCH --tasks-per-node=2 --power=level --context=x --tasks=3\n");
  EXPECT_EQ(got.options.number("ntasks-per-node"), 3) << "the beginning of one name only";
  EXPECT_EQ(got.options.value("power"), "level");
  for (const Option& option : got.options.all()) EXPECT_TRUE(option.known) << option.name;
  const shell::Script script = shell::parse("srun -I --cpu_bind=cores --pack-group=1 hostname\n");
  const CommandLine line = read_command_line(script.statements[0].words);
  EXPECT_TRUE(line.options.has("immediate"));
  EXPECT_EQ(line.options.value("cpu-bind"), "cores");
  EXPECT_EQ(line.options.value("het-group"), "1");
  EXPECT_EQ(line.command, 4U);
  EXPECT_TRUE(is_step_option("kill-on-bad-exit"));
  EXPECT_FALSE(is_step_option("nodes"));
}

TEST(JobOptions, TheCommandOfAStepIsFound) {
  const shell::Script script =
      shell::parse("srun --mpi=pmix -K -N 2 --kill-on-bad-exit=1 -l python train.py --nodes 4\n");
  const CommandLine line = read_command_line(script.statements[0].words);
  EXPECT_EQ(script.statements[0].words[line.command].text(), "python");
  EXPECT_EQ(line.options.value("mpi"), "pmix");
  EXPECT_EQ(line.options.number("nodes"), 2);
  const shell::Script none = shell::parse("srun --mpi=list");
  EXPECT_EQ(read_command_line(none.statements[0].words).command, 2U);
}

TEST(JobOptions, GresAreRead) {
  const auto gres = parse_gres("gpu:h200:8,nvme:1");
  ASSERT_THAT(gres, SizeIs(2));
  EXPECT_EQ(gres[0].type, "h200");
  EXPECT_EQ(gres[0].count, 8);
  EXPECT_EQ(parse_gres("gpu")[0].count, 1);
  EXPECT_EQ(parse_gres("gpu:8:h200")[0].type, "8");
  EXPECT_EQ(parse_gpus("h200:4").count, 4);
  EXPECT_EQ(parse_gpus("8").count, 8);
}

}  // namespace
}  // namespace millrace::slurm
