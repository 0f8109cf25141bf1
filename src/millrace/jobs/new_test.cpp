// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/new.h"

#include <gmock/gmock.h>

#include <functional>
#include <utility>

#include "millrace/jobs/container_image.h"
#include "millrace/jobs/lint.h"

namespace millrace::jobs {
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
  spec.embodiment = "libero_sim";
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
      if (!finding.suppressed_because) findings += finding_text(finding);
    }
    EXPECT_EQ(findings, "") << *text;
  }
}

TEST(JobNew, WhatIsFittedToAClusterPassesTheLintWithIt) {
  ClusterFacts cluster{.source = "c.yaml",
                       .partitions = {{.name = "gpu",
                                       .instance = "p5e.48xlarge",
                                       .nodes = 4,
                                       .gpus = 8,
                                       .gpu_type = "h200",
                                       .cpus = 192,
                                       .efa_interfaces = 32,
                                       .dynamic = true,
                                       .known_instance = true}},
                       .mounts = {"/fsx"},
                       .memory_scheduling = true};
  for (JobSpec spec : all_specs()) {
    spec.partition.clear();
    spec.gpu_type.clear();
    spec.image.clear();  // who installs pyxis, the file does not say
    spec.mounts.clear();
    spec.nodes = std::min<int64_t>(spec.nodes, 2);
    if (spec.signal_s == 0) continue;  // SB07 is the chooser's
    ASSERT_TRUE(fit_to_cluster(spec, cluster, {}));
    const std::string text = *write_job(spec);
    const ScriptFile file{"job.sbatch", text};
    std::string findings;
    for (const Finding& finding : lint_jobs(std::span(&file, 1), {&cluster, nullptr}))
      findings += finding_text(finding);
    EXPECT_EQ(findings, "") << text;
  }
}

TEST(JobNew, AClusterGivesWhatIsNotChosen) {
  ClusterFacts cluster{
      .source = "c.yaml",
      .partitions = {
          {.name = "a", .nodes = 4},
          {.name = "b", .nodes = 4, .gpus = 4, .gpu_type = "l4", .cpus = 96, .dynamic = true, .known_instance = true}}};
  JobSpec spec = spec_of(JobKind::kTrain);
  ASSERT_TRUE(fit_to_cluster(spec, cluster, {}));
  EXPECT_EQ(spec.gpus_per_node, 8) << "which partition is not said";
  spec.partition = "b";
  spec.nodes = 2;
  ASSERT_TRUE(fit_to_cluster(spec, cluster, {.gpus = true}));
  EXPECT_EQ(spec.gpus_per_node, 8);
  EXPECT_EQ(spec.cpus_per_gpu, 24);
  EXPECT_TRUE(spec.wait_all_nodes);
  EXPECT_FALSE(spec.efa);
  ASSERT_TRUE(fit_to_cluster(spec, cluster, {}));
  EXPECT_EQ(spec.gpus_per_node, 4);
  EXPECT_EQ(spec.gpu_type, "l4");
  spec.nodes = 5;
  EXPECT_THAT(fit_to_cluster(spec, cluster, {}).error().message(), HasSubstr("4 nodes in b"));
  spec.partition = "c";
  EXPECT_THAT(fit_to_cluster(spec, cluster, {}).error().message(), HasSubstr("it has a, b"));
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
  spec.command = {"--max-restarts=3", "train.py"};
  EXPECT_THAT(write_job(spec).error().message(), HasSubstr("--max-restarts=3"));
  spec.command = {"-m", "pkg.train", "--resume"};
  EXPECT_THAT(*write_job(spec), HasSubstr("-m pkg.train --resume &"));
  spec.time = "1h";
  EXPECT_THAT(write_job(spec).error().message(), HasSubstr("1h"));
  spec.time = "60";
  spec.name = "a\nb";
  EXPECT_FALSE(write_job(spec));
}

