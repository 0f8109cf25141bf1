// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/why.h"

#include <gmock/gmock.h>

#include <array>
#include <cstdlib>
#include <set>
#include <sstream>

#include "millrace/jobs/demand.h"

namespace millrace::jobs {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kNow = 1795581830;  // 2026-11-25T04:43:50Z

class Why : public testing::Test {
 protected:
  void SetUp() override {
    setenv("TZ", "UTC", 1);
    tzset();
  }
};

slurm::JobDetails waiting(const std::string& reason, const std::string& more = "") {
  return slurm::parse_details("JobId=20 JobName=train UserId=ann(1) JobState=PENDING Reason=" + reason +
                              " Partition=gpu NumNodes=1 NumCPUs=8 TimeLimit=1:00:00 Priority=100 " + more + "\n")
      ->at(0);
}

slurm::JobDetails ended(const std::string& state, const std::string& exit) {
  return slurm::parse_details("JobId=20 JobState=" + state + " Reason=None ExitCode=" + exit +
                              " RunTime=00:01:00 TimeLimit=01:00:00 NodeList=n1 StdOut=/w/logs/20.out\n")
      ->at(0);
}

slurm::Node node(const char* name, int64_t gpus, int64_t used, bool usable = true) {
  return {.name = name,
          .state = usable ? "MIXED" : "DOWN+DRAIN",
          .usable = usable,
          .partitions = {"gpu"},
          .cpus = 32,
          .cpus_used = used * 4,
          .memory_mib = 1000,
          .gres = {{"gpu", "h200", gpus}},
          .gres_used = {{"gpu", "h200", used}}};
}

TEST_F(Why, ResourcesNamesNodesAndWhenTheyAreFree) {
  slurm::Cluster cluster;
  cluster.nodes = {node("n1", 8, 8), node("n2", 8, 8, false), node("n3", 4, 0), node("n4", 8, 2)};
  cluster.jobs = {{.id = "7", .node_list = {"n1"}, .time_left_s = 3723}, {.id = "8", .node_list = {"n4"}}};
  const auto job = waiting("Resources", "TresPerNode=gres:gpu:h200:8 StartTime=2026-11-25T05:43:50");
  const Explanation why = explain(job, {.cluster = &cluster, .now = kNow});
  EXPECT_EQ(why.outlook, Outlook::kWaits);
  EXPECT_THAT(why.evidence,
              ElementsAre("it asks for 1 node of 8 CPUs, 8 h200 GPUs",
                          "partition gpu: 3 of 4 nodes could hold its part, 0 of them now",
                          "n1 fits when job 7 has ended: in 1:02:03 at the latest", "n2 would fit, but is DOWN+DRAIN",
                          "n4 fits when job 8 has ended: there is no time limit",
                          "Slurm expects it to start at 2026-11-25T05:43:50Z"));
  const Explanation never = explain(waiting("Resources", "TresPerNode=gres:gpu:h200:16"), {.cluster = &cluster});
  EXPECT_EQ(never.outlook, Outlook::kNever);
  EXPECT_THAT(never.meaning, HasSubstr("Too few nodes"));
}

TEST_F(Why, PriorityNamesTheJobsAhead) {
  const std::vector<slurm::JobState> queue{
      {.id = "18", .base_id = "18", .user = "bob", .partition = "gpu", .state = "PENDING"},
      {.id = "17", .base_id = "17", .user = "bob", .partition = "cpu", .state = "PENDING"},
      {.id = "15", .base_id = "15", .user = "bob", .partition = "gpu", .state = "PENDING", .reason = "Dependency"},
      {.id = "16", .base_id = "16", .user = "bob", .partition = "gpu", .state = "PENDING", .reason = "BeginTime"},
      {.id = "20", .base_id = "20", .user = "ann", .partition = "gpu", .state = "PENDING"},
      {.id = "19", .base_id = "19", .user = "bob", .partition = "gpu", .state = "PENDING"}};
  const Explanation why = explain(waiting("Priority"), {.queue = queue});
  EXPECT_THAT(why.evidence, ElementsAre("its priority is 100", "1 waiting job comes first: 18 (bob)"));
}

TEST_F(Why, DependenciesNameTheirJobs) {
  const std::vector<slurm::JobState> queue{
      {.id = "12", .base_id = "12", .name = "a", .state = "FAILED", .reason = "NonZeroExitCode"}};
  const Explanation why =
      explain(waiting("DependencyNeverSatisfied", "Dependency=afterok:12(failed)"), {.queue = queue});
  EXPECT_EQ(why.outlook, Outlook::kNever);
  EXPECT_THAT(why.evidence, ElementsAre("it depends on afterok:12(failed)", "job 12 (a) is FAILED (NonZeroExitCode)"));
}

TEST_F(Why, BeginTimeAfterARequeueIsNormal) {
  const auto job = waiting("BeginTime", "Restarts=1 EligibleTime=2026-11-25T04:45:50");
  const Explanation why = explain(job, {.now = kNow});
  EXPECT_THAT(why.evidence,
              ElementsAre("it may begin at 2026-11-25T04:45:50Z, in 0:02:00", "it was requeued: this is start 2"));
  EXPECT_THAT(why.fix, HasSubstr("two minutes are normal"));
  EXPECT_THAT(why.fix, HasSubstr("JobId=20 StartTime=now"));
}

TEST_F(Why, PartitionLimitsAndClosedNodes) {
  slurm::Cluster cluster;
  cluster.partitions = {{.name = "gpu", .nodes = "n[1-4]", .max_time_s = 3600}};
  cluster.nodes = {node("n1", 8, 0, false), node("n2", 8, 0)};
  const Explanation limit = explain(waiting("PartitionTimeLimit"), {.cluster = &cluster});
  EXPECT_EQ(limit.outlook, Outlook::kNever);
  EXPECT_THAT(limit.evidence,
              ElementsAre("it asks for 1 nodes and 1:00:00; partition gpu has 4 nodes and a limit of 1:00:00"));
  const Explanation closed = explain(waiting("ReqNodeNotAvail,_UnavailableNodes:n1"), {.cluster = &cluster});
  EXPECT_THAT(closed.meaning, HasSubstr("down, drained or reserved"));
  EXPECT_THAT(closed.evidence, Contains("n1 is DOWN+DRAIN"));
  EXPECT_THAT(explain(waiting("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved"), {}).meaning,
              HasSubstr("drained"));
}

// What a waiting job's reason may be by job_reason_string() of 22.05.9 and 23.11.9 and job_state_reason_string() of
// 24.05.8, 24.11.7 and 25.05.8, and of the branches of 25.11 and 26.05; without those of jobs that ended, and of
// BlueGene.
TEST_F(Why, EveryReasonOfEveryVersionIsKnown) {
  std::istringstream reasons(
      "AccountNotAllowed AccountingPolicy AssocGrpBB AssocGrpBBMinutes AssocGrpBBRunMinutes AssocGrpBilling "
      "AssocGrpBillingMinutes AssocGrpBillingRunMinutes AssocGrpCPUMinutesLimit AssocGrpCPURunMinutesLimit "
      "AssocGrpCpuLimit AssocGrpEnergy AssocGrpEnergyMinutes AssocGrpEnergyRunMinutes AssocGrpGRES "
      "AssocGrpGRESMinutes AssocGrpGRESRunMinutes AssocGrpJobsLimit AssocGrpLicense AssocGrpLicenseMinutes "
      "AssocGrpLicenseRunMinutes AssocGrpMemLimit AssocGrpMemMinutes AssocGrpMemRunMinutes AssocGrpNodeLimit "
      "AssocGrpNodeMinutes AssocGrpNodeRunMinutes AssocGrpSubmitJobsLimit AssocGrpUnknown "
      "AssocGrpUnknownMinutes AssocGrpUnknownRunMinutes AssocGrpWallLimit AssocMaxBBMinutesPerJob "
      "AssocMaxBBPerJob AssocMaxBBPerNode AssocMaxBillingMinutesPerJob AssocMaxBillingPerJob "
      "AssocMaxBillingPerNode AssocMaxCpuMinutesPerJobLimit AssocMaxCpuPerJobLimit AssocMaxCpuPerNode "
      "AssocMaxEnergyMinutesPerJob AssocMaxEnergyPerJob AssocMaxEnergyPerNode AssocMaxGRESMinutesPerJob "
      "AssocMaxGRESPerJob AssocMaxGRESPerNode AssocMaxJobsLimit AssocMaxLicenseMinutesPerJob "
      "AssocMaxLicensePerJob AssocMaxMemMinutesPerJob AssocMaxMemPerJob AssocMaxMemPerNode "
      "AssocMaxNodeMinutesPerJob AssocMaxNodePerJobLimit AssocMaxSubmitJobLimit AssocMaxUnknownMinutesPerJob "
      "AssocMaxUnknownPerJob AssocMaxUnknownPerNode AssocMaxWallDurationPerJobLimit AssociationJobLimit "
      "AssociationResourceLimit AssociationTimeLimit BadConstraints BeginTime BurstBufferOperation "
      "BurstBufferResources BurstBufferStageIn Cleaning Constraints DeadLine Dependency "
      "DependencyNeverSatisfied FedJobLock FrontEndDown InvalidAccount InvalidQOS JobArrayTaskLimit "
      "JobHeldAdmin JobHeldUser JobHoldMaxRequeue JobLaunchFailure Licenses MaxBBPerAccount "
      "MaxBBRunMinsPerAccount MaxBBRunMinsPerUser MaxBillingPerAccount MaxBillingRunMinsPerAccount "
      "MaxBillingRunMinsPerUser MaxCpuPerAccount MaxCpuRunMinsPerAccount MaxCpuRunMinsPerUser "
      "MaxEnergyPerAccount MaxEnergyRunMinsPerAccount MaxEnergyRunMinsPerUser MaxGRESPerAccount "
      "MaxGRESRunMinsPerAccount MaxGRESRunMinsPerUser MaxJobsPerAccount MaxLicensePerAccount "
      "MaxLicenseRunMinsPerAccount MaxLicenseRunMinsPerUser MaxMemPerLimit MaxMemoryPerAccount "
      "MaxMemoryRunMinsPerAccount MaxMemoryRunMinsPerUser MaxNodePerAccount MaxNodeRunMinsPerAccount "
      "MaxNodeRunMinsPerUser MaxPoweredUpNodes MaxSubmitJobsPerAccount MaxUnknownPerAccount "
      "MaxUnknownRunMinsPerAccount MaxUnknownRunMinsPerUser MpiPortsBusy NodeDown NvidiaImexChannels PartitionConfig "
      "PartitionDown "
      "PartitionInactive PartitionNodeLimit PartitionTimeLimit PowerNotAvail PowerReserved Priority Prolog "
      "QOSGrpBB QOSGrpBBMinutes QOSGrpBBRunMinutes QOSGrpBilling QOSGrpBillingMinutes QOSGrpBillingRunMinutes "
      "QOSGrpCPUMinutesLimit QOSGrpCPURunMinutesLimit QOSGrpCpuLimit QOSGrpEnergy QOSGrpEnergyMinutes "
      "QOSGrpEnergyRunMinutes QOSGrpGRES QOSGrpGRESMinutes QOSGrpGRESRunMinutes QOSGrpJobsLimit QOSGrpLicense "
      "QOSGrpLicenseMinutes QOSGrpLicenseRunMinutes QOSGrpMemLimit QOSGrpMemoryMinutes QOSGrpMemoryRunMinutes "
      "QOSGrpNodeLimit QOSGrpNodeMinutes QOSGrpNodeRunMinutes QOSGrpSubmitJobsLimit QOSGrpUnknown "
      "QOSGrpUnknownMinutes QOSGrpUnknownRunMinutes QOSGrpWallLimit QOSJobLimit QOSMaxBBPerJob QOSMaxBBPerNode "
      "QOSMaxBBPerUser QOSMaxBillingMinutesPerJob QOSMaxBillingPerJob QOSMaxBillingPerNode QOSMaxBillingPerUser "
      "QOSMaxCpuMinutesPerJobLimit QOSMaxCpuPerJobLimit QOSMaxCpuPerNode QOSMaxCpuPerUserLimit "
      "QOSMaxEnergyMinutesPerJob QOSMaxEnergyPerJob QOSMaxEnergyPerNode QOSMaxEnergyPerUser "
      "QOSMaxGRESMinutesPerJob QOSMaxGRESPerJob QOSMaxGRESPerNode QOSMaxGRESPerUser QOSMaxJobsPerUserLimit "
      "QOSMaxLicenseMinutesPerJob QOSMaxLicensePerJob QOSMaxLicensePerUser QOSMaxMemoryMinutesPerJob "
      "QOSMaxMemoryPerJob QOSMaxMemoryPerNode QOSMaxMemoryPerUser QOSMaxNodeMinutesPerJob QOSMaxNodePerJobLimit "
      "QOSMaxNodePerUserLimit QOSMaxSubmitJobPerUserLimit QOSMaxUnknownMinutesPerJob QOSMaxUnknownPerJob "
      "QOSMaxUnknownPerNode QOSMaxUnknownPerUser QOSMaxWallDurationPerJobLimit QOSMinBB QOSMinBilling "
      "QOSMinCpuNotSatisfied QOSMinEnergy QOSMinGRES QOSMinLicense QOSMinMemory QOSMinNode QOSMinUnknown "
      "QOSNotAllowed QOSResourceLimit QOSTimeLimit QOSUsageThreshold ReqNodeNotAvail Reservation "
      "ReservationDeleted ReservationInvalid Resources SchedDefer ");
  int count = 0;
  for (std::string reason; reasons >> reason; ++count) {
    const Explanation why = explain(waiting(reason), {});
    EXPECT_THAT(why.meaning, Not(HasSubstr("does not know"))) << reason;
    EXPECT_NE(why.fix, "") << reason;
  }
  EXPECT_GT(count, 200);
}

// One job as scontrol prints it: recorded from 22.05.8; constructed from info_job.c of 23.11.9, 24.05.8, 24.11.7 and
// 25.05.8, and from how slurm_opt.c there writes GPUs. What is asked of a node must be the same.
TEST_F(Why, AJobOfEveryVersionAsksForTheSame) {
  const std::string head =
      "JobId=7 JobName=a job UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A Priority=1 Nice=0 Account=lab QOS=normal "
      "JobState=OUT_OF_MEMORY Reason=OutOfMemory ";
  const std::string middle =
      "Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:125 RunTime=00:01:00 TimeLimit=01:00:00 "
      "Partition=gpu NumNodes=2 NumCPUs=32 NumTasks=2 CPUs/Task=16 ReqB:S:C:T=0:0:*:* ";
  const std::string end =
      "Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=* MinCPUsNode=16 MinMemoryNode=64G MinTmpDiskNode=0 "
      "Features=(null) DelayBoot=00:00:00 OverSubscribe=OK Contiguous=0 Licenses=(null) ";
  const std::string tres = "cpu=32,mem=128G,node=2,billing=32,gres/gpu=8,gres/gpu:h200=8";
  const std::array<std::string, 5> lines{
      head + middle + "TRES=" + tres + " " + end + "Network=(null) Power= TresPerNode=gres:gpu:h200:4",
      head + "FailedNode=n2 " + middle + "ReqTRES=" + tres + " AllocTRES=(null) " + end +
          "Network=(null) Power= TresPerNode=gres/gpu:h200:4",
      head + middle + "ReqTRES=" + tres + " AllocTRES=" + tres + " " + end +
          "Network=(null) TresPerNode=gres/gpu:h200:4 ResvPorts=12-13",
      head + middle + "ReqTRES=" + tres + " AllocTRES=" + tres + " " + end +
          "Network=(null) OOMKillStep=1 TresPerNode=gres/gpu:h200:4",
      head + middle + "ReqTRES=" + tres + " AllocTRES=" + tres + " " + end +
          "LicensesAlloc=(null) Network=(null) SegmentSize=2 TresPerNode=gres/gpu:h200:4"};
  for (const std::string& line : lines) {
    const auto job = slurm::parse_details(line + "\n");
    ASSERT_TRUE(job) << line;
    EXPECT_EQ(demand_text(demand_of((*job)[0])), "2 nodes of 16 CPUs, 65536 MiB, 4 h200 GPUs") << line;
    EXPECT_EQ((*job)[0].name, "a job");
    EXPECT_THAT(explain((*job)[0], {}).evidence, Contains("it asked for " + tres)) << line;
  }
}

// Names of 22.05 to 25.05.
TEST_F(Why, LimitsOfQosAndAssociation) {
  EXPECT_EQ(explain(waiting("QOSMaxGRESPerUser"), {}).outlook, Outlook::kWaits);
  EXPECT_EQ(explain(waiting("QOSMaxWallDurationPerJobLimit"), {}).outlook, Outlook::kNever);
  EXPECT_THAT(explain(waiting("QOSGrpNodeLimit", "QOS=high"), {}).evidence, Contains("its QOS is high"));
  EXPECT_THAT(explain(waiting("AssocGrpGRES", "Account=lab"), {}).evidence, Contains("its account is lab"));
  const Explanation unknown = explain(waiting("SomethingNew"), {});
  EXPECT_EQ(unknown.outlook, Outlook::kWaits);
  EXPECT_THAT(unknown.meaning, HasSubstr("does not know"));
}

TEST_F(Why, ALimitOfAnAccountAboveIsNamed) {
  const slurm::Accounts accounts{.associations = {{.account = "team"}},
                                 .qos = {},
                                 .accounts = {{"team", "lab", {}}, {"lab", "root", {{"GrpTRES", "gres/gpu=32"}}}}};
  EXPECT_THAT(explain(waiting("AssocGrpGRES", "Account=team"), {.accounts = &accounts}).evidence,
              Contains("account lab has GrpTRES gres/gpu=32"));
}

TEST_F(Why, ReservationsSayWhenAndWhatWouldHelp) {
  slurm::Cluster cluster;
  cluster.nodes = {node("n1", 8, 0), node("n2", 8, 0)};
  const auto reservations = slurm::parse_reservations(
      "ReservationName=maint StartTime=2026-11-25T05:13:50 EndTime=2026-11-25T07:13:50 Nodes=n[1-2] "
      "Flags=MAINT,SPEC_NODES Users=root State=INACTIVE\n"
      "ReservationName=class StartTime=2026-11-25T04:00:00 EndTime=2026-11-25T05:43:50 Nodes=n1 State=ACTIVE\n"
      "ReservationName=past StartTime=2026-11-25T01:00:00 EndTime=2026-11-25T02:00:00 Nodes=n1 State=INACTIVE\n"
      "ReservationName=other StartTime=2026-11-25T04:00:00 EndTime=2026-11-25T05:43:50 Nodes=m1 State=ACTIVE\n");
  ASSERT_TRUE(reservations) << reservations.error().to_string();
  const WhyFacts facts{.cluster = &cluster, .reservations = *reservations, .now = kNow};
  EXPECT_THAT(explain(waiting("ReqNodeNotAvail,_Reserved_for_maintenance"), facts).evidence,
              ElementsAre("reservation maint (maintenance) holds 2 nodes (n1 to n2) from 2026-11-25T05:13:50Z, in "
                          "0:30:00, to 2026-11-25T07:13:50Z",
                          "its limit of 1:00:00 reaches into that; with a --time of less than 0:30:00 it may start "
                          "before",
                          "reservation class holds n1 until 2026-11-25T05:43:50Z, for another 1:00:00"));
  EXPECT_THAT(explain(waiting("ReqNodeNotAvail", "ReqNodeList=n2"), facts).evidence, Not(Contains(HasSubstr("class"))));
  EXPECT_THAT(explain(waiting("Reservation", "Reservation=maint"), facts).evidence,
              Contains(HasSubstr("its reservation maint (maintenance) holds")));
  const auto none = slurm::parse_reservations("No reservations in the system\n");
  EXPECT_TRUE(none && none->empty());
}

TEST_F(Why, StepsSayWhatEndedAndWithHowMuchMemory) {
  const auto steps = slurm::parse_steps(
      "20|CANCELLED by 1000|0:0||8000M|n1|train\n20.batch|COMPLETED|0:0|10K||n1|batch\n"
      "20.0|OUT_OF_MEMORY|0:125|2.5G||n1|a|b\n");
  ASSERT_TRUE(steps) << steps.error().to_string();
  EXPECT_EQ((*steps)[0].cancelled_by, 1000);
  const Explanation why = explain(ended("CANCELLED", "0:0"), {.steps = *steps, .cancelled_by = "ann"});
  EXPECT_THAT(why.evidence, testing::IsSupersetOf({"cancelled by ann",
                                                   "step 20.0 (a|b) ended OUT_OF_MEMORY with 0:125; a task of it was "
                                                   "seen with 2.68 GB of memory"}));
  EXPECT_THAT(why.evidence, Not(Contains(HasSubstr("batch"))));
  EXPECT_THAT(slurm::parse_steps("20|FAILED").error().to_string(), HasSubstr("2 fields for 7"));
}

TEST_F(Why, LimitsSayHowFullTheyAre) {
  const slurm::Accounts accounts{.associations = {{.account = "lab", .limits = {{"GrpTRES", "node=4"}}}},
                                 .qos = {{"high", {{"MaxTRESPerUser", "gres/gpu=8"}, {"MaxWall", "1:00:00"}}}}};
  const std::vector<slurm::HeldResources> held{{"ann", "high", "lab", 1, 8, 8}, {"bob", "high", "lab", 2, 16, 16}};
  const WhyFacts facts{.accounts = &accounts, .held = held};
  slurm::JobDetails user = waiting("QOSMaxGRESPerUser", "QOS=high TresPerNode=gres:gpu:4");
  user.user = "ann";
  EXPECT_THAT(explain(user, facts).evidence, ElementsAre("its QOS is high", "QOS high has MaxTRESPerUser gres/gpu=8",
                                                         "1 job of ann with QOS high runs: 1 node, 8 CPUs, 8 GPUs",
                                                         "it asks for 1 node of 8 CPUs, 4 GPUs"));
  EXPECT_THAT(explain(waiting("QOSMaxWallDurationPerJobLimit", "QOS=high"), facts).evidence,
              ElementsAre("its QOS is high", "QOS high has MaxWall 1:00:00", "its limit is 1:00:00"));
  EXPECT_THAT(explain(waiting("AssocGrpNodeLimit", "Account=lab"), facts).evidence,
              testing::IsSupersetOf({"your use of account lab has GrpTRES node=4",
                                     "2 jobs of account lab run: 3 nodes, 24 CPUs, 24 GPUs"}));
}

TEST_F(Why, Ends) {
  const Explanation folder = explain(ended("FAILED", "0:53"), {});
  EXPECT_THAT(folder.meaning, HasSubstr("could not open the log file"));
  EXPECT_THAT(folder.evidence, Contains("its log would be /w/logs/20.out"));
  EXPECT_THAT(explain(ended("FAILED", "127:0"), {}).meaning, HasSubstr("not found"));
  EXPECT_THAT(explain(ended("FAILED", "3:0"), {.log_error = "ValueError: x"}).evidence,
              Contains("the first error in its log: ValueError: x"));
  EXPECT_THAT(explain(ended("TIMEOUT", "0:15"), {}).evidence, Contains("its limit was 01:00:00"));
  EXPECT_THAT(explain(ended("OUT_OF_MEMORY", "0:125"), {}).meaning, HasSubstr("more memory"));
  const Explanation done = explain(ended("COMPLETED", "0:0"), {});
  EXPECT_EQ(done.outlook, Outlook::kDone);
  EXPECT_TRUE(done.evidence.empty());
  EXPECT_TRUE(done.fix.empty());
  EXPECT_EQ(explain(ended("RUNNING", "0:0"), {}).outlook, Outlook::kRuns);
}

TEST_F(Why, AFailedNodeIsNamed) {
  slurm::Cluster cluster;
  cluster.nodes = {node("n1", 8, 0), node("n2", 8, 0, false), node("n3", 8, 0, false)};
  cluster.nodes[1].reason = "Not responding";
  const auto job = slurm::parse_details(
      "JobId=20 JobState=NODE_FAIL Reason=NodeDown ExitCode=0:15 FailedNode=n2 RunTime=00:01:00 NodeList=n[1-2]\n");
  ASSERT_TRUE(job);
  EXPECT_THAT(explain((*job)[0], {.cluster = &cluster}).evidence,
              ElementsAre("exit status and signal: 0:15", "it ran for 00:01:00", "on n[1-2]",
                          "the node that failed: n2", "n2 is DOWN+DRAIN (Not responding) now"));
  // Versions before 23.11 do not name it.
  EXPECT_THAT(explain(ended("NODE_FAIL", "0:15"), {}).evidence, Not(Contains(HasSubstr("failed: "))));
}

// As 22.05.8 printed the job and its node, shortened: State=CLOUD, ResumeProgram=/bin/true, ResumeTimeout=5.
constexpr const char* kUnbootedJob =
    "JobId=1 JobName=wrap UserId=root(0) JobState=NODE_FAIL Reason=NodeDown Requeue=0 Restarts=0 BatchFlag=1 "
    "ExitCode=0:0 RunTime=00:00:08 TimeLimit=365-00:00:00 StartTime=2026-11-28T09:17:19 EndTime=2026-11-28T09:17:27 "
    "Partition=cloud NodeList=cloud-1 BatchHost=cloud-1 StdOut=/tmp/slurm-1.out\n";
constexpr const char* kUnbootedNode =
    "NodeName=cloud-1 CPUAlloc=0 CPUTot=4 NodeAddr=127.0.0.1 RealMemory=8000 AllocMem=0 "
    "State=DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING Partitions=spare,cloud  BootTime=None SlurmdStartTime=None "
    "LastBusyTime=Unknown Reason=ResumeTimeout reached [root@2026-11-28T09:17:27]\n";
constexpr std::string_view kNeverBooted = "A node never booted: the cloud gave none, or it was not up in time.";
constexpr std::string_view kDied = "A node died or stopped answering.";

class WhyBoot : public Why {
 protected:
  void SetUp() override {
    Why::SetUp();
    cluster.resume_timeout_s = 5;
    cluster.resume_program = "/bin/true";
    cluster.nodes = nodes_with("");
  }

