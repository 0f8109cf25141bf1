// SPDX-License-Identifier: Apache-2.0
// Answers of Slurm 24.11 to 26.05, which the tests do not run. Each says where it comes from: printed in public
// documentation, or constructed from the format strings of src/scontrol and src/api of the branch.
#include <gmock/gmock.h>

#include <array>
#include <string>

#include "millrace/slurm/details.h"
#include "millrace/slurm/queue.h"
#include "millrace/slurm/reservations.h"
#include "millrace/slurm/slurm.h"

namespace millrace::slurm {
namespace {

using testing::ElementsAre;

// AWS PCS, "(Optional) Test EFA", 25.05.5; on one line, as `scontrol -o` prints it.
constexpr std::string_view kPcsNode =
    "NodeName=hpc7g-1 Arch=aarch64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=64 CPUTot=64 CPULoad=0.00 "
    "AvailableFeatures=hpc7g ActiveFeatures=hpc7g Gres=(null) NodeAddr=10.3.140.69 NodeHostName=ip-10-3-140-69 "
    "Version=25.05.5 OS=Linux 5.10.218-208.862.amzn2.aarch64 #1 SMP Tue Jun 4 16:52:10 UTC 2024  RealMemory=124518 "
    "AllocMem=0 FreeMem=110763 Sockets=64 Boards=1 State=IDLE+CLOUD ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A "
    "MCS_label=N/A Partitions=efa  BootTime=2024-07-02T19:00:09 SlurmdStartTime=2024-07-08T19:33:25 "
    "LastBusyTime=2024-07-08T19:33:25 ResumeAfterTime=None CfgTRES=cpu=64,mem=124518M,billing=64 AllocTRES= "
    "CapWatts=n/a CurrentWatts=0 AveWatts=0 ExtSensorsJoules=n/a ExtSensorsWatts=0 ExtSensorsTemp=n/a "
    "Reason=Maintain Minimum Number Of Instances [root@2024-07-02T18:59:00] InstanceId=i-04927897a9ce3c143 "
    "InstanceType=hpc7g.16xlarge\n";

TEST(SlurmVersions, ANodeOfPcs) {
  const auto nodes = parse_nodes(kPcsNode);
  ASSERT_TRUE(nodes) << nodes.error().to_string();
  const Node& node = nodes->at(0);
  EXPECT_EQ(node.name, "hpc7g-1");
  EXPECT_TRUE(node.usable);
  EXPECT_FALSE(node.powered_down);
  EXPECT_EQ(node.cpus, 64);
  EXPECT_EQ(node.memory_mib, 124518);
  EXPECT_EQ(node.gpus(), 0);
  EXPECT_EQ(node.reason, "Maintain Minimum Number Of Instances");
  EXPECT_THAT(node.partitions, ElementsAre("efa"));
}

// What each version adds to a node's line.
TEST(SlurmVersions, NodesWithTopology) {
  const std::string head =
      "NodeName=p5-2 Arch=x86_64 CoresPerSocket=48  CPUAlloc=96 CPUEfctv=188 CPUTot=192 CPULoad=90.10 "
      "AvailableFeatures=p5,spot ActiveFeatures=p5 Gres=gpu:h100:8(S:0-1) GresUsed=gpu:h100:4(IDX:0-3) NodeAddr=p5-2 "
      "NodeHostName=p5-2 Port=6819 Version=25.05.8 OS=Linux 6.1.0 #1 SMP  RealMemory=2000000 AllocMem=1000000 "
      "FreeMem=900000 Sockets=2 Boards=1 CoreSpecCount=2 CPUSpecList=94-95,190-191 MemSpecLimit=1024 "
      "RestrictedCoresPerGPU=6(8-15)  State=MIXED+CLOUD+DYNAMIC_NORM ThreadsPerCore=2 TmpDisk=7000 Weight=1 Owner=N/A "
      "MCS_label=N/A Partitions=gpu,all  BootTime=2026-01-02T19:00:09 SlurmdStartTime=2026-01-02T19:01:09 "
      "LastBusyTime=2026-01-02T19:33:25 ResumeAfterTime=None ";
  const std::string tail =
      "CfgTRES=cpu=188,mem=2000000M,billing=188,gres/gpu=8,gres/gpu:h100=8 AllocTRES=cpu=96,mem=1000000M,gres/gpu=4 "
      "CurrentWatts=n/a AveWatts=n/a Comment=rack 7 State=of the art Extra={\"a\": 1} InstanceId=i-1 "
      "InstanceType=p5.48xlarge ReservationName=maint ";
  const std::array<std::string, 4> lines{
      head + tail + "\n",                                                                       // 24.11
      head + tail + "TLSCertTokenSet=No TLSCertLastRenewal=None Topology=tree:s1,block:b2 \n",  // 25.05
      head + tail + "Topology=topo-block:b2.1 Parameters=a=b \n",                               // 25.11
      head + " SuspendTime=600 " + tail + "Topology=ring:r1 \n"};                               // 26.05
  for (const std::string& line : lines) {
    const auto nodes = parse_nodes(line);
    ASSERT_TRUE(nodes) << line;
    const Node& node = nodes->at(0);
    EXPECT_EQ(node.gpus(), 8) << line;
    EXPECT_EQ(node.gpus_used(), 4) << line;
    EXPECT_EQ(node.gpu_type(), "h100") << line;
    EXPECT_EQ(node.cpus - node.cpus_used, 96) << line;
    EXPECT_EQ(node.tmp_mib, 7000) << line;
    EXPECT_THAT(node.partitions, ElementsAre("gpu", "all")) << line;
    EXPECT_TRUE(node.usable) << line;
    EXPECT_EQ(node.state, "MIXED+CLOUD+DYNAMIC_NORM") << line;
  }
}

// node_states and node_state_flags of slurm_protocol_defs.c, 26.05.
TEST(SlurmVersions, StatesOfNodes) {
  const auto usable = [](const std::string& state) {
    return parse_nodes("NodeName=n1 CPUTot=4 State=" + state + "\n")->at(0).usable;
  };
  for (const char* open : {"IDLE", "MIXED+CLOUD", "ALLOCATED+COMPLETING", "IDLE+BLOCKED", "IDLE+CLOUD+POWERED_DOWN",
                           "IDLE+PLANNED", "IDLE+RESERVED", "IDLE+DYNAMIC_NORM", "IDLE+REBOOT_REQUESTED"}) {
    EXPECT_TRUE(usable(open)) << open;
  }
  for (const char* closed : {"DOWN", "IDLE+DRAIN", "IDLE+FAIL", "IDLE+MAINTENANCE", "IDLE+INVALID_REG", "ERROR",
                             "FUTURE", "IDLE+NOT_RESPONDING", "IDLE+REBOOT_ISSUED", "UNKNOWN+EXTERNAL"}) {
    EXPECT_FALSE(usable(closed)) << closed;
  }
}

// partition_info.c and info_part.c: 26.05 tells whole nodes by Exclusive.
TEST(SlurmVersions, Partitions) {
  const auto line = [](const char* exclusive, const char* share, const char* topology) {
    return std::string(
               "PartitionName=gpu AllowGroups=ALL AllowAccounts=lab,physics AllowQos=ALL AllocNodes=ALL Default=YES "
               "QoS=N/A DefaultTime=01:00:00 DisableRootJobs=NO ") +
           exclusive + " GraceTime=120 Hidden=NO MaxNodes=16 MaxTime=2-00:00:00 MinNodes=1 LLN=NO " +
           "MaxCPUsPerNode=UNLIMITED MaxCPUsPerSocket=UNLIMITED NodeSets=p5 Nodes=p5-[1-16] PriorityJobFactor=1 "
           "PriorityTier=5 RootOnly=NO ReqResv=NO OverSubscribe=" +
           share + " OverTimeLimit=NONE PreemptMode=REQUEUE " + topology +
           "State=UP TotalCPUs=3072 TotalNodes=16 SelectTypeParameters=NONE JobDefaults=DefCpuPerGPU=12 "
           "DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED TRES=cpu=3072,mem=32T,node=16,gres/gpu=128 "
           "TRESBillingWeights=CPU=1.0,GRES/gpu=10 ResumeTimeout=GLOBAL SuspendTimeout=GLOBAL SuspendTime=GLOBAL "
           "PowerDownOnIdle=NO\n";
  };
  struct Case {
    std::string line;
    bool whole;
  };
  const std::array<Case, 7> cases{{
      {line("ExclusiveUser=NO ExclusiveTopo=NO", "EXCLUSIVE", ""), true},            // 24.11
      {line("ExclusiveUser=NO ExclusiveTopo=NO", "FORCE:2", "Topology=b "), false},  // 25.05, 25.11
      {line("Exclusive=NODE", "NO", "Topology=b "), true},                           // 26.05
      {line("Exclusive=TOPO", "NO", ""), true},
      {line("Exclusive=USER", "YES:4", ""), false},
      {line("Exclusive=NO", "NO", ""), false},
      {line("ExclusiveUser=YES ExclusiveTopo=NO", "NO", ""), false},
  }};
  for (const Case& each : cases) {
    const auto partitions = parse_partitions(each.line);
    ASSERT_TRUE(partitions) << each.line;
    const Partition& partition = partitions->at(0);
    EXPECT_EQ(partition.whole_nodes, each.whole) << each.line;
    EXPECT_TRUE(partition.up && partition.is_default && partition.preempted) << each.line;
    EXPECT_EQ(partition.max_time_s, 2 * 86400) << each.line;
    EXPECT_EQ(partition.max_nodes, 16) << each.line;
    EXPECT_FALSE(partition.resume_timeout_s) << each.line;
    EXPECT_EQ(partition.nodes, "p5-[1-16]") << each.line;
    EXPECT_EQ(partition.priority_tier, 5) << each.line;
    EXPECT_THAT(partition.accounts, ElementsAre("lab", "physics")) << each.line;
  }
}

// A partition's own time to boot, as 22.05.8 printed it.
TEST(SlurmVersions, ResumeTimeoutOfAPartition) {
  const auto partitions = parse_partitions("PartitionName=cloud Nodes=cloud-[1-2] State=UP ResumeTimeout=6\n");
  ASSERT_TRUE(partitions);
  EXPECT_EQ(partitions->at(0).resume_timeout_s, 6);
}

// info_job.c of 26.05: SLUID, Exclusive, and the words that the user typed.
TEST(SlurmVersions, AJobWithItsSubmitLine) {
  const auto jobs = parse_details(
      "JobId=75 ArrayJobId=73 ArrayTaskId=2 ArrayTaskThrottle=4 JobName=train SLUID=s7xYz UserId=ann(1000) "
      "GroupId=ann(1000) MCS_label=N/A Priority=1 Nice=0 Account=lab QOS=normal JobState=NODE_FAIL Reason=NodeDown "
      "FailedNode=p5-2 Dependency=(null) Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:15 RunTime=01:00:00 "
      "TimeLimit=02:00:00 TimeMin=N/A SubmitTime=2026-01-02T19:00:09 Partition=gpu AllocNode:Sid=login:77 "
      "ReqNodeList=(null) ExcNodeList=(null) NodeList=p5-[1-2] BatchHost=p5-1 StepMgrEnabled=Yes NumNodes=2 "
      "NumCPUs=384 NumTasks=2 CPUs/Task=96 ReqB:S:C:T=0:0:*:* ReqTRES=cpu=384,node=2,gres/gpu=16 "
      "AllocTRES=cpu=384,node=2,gres/gpu=16 Socks/Node=* NtasksPerN:B:S:C=1:0:*:* CoreSpec=* MinCPUsNode=96 "
      "MinMemoryNode=0 MinTmpDiskNode=0 MemUpdate=10%@5min Features=(null) DelayBoot=00:00:00 OverSubscribe=NO "
      "Exclusive=NODE Contiguous=0 Licenses=(null) LicensesAlloc=(null) Network=(null) Command=/fsx/train.sbatch "
      "SubmitLine=sbatch -N 2 train.sbatch JobState=COMPLETED NodeList=none Name=x y WorkDir=/fsx/run "
      "StdErr=/fsx/run/75.log StdIn=/dev/null StdOut=/fsx/run/75.log SegmentSize=2 SpreadSegments=Yes Switches=1@10:00 "
      "TresPerNode=gres/gpu:h100:8 ResvPorts=12-13\n");
  ASSERT_TRUE(jobs) << jobs.error().to_string();
  const JobDetails& job = jobs->at(0);
  EXPECT_EQ(job.id(), "73_2");
  EXPECT_EQ(job.state, "NODE_FAIL");
  EXPECT_EQ(job.fields.at("NodeList"), "p5-[1-2]");
  EXPECT_EQ(job.fields.at("FailedNode"), "p5-2");
  EXPECT_EQ(job.fields.at("SubmitLine"), "sbatch -N 2 train.sbatch JobState=COMPLETED NodeList=none Name=x y");
  EXPECT_EQ(job.work_dir, "/fsx/run");
  EXPECT_EQ(job.output, "/fsx/run/75.log");
  EXPECT_EQ(job.node, "p5-1");
  EXPECT_EQ(job.restarts, 2);
}

// reservation_info.c of 26.05 adds a line with AllowedPartitions.
TEST(SlurmVersions, Reservations) {
  const auto found = parse_reservations(
      "ReservationName=maint StartTime=2026-01-02T19:00:00 EndTime=2026-01-02T21:00:00 Duration=02:00:00 "
      "Nodes=p5-[1-2] NodeCnt=2 CoreCnt=192 Features=(null) PartitionName=(null) Flags=MAINT,SPEC_NODES "
      "TRES=cpu=384 Users=root Groups=(null) Accounts=(null) Licenses=(null) State=INACTIVE BurstBuffer=(null) "
      "AllowedPartitions=gpu QOS=(null) MaxStartDelay=(null)\n");
  ASSERT_TRUE(found) << found.error().to_string();
  EXPECT_THAT(found->at(0).nodes, ElementsAre("p5-1", "p5-2"));
  EXPECT_TRUE(found->at(0).is_maintenance());
  EXPECT_FALSE(found->at(0).active);
}

}  // namespace
}  // namespace millrace::slurm