TEST(JobNew, GrootIsStartedAsN17Wants) {
  JobSpec spec = spec_of(JobKind::kGroot);
  spec.output = "/fsx/out";
  const std::string many = *write_job(spec);
  EXPECT_THAT(many, HasSubstr("torchrun --nnodes"));
  EXPECT_THAT(many, HasSubstr("gr00t/experiment/launch_finetune.py --base-model-path nvidia/GR00T-N1.7-3B"));
  EXPECT_THAT(many, HasSubstr("--embodiment-tag libero_sim --output-dir /fsx/out --num-gpus 8 --global-batch-size 64"));
  spec.gpus_per_node = 1;
  EXPECT_THAT(*write_job(spec), HasSubstr("python3 gr00t/experiment/launch_finetune.py"));
  EXPECT_THAT(*write_job(spec), Not(HasSubstr("torchrun --nnodes")));
  spec.embodiment = "NEW_EMBODIMENT";
  EXPECT_THAT(write_job(spec).error().message(), HasSubstr("--modality-config"));
  spec.modality_config = "/fsx/robot.py";
  EXPECT_THAT(*write_job(spec), HasSubstr("--modality-config-path /fsx/robot.py"));
  spec.embodiment.clear();
  EXPECT_THAT(write_job(spec).error().message(), HasSubstr("--embodiment"));
  spec = spec_of(JobKind::kGroot);
  spec.global_batch_size = 20;
  EXPECT_THAT(write_job(spec).error().message(), HasSubstr("20 samples cannot be divided among 8 GPUs"));
  spec.command = {"bash", "tune.sh"};
  EXPECT_THAT(*write_job(spec), HasSubstr("task \\\n  bash tune.sh &"));
}

TEST(JobNew, GrootIsStartedAsN16Wants) {
  JobSpec spec = spec_of(JobKind::kGroot);
  spec.groot_version = "1.6";
  const std::string text = *write_job(spec);
  EXPECT_THAT(text, HasSubstr("torchrun --nnodes"));
  EXPECT_THAT(text, HasSubstr("gr00t/experiment/launch_finetune.py --base-model-path nvidia/GR00T-N1.6-3B"));
  EXPECT_THAT(text, HasSubstr("--groot --groot-version 1.6 --quick\n"));
  spec.data_config = "so100";
  EXPECT_THAT(write_job(spec).error().message(), HasSubstr("--data-config: it is of --groot-version 1.5"));
  spec.data_config.clear();
  spec.base_model = "/models/mine";
  EXPECT_THAT(*write_job(spec), HasSubstr("--base-model-path /models/mine"));
}

TEST(JobNew, GrootIsStartedAsN15Wants) {
  JobSpec spec = spec_of(JobKind::kGroot);
  spec.groot_version = "1.5";
  spec.output = "/fsx/out";
  EXPECT_THAT(write_job(spec).error().message(), HasSubstr("--data-config"));
  spec.data_config = "so100";
  spec.embodiment = "new_embodiment";  // 1.5 needs no file for one
  const std::string text = *write_job(spec);
  EXPECT_THAT(text, HasSubstr("python3 scripts/gr00t_finetune.py --base-model-path nvidia/GR00T-N1.5-3B"));
  EXPECT_THAT(text, HasSubstr("--data-config so100 --embodiment-tag new_embodiment --output-dir /fsx/out --num-gpus 8 "
                              "--batch-size 8 --max-steps"));
  EXPECT_THAT(text, Not(HasSubstr("--global-batch-size")));
  EXPECT_THAT(text, Not(HasSubstr("torchrun --nnodes")));  // the script starts it
  EXPECT_THAT(text, HasSubstr("--groot --groot-version 1.5 --quick\n"));
  spec.modality_config = "/fsx/robot.py";
  EXPECT_THAT(write_job(spec).error().message(), HasSubstr("1.5 takes --data-config"));
  spec.modality_config.clear();
  spec.global_batch_size = 1024;
  spec.micro_batch_size = 50;
  EXPECT_THAT(
      write_job(spec).error().message(),
      HasSubstr("1024 samples are 128 on each of 8 GPUs, too many at once, and N1.5 cannot accumulate; write 256"));
}