  // The node with another text in place of what Slurm gave as reason; "" leaves it.
  static std::vector<slurm::Node> nodes_with(const std::string& reason) {
    std::string text = kUnbootedNode;
    if (!reason.empty()) text = text.substr(0, text.find("Reason=")) + "Reason=" + reason + "\n";
    return slurm::parse_nodes(text).value();
  }

  Explanation said(std::span<const slurm::StepEnd> steps = {}) const {
    return explain(job, {.cluster = &cluster, .steps = steps});
  }

  slurm::Cluster cluster;
  slurm::JobDetails job = slurm::parse_details(kUnbootedJob)->at(0);
};

TEST_F(WhyBoot, ANodeThatSlurmGaveUp) {
  const Explanation why = said();
  EXPECT_EQ(why.meaning, kNeverBooted);
  EXPECT_THAT(why.fix, HasSubstr("slurm_resume.log"));
  EXPECT_THAT(why.evidence,
              ElementsAre("exit status and signal: 0:0", "it held its nodes for 00:00:08", "on cloud-1",
                          "cloud-1 is DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING (ResumeTimeout reached) now, since "
                          "2026-11-28T09:17:27Z",
                          "a node has 0:00:05 to boot (ResumeTimeout)",
                          "the program that starts nodes is /bin/true (ResumeProgram)"));
  cluster.partitions = {{.name = "cloud", .resume_timeout_s = 7}, {.name = "other", .resume_timeout_s = 9}};
  EXPECT_THAT(said().evidence, Contains("a node has 0:00:07 to boot (ResumeTimeout)"));
}

TEST_F(WhyBoot, OnlyAReasonOfTheJobsOwnTimeCounts) {
  for (const char* time : {"09:17:18", "09:18:28"}) {
    cluster.nodes = nodes_with(std::string("ResumeTimeout reached [root@2026-11-28T") + time + "]");
    EXPECT_EQ(said().meaning, kDied) << time;
  }
  cluster.nodes = nodes_with("Not responding [slurm@2026-11-28T09:17:27]");
  EXPECT_EQ(said().meaning, kDied);
  EXPECT_THAT(said().evidence, Contains("it ran for 00:00:08"));
  EXPECT_THAT(said().evidence, Not(Contains(HasSubstr("boot"))));
  cluster.nodes = nodes_with("ResumeTimeout reached");  // a time that is not told
  EXPECT_EQ(said().meaning, kDied);
  // Another node's.
  cluster.nodes = nodes_with("");
  job.fields["NodeList"] = "cloud-2";
  EXPECT_EQ(said().meaning, kDied);
}

// The node's text is that of aws-parallelcluster-node, resume.py; the state may be free again meanwhile. Constructed.
TEST_F(WhyBoot, ANodeThatTheCloudDidNotGive) {
  cluster.nodes =
      nodes_with("(Code:InsufficientInstanceCapacity)Failure when resuming nodes [root@2026-11-28T09:17:26]");
  cluster.nodes[0].state = "IDLE+CLOUD+POWERED_DOWN";
  cluster.nodes[0].usable = true;
  EXPECT_EQ(said().meaning, kNeverBooted);
  EXPECT_THAT(said().evidence,
              Contains("cloud-1 is IDLE+CLOUD+POWERED_DOWN ((Code:InsufficientInstanceCapacity)Failure when resuming "
                       "nodes) now, since 2026-11-28T09:17:26Z"));
}

// Without PrivateData=cloud a node that is powered down is not listed, so accounting has to tell. As sacct 22.05.8 did.
TEST_F(WhyBoot, AHiddenNode) {
  cluster.nodes = slurm::parse_nodes("NodeName=n1 State=IDLE CPUTot=8\n").value();
  const std::string hidden =
      "Slurm does not list cloud-1 now: it hides cloud nodes that are powered down (PrivateData lacks cloud)";
  const auto none = slurm::parse_steps("1|NODE_FAIL|0:0||8000M|cloud-1|wrap\n").value();
  EXPECT_EQ(said(none).meaning, kNeverBooted);
  EXPECT_THAT(said(none).evidence,
              testing::IsSupersetOf({hidden, std::string("accounting has no step of it: nothing of it ran")}));

  const auto ran =
      slurm::parse_steps("1|NODE_FAIL|0:0||8000M|cloud-1|wrap\n1.batch|CANCELLED||||cloud-1|batch\n").value();
  EXPECT_EQ(said(ran).meaning, kDied);
  EXPECT_THAT(said(ran).evidence, Contains("step 1.batch (batch) ended CANCELLED"));
  EXPECT_THAT(said(ran).evidence, Not(Contains(HasSubstr("boot"))));

  EXPECT_EQ(said().meaning, kDied);
  EXPECT_THAT(said().evidence,
              testing::IsSupersetOf({hidden, std::string("a node has 0:00:05 to boot (ResumeTimeout): if the job left "
                                                         "no log, its node never booted")}));

  // It ended before a boot could have been given up; its node is none of a cloud.
  cluster.resume_timeout_s = 60;
  EXPECT_EQ(said(none).meaning, kDied);
  EXPECT_THAT(said().evidence, Not(Contains(HasSubstr("boot"))));
  cluster.resume_timeout_s = 5;
  job.fields["NodeList"] = "n1";
  EXPECT_EQ(said(none).meaning, kDied);
  job.fields["NodeList"] = "cloud-[01-20]";
  EXPECT_THAT(said().evidence, Contains(HasSubstr("cloud-07, cloud-08 and 12 more now")));
}

// Constructed: 22.05.8 said NODE_FAIL in every trial.
TEST_F(WhyBoot, ABootFailNeedsNoEvidence) {
  job.state = "BOOT_FAIL";
  job.reason = "None";
  cluster.nodes = nodes_with("Not responding [slurm@2026-11-28T09:17:27]");
  EXPECT_EQ(said().meaning, kNeverBooted);
  EXPECT_THAT(said().evidence,
              testing::IsSupersetOf({"it held its nodes for 00:00:08", "a node has 0:00:05 to boot (ResumeTimeout)"}));
  EXPECT_EQ(explain(job, {}).meaning, kNeverBooted);
  EXPECT_FALSE(never_booted(slurm::parse_details(kUnbootedJob)->at(0), {}));
}

TEST_F(Why, APreemptorIsTheJobThatThenStartedThere) {
  const auto started = [](const char* id, const char* nodes, int64_t time) {
    return slurm::JobState{.id = id,
                           .base_id = id,
                           .user = "bob",
                           .partition = "urgent",
                           .state = "RUNNING",
                           .nodes = nodes,
                           .started = time};
  };
  const std::vector<slurm::JobState> queue{started("30", "n[1-2]", kNow + 3), started("31", "n9", kNow + 3),
                                           started("32", "n1", kNow - 3), started("33", "n1", kNow + 1000),
                                           started("20", "n1", kNow + 2)};
  const auto job = slurm::parse_details(
      "JobId=20 JobState=PREEMPTED Reason=None ExitCode=0:15 PreemptTime=2026-11-25T04:43:50 NodeList=n1\n");
  ASSERT_TRUE(job);
  const std::string who = "job 30 (bob, partition urgent) then started on n[1-2], at 2026-11-25T04:43:53Z";
  EXPECT_THAT(explain((*job)[0], {.queue = queue}).evidence,
              ElementsAre("exit status and signal: 0:15", "on n1", "it was preempted at 2026-11-25T04:43:50Z", who));
  // Also of one that Slurm has requeued; not of one that was never preempted.
  EXPECT_THAT(explain(waiting("BeginTime", "PreemptTime=2026-11-25T04:43:50 NodeList=n1 Restarts=1"),
                      {.queue = queue, .now = kNow})
                  .evidence,
              testing::IsSupersetOf({std::string("it was requeued: this is start 2"), who}));
  EXPECT_THAT(explain(ended("PREEMPTED", "0:15"), {.queue = queue}).evidence, Not(Contains(HasSubstr("preempted"))));
}

TEST_F(Why, EachRowOfTheEndsIsReachedAndComplete) {
  std::set<std::string_view> seen;
  for (const ReasonRule& rule : end_states()) {
    EXPECT_TRUE(seen.insert(rule.reason).second) << rule.reason;
    const bool by_status = rule.reason.starts_with("EXIT ");
    const auto job =
        by_status ? ended("FAILED", std::string(rule.reason.substr(5))) : ended(std::string(rule.reason), "1:0");
    const Explanation why = explain(job, {.log_error = "ValueError: x"});
    EXPECT_EQ(why.meaning, rule.meaning) << rule.reason;
    EXPECT_EQ(why.outlook, rule.reason == "COMPLETED" ? Outlook::kDone : Outlook::kFailed) << rule.reason;
    EXPECT_EQ(why.evidence.empty(), rule.reason == "COMPLETED") << rule.reason;
    // Whoever cancelled a job needs no way out.
    EXPECT_EQ(why.fix.empty(), rule.reason == "COMPLETED" || rule.reason == "CANCELLED") << rule.reason;
    EXPECT_THAT(why.fix, Not(HasSubstr("requeue ID"))) << rule.reason;
  }
  // A status that no row knows is told by the state.
  EXPECT_EQ(explain(ended("FAILED", "77:0"), {}).meaning, "The script ended with an error.");
  // An ended job's own state says more than its status.
  EXPECT_THAT(explain(ended("TIMEOUT", "0:9"), {}).meaning, HasSubstr("time limit"));
}

TEST_F(Why, EachRowIsReachedAndComplete) {
  std::set<std::string_view> seen;
  for (const ReasonRule& rule : waiting_reasons()) {
    EXPECT_TRUE(seen.insert(rule.reason).second) << rule.reason;
    std::string reason(rule.reason);
    std::erase(reason, '*');
    std::replace(reason.begin(), reason.end(), ' ', '_');
    EXPECT_EQ(explain(waiting(reason), {}).meaning, rule.meaning) << reason;
    EXPECT_FALSE(rule.fix.empty()) << reason;
  }
}

TEST(FirstError, IsNotAConsequence) {
  EXPECT_EQ(
      first_error("step 1\nsrun: error: n1: task 0: Exited\nChildFailedError: x\nTraceback (most recent call last):\n"
                  "  File \"a.py\"\nValueError: bad shape\nRuntimeError: later\n"),
      "ValueError: bad shape");
  EXPECT_EQ(first_error("/var/spool/job: line 3: pythn: command not found\n"),
            "/var/spool/job: line 3: pythn: command not found");
  EXPECT_EQ(first_error("all fine\nno errors\n"), "");
}

}  // namespace
}  // namespace millrace::jobs