TEST(JobNew, ABatchThatAGpuDoesNotHoldIsAccumulated) {
  JobSpec spec = spec_of(JobKind::kGroot);
  spec.global_batch_size = 1024;
  EXPECT_THAT(*write_job(spec), AllOf(HasSubstr("--global-batch-size 1024"), Not(HasSubstr("accumulation"))));
  spec.gpu_type = "l40s";  // 44.99 GiB: (0.85 of it - 7) / 1.2 samples
  EXPECT_THAT(*write_job(spec),
              AllOf(HasSubstr("--global-batch-size 128 "), HasSubstr("--gradient-accumulation-steps 8"),
                    HasSubstr("# 1024 samples a step: 8 times 16 on each of 8 GPUs; ")));
  spec.micro_batch_size = 50;  // 128 a GPU are 4 times 32; 3 times 42.7 is no number
  EXPECT_THAT(*write_job(spec),
              AllOf(HasSubstr("--global-batch-size 256 "), HasSubstr("--gradient-accumulation-steps 4"),
                    HasSubstr("# 1024 samples a step: 4 times 32 on each of 8 GPUs\n")));
  spec.micro_batch_size = 128;
  EXPECT_THAT(*write_job(spec), AllOf(HasSubstr("--global-batch-size 1024 "), Not(HasSubstr("accumulation"))));
}

TEST(JobNew, CheckpointsAreFollowedAndTheDatasetChecked) {
  JobSpec spec = spec_of(JobKind::kGroot);
  spec.inputs = {"/fsx/data"};
  spec.follow = {{"/scratch/out", "s3://b/run 1"}};
  const std::string text = *write_job(spec);
  EXPECT_THAT(text, HasSubstr("lerobot validate /fsx/data --groot --groot-version 1.7 --quick\n"));
  EXPECT_THAT(text, HasSubstr("\nmillrace ckpt follow /scratch/out 's3://b/run 1' --restore\n"));
  EXPECT_THAT(text, HasSubstr("\nmillrace ckpt follow /scratch/out 's3://b/run 1' --keep-last 3 &\n"));
  EXPECT_THAT(text, HasSubstr("--keep-last 3 --settle 1 --once || "));
  EXPECT_LT(text.find("--restore"), text.find("step=$!"));
  EXPECT_LT(text.find("wait \"$step\" || code"), text.find("--once"));
  spec.command = {"bash", "tune.sh"};
  EXPECT_THAT(*write_job(spec), Not(HasSubstr("lerobot validate")));
}

TEST(JobNew, OptionsOfTorchrunArePassedOn) {
  JobSpec spec = spec_of(JobKind::kTrain);
  EXPECT_THAT(*write_job(spec), AllOf(Not(HasSubstr("numa")), Not(HasSubstr("event-log")), Not(HasSubstr("virtual"))));
  spec.numa_binding = "node";
  spec.event_log_handler = "my handler";
  spec.virtual_local_rank = true;
  const std::string text = *write_job(spec);
  EXPECT_THAT(text, HasSubstr("    --numa-binding=node --event-log-handler='my handler' --virtual-local-rank \\\n"));
  EXPECT_LT(text.find("--virtual-local-rank"), text.find("--no-python bash -c 'run_rank"));  // not the program's
  spec.signal_s = 0;
  EXPECT_THAT(*write_job(spec), HasSubstr(" --virtual-local-rank \\\n    train.py"));
  spec.gpus_per_node = 0;
  EXPECT_THAT(write_job(spec).error().to_string(), HasSubstr("--numa-binding: processes are bound"));
  spec.numa_binding = "";
  spec.torchrun = false;
  EXPECT_THAT(write_job(spec).error().to_string(), HasSubstr("--event-log-handler: an option of torchrun"));
}

// A container sees the folder in which the ranks leave their status.
TEST(JobNew, ContainersSeeTheLogFolder) {
  JobSpec spec = spec_of(JobKind::kTrain);
  spec.image = "/i.sqsh";
  EXPECT_THAT(*write_job(spec), HasSubstr("--container-mounts=/fsx/logs:/fsx/logs"));
  spec.mounts = {"/data:/d", "/fsx:/fsx"};
  EXPECT_THAT(*write_job(spec), HasSubstr("--container-mounts=/data:/d,/fsx:/fsx \\"));
  spec.mounts = {"/fsx:/fs"};
  EXPECT_THAT(*write_job(spec), HasSubstr("--container-mounts=/fsx:/fs,/fsx/logs:/fsx/logs"));
}

TEST(JobNew, MemoryIsWrittenAsSbatchTakesIt) {
  const std::pair<const char*, const char*> cases[] = {
      {"80GiB", "80G"}, {"80G", "80G"}, {"4000", "4000"},      {"500m", "500M"}, {"1.5GiB", "1536M"},
      {"2TiB", "2T"},   {"4TiB", "4T"}, {"80GB", "78125000K"}, {"1B", "1K"},     {"0.5MiB", "512K"}};
  for (const auto& [given, written] : cases) EXPECT_EQ(*slurm_memory(given), written) << given;
  JobSpec spec = spec_of(JobKind::kTrain);
  spec.exclusive = false;
  spec.mem_per_gpu = "80GiB";
  EXPECT_THAT(*write_job(spec), HasSubstr("#SBATCH --mem-per-gpu=80G\n"));
  spec = spec_of(JobKind::kPreprocess);
  spec.exclusive = false;
  spec.mem_per_gpu = "8GiB";
  EXPECT_THAT(*write_job(spec), HasSubstr("#SBATCH --mem=8G\n"));
  for (const char* wrong : {"0", "0G", "-4G", "much", "4X", "0.0GiB"}) {
    EXPECT_FALSE(slurm_memory(wrong)) << wrong;
    spec.mem_per_gpu = wrong;
    EXPECT_THAT(write_job(spec).error().message(), HasSubstr("--mem: ")) << wrong;
  }
}

TEST(JobNew, WhatSbatchRefusesIsNamed) {
  const auto said = [](const std::function<void(JobSpec&)>& change, JobKind kind = JobKind::kTrain) {
    JobSpec spec = spec_of(kind);
    change(spec);
    const auto text = write_job(spec);
    return text ? std::string() : text.error().message();
  };
  EXPECT_THAT(said([](JobSpec& spec) { spec.name = "a/b"; }), HasSubstr("--name: "));
  EXPECT_THAT(said([](JobSpec& spec) { spec.log_dir = "/fsx/%j"; }), HasSubstr("--log-dir: "));
  EXPECT_THAT(said([](JobSpec& spec) { spec.signal_s = 70000; }), HasSubstr("--signal: sbatch takes at most 65535"));
  EXPECT_EQ(said([](JobSpec& spec) { spec.signal_s = 65535; }), "");
  for (const char* type : {"h200:8", "8", "a b"}) {
    EXPECT_THAT(said([&](JobSpec& spec) { spec.gpu_type = type; }), HasSubstr("--gpu-type: ")) << type;
  }
  EXPECT_THAT(said([](JobSpec& spec) { spec.mounts = {"/a:/a"}; }), HasSubstr("--mount: "));
  JobSpec many = spec_of(JobKind::kPreprocess);
  many.tasks = 1001;
  EXPECT_THAT(*write_job(many), Not(HasSubstr("MaxArraySize")));
  many.tasks = 2000;
  EXPECT_THAT(*write_job(many), HasSubstr("scontrol show config | grep MaxArraySize"));
}

TEST(JobNew, ARegistryIsMarkedAsPyxisReadsIt) {
  JobSpec spec = spec_of(JobKind::kTrain);
  spec.image = "nvcr.io/nvidia/pytorch:24.10-py3";
  EXPECT_THAT(*write_job(spec), HasSubstr("--container-image='nvcr.io#nvidia/pytorch:24.10-py3' "));
  EXPECT_EQ(with_registry_mark("docker://a.b:5000/c/d"), "docker://a.b:5000#c/d");
  for (const char* same : {"nvcr.io#a/b", "ubuntu:22.04", "team/image", "/fsx/a.sqsh", "./a.sqsh", "../a.b/c.sqsh"}) {
    EXPECT_EQ(with_registry_mark(same), same);
  }
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
}  // namespace millrace::jobs
