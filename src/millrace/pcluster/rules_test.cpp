// SPDX-License-Identifier: Apache-2.0
// Each rule: a change of a correct file that it must find, on the line that holds a mark, and one that it must not.
#include "millrace/pcluster/rules.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "millrace/pcluster/lint.h"

namespace millrace::pcluster {
namespace {

constexpr std::string_view kGood = R"(Region: us-east-2
Image:
  Os: alinux2023
HeadNode:
  InstanceType: m6i.4xlarge
  SharedStorageType: Efs
  Networking:
    SubnetId: subnet-0123456789abcdef0
  Ssh:
    KeyName: ops
    AllowedIps: 10.0.0.0/8
  LocalStorage:
    RootVolume: {Size: 100, VolumeType: gp3}
  Iam:
    S3Access:
      - BucketName: tools
Scheduling:
  Scheduler: slurm
  ScalingStrategy: all-or-nothing
  SlurmSettings:
    ScaledownIdletime: 20
    EnableMemoryBasedScheduling: true
    Database:
      Uri: db.internal:3306
      UserName: slurm
      PasswordSecretArn: arn:aws:secretsmanager:us-east-2:123456789012:secret:db
    CustomSlurmSettings:
      - DefMemPerGPU: 240000
  SlurmQueues:
    - Name: train
      CapacityType: ONDEMAND
      Networking:
        SubnetIds:
          - subnet-0aaaaaaaaaaaabbbb
        PlacementGroup:
          Enabled: false
      ComputeSettings:
        LocalStorage:
          RootVolume: {Size: 200, VolumeType: gp3, Iops: 16000, Throughput: 1000}
          EphemeralVolume: {MountDir: /nvme}
      CustomActions:
        OnNodeConfigured:
          Script: s3://tools/node.sh
      Iam:
        S3Access:
          - BucketName: tools
      ComputeResources:
        - Name: h200
          InstanceType: p5e.48xlarge
          MinCount: 16
          MaxCount: 16
          Efa:
            Enabled: true
          CapacityReservationTarget:
            CapacityReservationId: cr-0123456789abcdef0
          CustomSlurmSettings: {Sockets: 2, CoresPerSocket: 48}
    - Name: cpu
      Networking:
        SubnetIds:
          - subnet-0aaaaaaaaaaaacccc
      ComputeResources:
        - Name: small
          Instances:
            - InstanceType: c6i.4xlarge
            - InstanceType: c5.4xlarge
          MinCount: 0
          MaxCount: 4
SharedStorage:
  - Name: data
    MountDir: /fsx1
    StorageType: FsxLustre
    FsxLustreSettings:
      DeploymentType: PERSISTENT_2
      StorageCapacity: 7200
      PerUnitStorageThroughput: 1000
      DeletionPolicy: Retain
  - Name: old
    MountDir: /fsx2
    StorageType: FsxLustre
    FsxLustreSettings:
      FileSystemId: fs-0123456789abcdef0
Monitoring:
  Logs:
    CloudWatch:
      Enabled: true
      RetentionInDays: 30
Tags:
  - Key: Project
    Value: "7"
)";

struct Case {
  const char* rule;
  const char* find;  // of kGood
  const char* bad;   // in its place: the rule speaks
  const char* mark;  // on the line that holds this
  const char* good;  // in its place: it does not
  const char* facts = "";
  const char* version = "3.16.3";
  const char* os = "alinux2023";
};

std::string changed(std::string_view find, std::string_view put) {
  std::string text(kGood);
  const size_t at = text.find(find);
  EXPECT_NE(at, std::string::npos) << find;
  return text.replace(at, find.size(), put);
}

int64_t line_of(const std::string& text, std::string_view mark) {
  const size_t at = text.find(mark);
  EXPECT_NE(at, std::string::npos) << mark;
  return 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
}

std::vector<Finding> lint(std::string text, const Case& test) {
  if (const size_t os = text.find("alinux2023"); os != std::string::npos) text.replace(os, 10, test.os);
  auto findings = lint_config(
      text, {.file = "c.yaml", .version = *parse_version(test.version), .facts_file = "f", .facts = test.facts});
  EXPECT_TRUE(findings.has_value()) << (findings ? "" : findings.error().to_string());
  return findings ? *std::move(findings) : std::vector<Finding>{};
}

std::string all_of(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) text += finding_text(finding);
  return text;
}

constexpr const char* kEfs =
    "  - Name: old\n    MountDir: /fsx2\n    StorageType: FsxLustre\n    FsxLustreSettings:\n      FileSystemId: "
    "fs-0123456789abcdef0\n";
constexpr const char* kUnit = "      PerUnitStorageThroughput: 1000\n";
constexpr const char* kSubnet = "          - subnet-0aaaaaaaaaaaabbbb\n";
constexpr const char* kReservation =
    "          CapacityReservationTarget:\n            CapacityReservationId: cr-0123456789abcdef0\n";
constexpr const char* kGpuCount = "          MinCount: 16\n          MaxCount: 16\n";
constexpr const char* kBlock =
    "CapacityType: CAPACITY_BLOCK\n      Networking:\n        SubnetIds:\n          - subnet-0aaaaaaaaaaaabbbb\n";
constexpr const char* kDemand =
    "CapacityType: ONDEMAND\n      Networking:\n        SubnetIds:\n          - subnet-0aaaaaaaaaaaabbbb\n        "
    "PlacementGroup:\n          Enabled: false\n";

constexpr const char* kTemplate =
    "          MinCount: 16\n          MaxCount: 16\n          LaunchTemplateOverrides:\n            LaunchTemplateId: "
    "lt-0123456789abcdef0\n            Version: 1\n";
constexpr const char* kLogin =
    "LoginNodes:\n  Pools:\n    - Name: login\n      InstanceType: m6i.large\n      Count: 1\n      Networking:\n      "
    "  "
    "SubnetIds: [subnet-0aaaaaaaaaaaacccc]\n      Ssh:\n        KeyName: k\nTags:\n";
constexpr const char* kGpuTypes =
    "          InstanceType: p5e.48xlarge\n          MinCount: 16\n          MaxCount: 16\n";
constexpr const char* kUltra =
    "          InstanceType: p6e-gb200.36xlarge\n          MinCount: 18\n          MaxCount: 18\n";
constexpr const char* kBigAndEbs =
    "          MaxCount: 85\nSharedStorage:\n  - Name: e\n    MountDir: /ebs\n    StorageType: Ebs\n    EbsSettings: "
    "{DeletionPolicy: Retain}\n";
constexpr const char* kLessAndEbs =
    "          MaxCount: 84\nSharedStorage:\n  - Name: e\n    MountDir: /ebs\n    StorageType: Ebs\n    EbsSettings: "
    "{DeletionPolicy: Retain}\n";

const Case kCases[] = {
    {"PC01", "Monitoring:\n", "Monitering:\n", "Monitering", "Monitoring:\n"},
    {"PC01", "  Scheduler: slurm\n", "  Scheduler: slurm\n  ScaledownIdletime: 9\n", "ScaledownIdletime: 9",
     "  Scheduler: slurm\n"},
    {"PC02", "  Os: alinux2023\n", "  CustomAmi: ami-12345678\n",
     "Image:", "  Os: alinux2023\n  CustomAmi: ami-12345678\n"},
    {"PC02", "Scheduler: slurm\n", "Scheduler: slurm\n  AwsBatchSettings: {}\n", "AwsBatchSettings",
     "Scheduler: slurm\n", "", "3.15"},
    {"PC06", "Scheduler: slurm\n", "Scheduler: slurm\n  AwsBatchSettings: {}\n", "AwsBatchSettings",
     "Scheduler: slurm\n"},
    {"PC06", "Scheduler: slurm\n", "Scheduler: awsbatch\n", "awsbatch", "Scheduler: slurm\n"},
    {"PC06", "  SharedStorageType: Efs\n",
     "  SharedStorageType: Efs\n  SharedStorageEfsSettings:\n    Encrypted: true\n", "SharedStorageEfsSettings",
     "  SharedStorageType: Efs\n", "", "3.13"},
    {"PC06", kGpuCount, kTemplate, "LaunchTemplateOverrides", kGpuCount, "", "3.14"},
    {"PC06", "ONDEMAND\n", "SPOT\n      AllocationStrategy: capacity-optimized-prioritized\n", "Allocation",
     "SPOT\n      AllocationStrategy: price-capacity-optimized\n", "", "3.13"},
    {"PC06", "Tags:\n", "DevSettings:\n  AmiSearchFilters:\n    NamePrefix: x\nTags:\n", "NamePrefix", "Tags:\n", "",
     "3.14"},
    {"PC06", "Tags:\n", "DevSettings:\n  Timeouts:\n    ComputeInstanceInfoTimeout: 90\nTags:\n", "InfoTimeout",
     "DevSettings:\n  Timeouts:\n    ComputeNodeBootstrapTimeout: 2100\nTags:\n", "", "3.15.1"},
    {"PC06", "Tags:\n", kLogin, "KeyName: k", "Tags:\n"},
    {"PC03", "subnet-0123456789abcdef0", "subnet-0123", "subnet-0123", "subnet-01234567"},
    {"PC03", "KeyName: ops", "KeyName: your-key", "your-key", "KeyName: \"12345\""},
    {"PC03", "s3://tools/node.sh", "s3://your-bucket/node.sh", "your-bucket", "s3://not-your-bucket/node.sh"},
    {"PC03", "CapacityReservationId: cr-0123456789abcdef0", "CapacityReservationId: cr-xxxxxxxx", "cr-xxxxxxxx",
     "CapacityReservationId: cr-0123456789abcdef1"},
    {"PC04", "us-east-2\nImage", "us-east-9\nImage", "Region", "ap-southeast-3\nImage"},
    {"PC04", "us-east-2\nImage", "ap-southeast-3\nImage", "Region", "us-east-1\nImage", "", "3.10"},
    {"PC05", "alinux2023", "ubuntu2004x", "Os:", "ubuntu2204"},
    {"PC05", "alinux2023", "rocky9", "Os:", "rocky9\n  CustomAmi: ami-12345678"},
    {"PC05", "alinux2023", "alinux2", "Os:", "rhel9"},
    {"PC05", "alinux2023", "alinux2", "Os:", "rhel9", "", "3.15"},
    {"PC05", "alinux2023", "ubuntu2004", "Os:", "ubuntu2404"},
    {"PC05", "alinux2023", "ubuntu2404", "Os:", "ubuntu2204", "", "3.12"},
    {"PC05", "alinux2023", "ubuntu2204", "KeyName", "alinux2023", "key_type: rsa"},
    {"PC05", "alinux2023", "ubuntu2404", "KeyName", "alinux2023", "key_type: rsa"},
    {"PC06", "Scheduler: slurm\n", "Scheduler: slurm\n", "ScalingStrategy", "Scheduler: slurm\n", "", "3.7"},
    {"PC07", "Name: train", "Name: Train", "Train", "Name: train2"},
    {"PC07", "Name: cpu", "Name: train",
     "Name: train\n      Networking:\n        SubnetIds:\n          - subnet-0aaaaaaaaaaaacccc", "Name: cpu2"},
    {"PC08", "Region", "Region", "", "Region", "cluster_name: 9lives"},
    {"PC10", "MinCount: 0\n", "MinCount: 5\n", "MaxCount: 4", "MinCount: 4\n"},
    {"PC11", "ONDEMAND", "capacity-block", "capacity-block", "ONDEMAND"},
    {"PC11", "ONDEMAND\n", "ONDEMAND\n      AllocationStrategy: capacity-optimized\n", "Allocation",
     "ONDEMAND\n      AllocationStrategy: lowest-price\n"},
    {"PC11", "ONDEMAND\n", "SPOT\n      AllocationStrategy: prioritized\n", "Allocation",
     "ONDEMAND\n      AllocationStrategy: prioritized\n"},
    {"PC12", kDemand,
     "CapacityType: CAPACITY_BLOCK\n      AllocationStrategy: lowest-price\n      Networking:\n        SubnetIds:\n    "
     "      - subnet-0aaaaaaaaaaaabbbb\n",
     "Allocation", kBlock},
    {"PC12", kDemand, kDemand, "CapacityReservationId", kBlock,
     "reservations: {cr-0123456789abcdef0: {kind: capacity-block}}"},
    {"PC13", kDemand,
     "CapacityType: CAPACITY_BLOCK\n      Networking:\n        SubnetIds:\n          - subnet-0aaaaaaaaaaaabbbb\n      "
     "  PlacementGroup:\n          Enabled: true\n",
     "Enabled: true", kBlock},
    {"PC14", kGpuCount, "          MinCount: 80\n          MaxCount: 80\n", "MaxCount: 80", kGpuCount,
     "reservations: {cr-0123456789abcdef0: {kind: capacity-block}}"},
    {"PC15", kReservation,
     "          CapacityReservationTarget:\n            CapacityReservationId: cr-0123456789abcdef0\n            "
     "CapacityReservationResourceGroupArn: arn:aws:resource-groups:x\n",
     "GroupArn", kReservation},
    {"PC15", kReservation, "          CapacityReservationTarget: {}\n", "CapacityReservationTarget", kReservation},
    {"PC16", kGpuCount, kGpuCount, "MaxCount: 16", "          MinCount: 8\n          MaxCount: 8\n",
     "reservations: {cr-0123456789abcdef0: {count: 8}}"},
    {"PC16", "p5e.48xlarge", "p5en.48xlarge", "InstanceType: p5en", "p5e.48xlarge",
     "reservations: {cr-0123456789abcdef0: {instance_type: p5e.48xlarge}}"},
    {"PC16", "cr-0123456789abcdef0", "cr-0123456789abcdef0", "CapacityReservationId", "cr-0123456789abcdef1",
     "reservations: {cr-0123456789abcdef0: {platform: Red Hat Enterprise Linux}}"},
    {"PC16", kSubnet, kSubnet, "0aaaaaaaaaaaabbbb", "          - subnet-0aaaaaaaaaaaadddd\n",
     "{reservations: {cr-0123456789abcdef0: {zone: b}}, subnets: {subnet-0aaaaaaaaaaaabbbb: {zone: a}}}"},
    {"PC17", "Enabled: false", "Enabled: true", "Enabled: true", "Enabled: false"},
    {"PC18", "MinCount: 16", "MinCount: 0 # 0", "MinCount: 0 # 0", "MinCount: 16"},
    {"PC19", "InstanceType: p5e.48xlarge\n",
     "InstanceType: p5e.48xlarge\n          Instances: [{InstanceType: p5.48xlarge}]\n", "Instances: [",
     "InstanceType: p5.48xlarge\n"},
    {"PC19", "InstanceType: c5.4xlarge", "InstanceType: c6i.4xlarge # 2", "# 2", "InstanceType: c5a.4xlarge"},
    {"PC19", "InstanceType: p5e.48xlarge\n", "\n", "Name: h200", "InstanceType: p5e.48xlarge\n", "", "3.7"},
    {"PC20", "InstanceType: c5.4xlarge", "InstanceType: c5.9xlarge", "c5.9xlarge", "InstanceType: c5d.4xlarge"},
    {"PC20", "InstanceType: c5.4xlarge", "InstanceType: g5.4xlarge", "g5.4xlarge", "InstanceType: m5.4xlarge"},
    {"PC21", kSubnet, "          - subnet-0aaaaaaaaaaaabbbb\n          - subnet-0aaaaaaaaaaaadddd\n", "SubnetIds",
     kSubnet},
    {"PC21", "          - subnet-0aaaaaaaaaaaacccc\n",
     "          - subnet-0aaaaaaaaaaaacccc\n          - subnet-0aaaaaaaaaaaacccc # 2\n", "# 2",
     "          - subnet-0aaaaaaaaaaaacccc\n"},
    {"PC22", "p5e.48xlarge", "c6i.4xlarge", "InstanceType: c6i.4xlarge", "p5.48xlarge"},
    {"PC22", "          Efa:\n            Enabled: true\n", "          Efa:\n            Enabled: false\n",
     "p5e.48xlarge", "          Efa:\n            Enabled: true\n"},
    {"PC23", "        PlacementGroup:\n          Enabled: false\n", "",
     "Efa:", "        PlacementGroup:\n          Enabled: true\n"},
    {"PC23", kReservation, "", "Enabled: false", kReservation},
    {"PC24", "            Enabled: true\n", "            Enabled: false\n            GdrSupport: true\n", "GdrSupport",
     "            Enabled: true\n"},
    {"PC25", kSubnet, "          - subnet-0aaaaaaaaaaaabbbb\n        AssignPublicIp: true\n", "AssignPublicIp",
     "          - subnet-0aaaaaaaaaaaabbbb\n        AssignPublicIp: false\n"},
    {"PC25", "          - subnet-0aaaaaaaaaaaacccc\n      ComputeResources:\n        - Name: small\n",
     "          - subnet-0aaaaaaaaaaaacccc\n        AssignPublicIp: true\n      ComputeResources:\n        - {Name: e, "
     "InstanceType: c5n.18xlarge, Efa: {Enabled: true}}\n        - Name: small\n",
     "AssignPublicIp",
     "          - subnet-0aaaaaaaaaaaacccc\n        AssignPublicIp: true\n      ComputeResources:\n        - {Name: e, "
     "InstanceType: c5n.18xlarge}\n        - Name: small\n"},
    {"PC26", kSubnet, kSubnet, "0aaaaaaaaaaaabbbb", "          - subnet-0aaaaaaaaaaaadddd\n",
     "subnets: {subnet-0aaaaaaaaaaaabbbb: {prefix: 24}, subnet-0aaaaaaaaaaaadddd: {prefix: 20}}"},
    {"PC27", kSubnet,
     "          - subnet-0aaaaaaaaaaaabbbb\n        SecurityGroups: [sg-12345678]\n        AdditionalSecurityGroups: "
     "[sg-12345678]\n",
     "Additional", "          - subnet-0aaaaaaaaaaaabbbb\n        AdditionalSecurityGroups: [sg-12345678]\n"},
    {"PC27", "    SubnetId: subnet-0123456789abcdef0\n",
     "    SubnetId: subnet-0123456789abcdef0\n    SecurityGroups: [sg-12345678]\n", "SecurityGroups",
     "    SubnetId: subnet-0123456789abcdef0\n"},
    {"PC28", kSubnet, "          - subnet-0aaaaaaaaaaaabbbb\n        SecurityGroups: [sg-12345678]\n", "SecurityGroups",
     "          - subnet-0aaaaaaaaaaaabbbb\n        SecurityGroups: [sg-87654321]\n",
     "security_groups: {sg-87654321: {self_all: true}}"},
    {"PC29", "          Enabled: false\n", "          Enabled: false\n          Name: g\n", "Name: g",
     "          Enabled: false\n"},
    {"PC30", "VolumeType: gp3, Iops: 16000", "VolumeType: gp9, Iops: 16000", "gp9", "VolumeType: gp3, Iops: 4000"},
    {"PC30", "Size: 200", "Size: 20", "Size: 20", "Size: 32", "", "3.6"},
    {"PC30", "Size: 200", "Size: 49", "Size: 49", "Size: 50"},
    {"PC30", "Size: 200", "Size: 44", "Size: 44", "Size: 45", "", "3.16.1"},
    {"PC30", "Size: 200", "Size: 39", "Size: 39", "Size: 40", "", "3.12"},
    {"PC30", "Iops: 16000", "Iops: 3900", "Iops: 3900", "Iops: 4000"},
    {"PC30", "Throughput: 1000}", "Throughput: 1001}", "Throughput: 1001", "Throughput: 125}"},
    {"PC31", "{Size: 200,", "{Encrypted: false, Size: 200,", "Name: cpu", "{Encrypted: true, Size: 200,"},
    {"PC32", "      FileSystemId: fs-0123456789abcdef0\n", "      StorageCapacity: 1200\n",
     "MountDir: /fsx2\n    StorageType", "      FileSystemId: fs-0123456789abcdef1\n"},
    {"PC33", "PERSISTENT_2", "PERSISTENT", "PERSISTENT", "PERSISTENT_2"},
    {"PC33", "PERSISTENT_2", "SCRATCH_2", "PerUnit", "PERSISTENT_2"},
    {"PC33", kUnit, "", "DeploymentType", kUnit},
    {"PC34", kUnit, "      PerUnitStorageThroughput: 200\n", "PerUnit", "      PerUnitStorageThroughput: 250\n"},
    {"PC35", "StorageCapacity: 7200", "StorageCapacity: 3600", "3600", "StorageCapacity: 1200"},
    {"PC36", kUnit, "      PerUnitStorageThroughput: 1000\n      StorageType: HDD\n", "HDD",
     "      PerUnitStorageThroughput: 1000\n      StorageType: SSD\n"},
    {"PC36", kUnit, "      PerUnitStorageThroughput: 1000\n      DriveCacheType: READ\n", "DriveCacheType", kUnit},
    {"PC37", "      FileSystemId: fs-0123456789abcdef0\n",
     "      FileSystemId: fs-0123456789abcdef0\n      StorageCapacity: 1200\n", "StorageCapacity: 1200",
     "      FileSystemId: fs-0123456789abcdef1\n"},
    {"PC38", kUnit, "      PerUnitStorageThroughput: 1000\n      ExportPath: s3://b/x\n", "ExportPath",
     "      PerUnitStorageThroughput: 1000\n      ImportPath: s3://b\n      ExportPath: s3://b/x\n"},
    {"PC38", kUnit, "      PerUnitStorageThroughput: 1000\n      CopyTagsToBackups: true\n", "CopyTags",
     "      PerUnitStorageThroughput: 1000\n      AutomaticBackupRetentionDays: 7\n      CopyTagsToBackups: true\n"},
    {"PC38", kUnit, "      PerUnitStorageThroughput: 1000\n      ImportPath: s3://b\n      AutoImportPolicy: NEW\n",
     "AutoImport", kUnit, "buckets: {b: {region: eu-west-1}}"},
    {"PC40", "MountDir: /fsx2", "MountDir: /usr", "/usr", "MountDir: /usr2"},
    {"PC40", "MountDir: /fsx2", "MountDir: fsx1", "MountDir: fsx1", "MountDir: /fsx12"},
    {"PC40", "MountDir: /fsx2", "MountDir: /fsx1/b", "/fsx1/b", "MountDir: /fsx/b"},
    {"PC40", "MountDir: /fsx2", "MountDir: /nvme", "MountDir: /nvme\n", "MountDir: /scratch"},
    {"PC40", "MountDir: /fsx2", "MountDir: NONE", "NONE", "MountDir: /NONE2"},
    {"PC42", "  - Name: old\n", "  - Name: a;b\n", "a;b", "  - Name: a b\n"},
    {"PC42", kEfs,
     "  - Name: old\n    MountDir: /fsx2\n    StorageType: Efs\n    FsxLustreSettings:\n      FileSystemId: "
     "fs-0123456789abcdef0\n",
     "Efs\n    FsxLustreSettings", kEfs},
    {"PC42", kEfs,
     "  - Name: old\n    MountDir: /fsx2\n    StorageType: Efs\n    EfsSettings:\n      ThroughputMode: provisioned\n",
     "EfsSettings",
     "  - Name: old\n    MountDir: /fsx2\n    StorageType: Efs\n    EfsSettings:\n      ThroughputMode: bursting\n"},
    {"PC43", "      DeletionPolicy: Retain\n", "", "FsxLustreSettings", "      DeletionPolicy: Retain\n"},
    {"PC44", "RetentionInDays: 30", "RetentionInDays: 31", "31", "RetentionInDays: 60"},
    {"PC44", "      Enabled: true\n      Ret", "      Enabled: false\n    Rotation:\n      Enabled: true\n    #",
     "Rotation:\n      Enabled", "      Enabled: true\n      Ret"},
    {"PC44", "RetentionInDays: 30", "RetentionInDays: 30", "RetentionInDays", "RetentionInDays: 60",
     "longest_job_hours: 800"},
    {"PC45", "        S3Access:\n          - BucketName: tools\n      ComputeResources",
     "        InstanceRole: arn:aws:iam::123456789012:role/r\n        S3Access:\n          - BucketName: tools\n      "
     "ComputeResources",
     "role/r\n        S3Access", "        InstanceRole: arn:aws:iam::123456789012:role/r\n      ComputeResources"},
    {"PC45", "      - BucketName: tools\nSched", "      - BucketName: Tools_\nSched", "Tools_",
     "      - BucketName: tools\nSched"},
    {"PC46", "          - BucketName: tools\n      ComputeResources",
     "          - BucketName: other\n      ComputeResources", "s3://tools/node.sh",
     "          - BucketName: too*\n      ComputeResources"},
    {"PC46", "s3://tools/node.sh", "/home/node.sh", "/home/node.sh", "https://x/node.sh"},
    {"PC47", "ScaledownIdletime: 20", "ScaledownIdletime: -2", "Idletime: -2", "ScaledownIdletime: -1"},
    {"PC48", "      - DefMemPerGPU: 240000\n", "      - MaxArraySize: 5000\n", "EnableMemory",
     "      - DefMemPerCPU: 8000\n"},
    {"PC48", "    EnableMemoryBasedScheduling: true\n", "", "SlurmSettings", "    EnableMemoryBasedScheduling: true\n"},
    {"PC49", "          MinCount: 16\n", "          SchedulableMemory: 2097153\n          MinCount: 16\n", "2097153",
     "          SchedulableMemory: 2097152\n          MinCount: 16\n"},
    {"PC50", "{Sockets: 2,", "{Gres: x, Sockets: 2,", "Gres", "{Sockets: 2, RealMemory: 9,"},
    {"PC50", "{Sockets: 2,", "{Features: x, Sockets: 2,", "Features", "{Sockets: 2,", "", "3.14"},
    {"PC50", "{Sockets: 2,", "{Gres: x, Sockets: 2,", "Gres", "{Features: x, Sockets: 2,"},
    {"PC50", "      - DefMemPerGPU: 240000\n", "      - DefMemPerGPU: 240000\n      - Prolog: /p\n", "Prolog",
     "      - DefMemPerGPU: 240000\n      - MaxJobCount: 9\n"},
    {"PC51", "      - DefMemPerGPU: 240000\n", "      - DefMemPerGPU: 240000\n      - {NodeName: a-st-1, CPUs: 4}\n",
     "a-st-1", "      - DefMemPerGPU: 240000\n      - {NodeName: a-1, CPUs: 4}\n"},
    {"PC51", "    CustomSlurmSettings:\n      - Def",
     "    CustomSlurmSettingsIncludeFile: s3://b/x\n    CustomSlurmSettings:\n      - Def", "IncludeFile",
     "    CustomSlurmSettings:\n      - Def"},
    {"PC52", "db.internal:3306", "mysql://db.internal", "mysql", "db.internal"},
    {"PC52", "    Database:\n", "    ExternalSlurmdbd: {Host: h}\n    Database:\n", "External", "    Database:\n"},
    {"PC53",
     "    Database:\n      Uri: db.internal:3306\n      UserName: slurm\n      PasswordSecretArn: "
     "arn:aws:secretsmanager:us-east-2:123456789012:secret:db\n",
     "", "SlurmSettings", "    MungeKeySecretArn: m\n    ExternalSlurmdbd: {Host: h}\n"},
    {"PC54", "Key: Project", "Key: parallelcluster:x", "parallelcluster:x", "Key: Project2"},
    {"PC55", "    - Name: cpu\n", "    - Name: cpu\n      JobExclusiveAllocation: true\n", "JobExclusive",
     "    - Name: cpu\n", "jobs_share_nodes: true"},
    {"PC56", "all-or-nothing", "best-effort", "best-effort", "greedy-all-or-nothing"},
    {"PC57", kGpuCount, "          MinCount: 8\n          MaxCount: 16\n          StaticNodePriority: 1000\n",
     "StaticNodePriority", "          MinCount: 8\n          MaxCount: 16\n          StaticNodePriority: 999\n"},
    {"PC58", "m6i.4xlarge", "m7g.4xlarge", "p5e.48xlarge", "m7i.4xlarge"},
    {"PC58", "p5e.48xlarge", "p3dn.24xlarge", "p3dn", "p4d.24xlarge"},
    {"PC60", "  SharedStorageType: Efs\n", "", "HeadNode:", "  SharedStorageType: Efs\n"},
    {"PC60", "m6i.4xlarge", "m6i.xlarge", "m6i.xlarge", "m6i.2xlarge"},
    {"PC61", "    AllowedIps: 10.0.0.0/8\n", "", "Ssh:", "    AllowedIps: 192.168.0.0/16\n"},
    {"PC61", "10.0.0.0/8", "0.0.0.0/0", "0.0.0.0/0", "pl-12345678"},
    {"PC62", "          CustomSlurmSettings: {Sockets: 2, CoresPerSocket: 48}\n", "", "Name: h200",
     "          CustomSlurmSettings: {SocketsPerBoard: 2}\n"},
    {"PC63", "Enabled: false", "Enabled: maybe", "maybe", "Enabled: off"},
    {"PC63", "Value: \"7\"", "Value: 7", "Value: 7", "Value: seven"},
    {"PC63", "ScaledownIdletime: 20", "ScaledownIdletime: many", "many", "ScaledownIdletime: \"20\""},
    {"PC63", "  ScalingStrategy: all-or-nothing", "  ScalingStrategy: all", "Strategy: all",
     "  ScalingStrategy: all-or-nothing"},
    {"PC63", "  Ssh:\n    KeyName: ops\n    AllowedIps: 10.0.0.0/8\n", "  Ssh:\n", "Ssh:", "  Ssh: {}\n"},
    {"PC63", "StorageCapacity: 7200", "StorageCapacity: 7200.5", "7200.5", "StorageCapacity: 7_200"},
    {"PC64", "Monitoring:\n", "Monitoring:\n\tX: 1\n", "\tX", "Monitoring:\n"},
    {"PC65", "Tags:\n", "Region: us-east-1 # again\nTags:\n", "again", "Tags:\n"},
    {"PC66", "Key: Project", "Key: Proj\xE9t", "Key: Proj", "Key: Proj\xC3\xA9t"},
    {"PC67", kGpuTypes, kUltra, "CapacityReservationId", kGpuTypes,
     "reservations: {cr-0123456789abcdef0: {kind: capacity-block, count: 17}}"},
    {"PC68", kGpuTypes, kUltra, "CapacityReservationId", kGpuTypes,
     "reservations: {cr-0123456789abcdef0: {kind: capacity-block, count: 18, available: 17}}"},
    {"PC68", kGpuTypes, kUltra, "CapacityReservationId", kGpuTypes,
     "reservations: {cr-0123456789abcdef0: {kind: capacity-block, count: 18, interconnect: impaired}}"},
    {"PC69", "m6i.4xlarge", "t3.micro", "t3.micro", "t3.small"},
    {"PC70", "          MaxCount: 4\nSharedStorage:\n", kBigAndEbs, "StorageType: Ebs", kLessAndEbs},
    {"PC71", kGpuCount, kTemplate, "LaunchTemplateId", kGpuCount,
     "launch_templates: {lt-0123456789abcdef0: [NetworkInterfaces, UserData]}"},
    {"PC72", kGpuTypes, kUltra, "p6e-gb200", kGpuTypes, "", "3.16.3", "rhel9"},
    {"PC73", "  SharedStorageType: Efs\n",
     "  SharedStorageType: Ebs\n  SharedStorageEfsSettings:\n    Encrypted: true\n", "SharedStorageEfsSettings",
     "  SharedStorageType: Efs\n  SharedStorageEfsSettings:\n    Encrypted: true\n"},
    {"PC74", "Tags:\n", "DevSettings:\n  Timeouts:\n    ComputeNodeBootstrapTimeout: 1800\nTags:\n", "BootstrapTimeout",
     "DevSettings:\n  Timeouts:\n    ComputeNodeBootstrapTimeout: 2100\nTags:\n"},
};

TEST(ConfigRules, TheGoodFileIsSilent) {
  const std::vector<Finding> findings = lint(std::string(kGood), {});
  for (const Finding& finding : findings) {
    // What a file system gives, and how large a subnet must be, is said of good files too.
    if (finding.severity() == Severity::kNote) continue;
    ADD_FAILURE() << finding_text(finding);
  }
}

TEST(ConfigRules, EachSpeaksWhereItMustAndOnlyThere) {
  for (const Case& test : kCases) {
    const std::string bad = changed(test.find, test.bad), good = changed(test.find, test.good);
    const int64_t line = *test.mark == '\0' ? 0 : line_of(bad, test.mark);
    const std::vector<Finding> found = lint(bad, test);
    // A mark of two lines points at the last of them.
    const int64_t more = std::count(test.mark, test.mark + std::string_view(test.mark).size(), '\n');
    const bool spoke = std::any_of(found.begin(), found.end(), [&](const Finding& f) {
      return f.rule->id == test.rule && (f.line == line || f.line == line + more) && f.severity() != Severity::kNote;
    });
    EXPECT_TRUE(spoke) << test.rule << " at line " << line << "\n" << all_of(found);
    if (std::string_view(test.rule) == "PC08" || bad == good) continue;
    for (const Finding& finding : lint(good, test)) {
      const bool same = finding.rule->id == test.rule && finding.severity() != Severity::kNote;
      EXPECT_FALSE(same) << finding_text(finding) << "\n" << test.good;
    }
  }
}

TEST(ConfigRules, EveryRuleIsTried) {
  std::set<std::string_view> tried = {"PC09", "PC39", "PC41", "PC59"};  // below
  for (const Case& test : kCases) tried.insert(test.rule);
  for (const Rule& rule : config_rules()) EXPECT_TRUE(tried.contains(rule.id)) << rule.id;
  EXPECT_EQ(config_rules().size(), 74u);
}

int64_t count(const std::vector<Finding>& findings, std::string_view rule, Severity severity) {
  return std::count_if(findings.begin(), findings.end(),
                       [&](const Finding& f) { return f.rule->id == rule && f.severity() == severity; });
}

TEST(ConfigRules, AClusterMayHaveAGoodName) {
  for (const char* name : {"lives-9", "a", "train2"}) {
    Case named{};
    const std::string facts = std::string("cluster_name: ") + name;
    named.facts = facts.c_str();
    EXPECT_EQ(count(lint(std::string(kGood), named), "PC08", Severity::kError), 0) << name;
  }
}

TEST(ConfigRules, FiftyQueuesAreTheMost) {
  const auto with = [](int queues) {
    std::string more;
    for (int i = 0; i < queues - 2; ++i) {
      more += "    - Name: q" + std::to_string(i) +
              "\n      Networking: {SubnetIds: [subnet-0aaaaaaaaaaaacccc]}\n      ComputeResources: [{Name: c, "
              "InstanceType: c5.large}]\n";
    }
    return changed("    - Name: cpu\n", more + "    - Name: cpu\n");
  };
  EXPECT_EQ(count(lint(with(51), {}), "PC09", Severity::kError), 2);  // queues, and compute resources
  EXPECT_EQ(count(lint(with(50), {}), "PC09", Severity::kError), 0);
}

TEST(ConfigRules, TheRateOfAFileSystemIsSizeTimesUnit) {
  const std::vector<Finding> plain = lint(std::string(kGood), {});
  EXPECT_EQ(count(plain, "PC39", Severity::kNote), 1);
  EXPECT_NE(all_of(plain).find("7200 GiB x 1000 MB/s for each TiB = 7031 MB/s, 54.9 MB/s for each of 128 GPUs"),
            std::string::npos)
      << all_of(plain);
  EXPECT_EQ(
      count(lint(changed("Throughput: 1000\n", "Throughput: 1000 # 1000 MB/s\n"), {}), "PC39", Severity::kWarning), 1);
  EXPECT_EQ(
      count(lint(changed("Throughput: 1000\n", "Throughput: 1000 # 7,031MB/s\n"), {}), "PC39", Severity::kWarning), 0);
  EXPECT_EQ(
      count(lint(changed("Throughput: 1000\n", "Throughput: 1000 # 7.03 GB/s\n"), {}), "PC39", Severity::kWarning), 0);
  EXPECT_EQ(
      count(lint(changed("Throughput: 1000\n", "Throughput: 1000 # 1000 MB/s/TiB\n"), {}), "PC39", Severity::kWarning),
      0);
}

std::vector<Finding> lint_with_script(const std::string& script, const std::string& text = std::string(kGood)) {
  const auto findings = lint_config(text, {.file = "c.yaml", .scripts = {{"job.sbatch", script}}});
  return findings ? *findings : std::vector<Finding>{};
}

TEST(ConfigRules, ScriptsUseMountsThatAreThere) {
  const std::vector<Finding> findings = lint_with_script(
      "#!/bin/bash\n# /fsx9 in a comment\ncp /fsx1/a s3://bucket/fsx8/b ../fsx7 $X/fsx6\n  tar -C \"/fsx4/x\" "
      "--out=/fsx5 /scratch /tmp\n");
  EXPECT_EQ(count(findings, "PC41", Severity::kError), 2) << all_of(findings);
  EXPECT_EQ(count(findings, "PC41", Severity::kWarning), 1);  // /fsx2 is declared for nothing
  for (const Finding& finding : findings) {
    if (finding.rule->id != "PC41" || finding.severity() != Severity::kError) continue;
    EXPECT_EQ(finding.file, "job.sbatch");
    EXPECT_EQ(finding.line, 4);
    EXPECT_TRUE(finding.column == 10 || finding.column == 26) << finding.column;
  }
  EXPECT_EQ(count(lint_with_script("ls /fsx1 /fsx2/a /nvme/x /home/u\n"), "PC41", Severity::kError), 0);
}

TEST(ConfigRules, ScriptsAskForWhatTheImageHas) {
  EXPECT_EQ(count(lint_with_script("srun --container-image=x true\n"), "PC59", Severity::kWarning), 1);
  EXPECT_EQ(count(lint_with_script("srun --container-image=x true\n", changed("node.sh", "pyxis.sh")), "PC59",
                  Severity::kWarning),
            0);
  EXPECT_EQ(count(lint_with_script("#SBATCH --gres=gpu:1g.10gb:1\n"), "PC59", Severity::kWarning), 1);
  EXPECT_EQ(count(lint_with_script("#SBATCH --gres=gpu:8\n"), "PC59", Severity::kWarning), 0);
  // As bash and sbatch read it: over lines, inside functions, and nothing behind the first command.
  const char* script =
      "run() {\n  srun -N2 \\\n    --container-image=x --container-mounts=/a:/b true\n}\nrun\n"
      "#SBATCH --gres=gpu:1g.10gb:1\necho 'srun --container-name=y'\n";
  const std::vector<Finding> found = lint_with_script(script);
  EXPECT_EQ(count(found, "PC59", Severity::kWarning), 1) << all_of(found);
  for (const Finding& finding : found) EXPECT_TRUE(finding.rule->id != "PC59" || finding.line == 3) << all_of(found);
}

TEST(ConfigRules, ScriptsThatShareNodesNeedQueuesThatDo) {
  const std::string exclusive =
      changed("    - Name: train\n", "    - Name: train\n      JobExclusiveAllocation: true\n");
  EXPECT_EQ(count(lint_with_script("#SBATCH --gpus-per-node=4\n", exclusive), "PC55", Severity::kWarning), 1);
  EXPECT_EQ(count(lint_with_script("#SBATCH --gres=gpu:h200:4\n", exclusive), "PC55", Severity::kWarning), 1);
  EXPECT_EQ(count(lint_with_script("#SBATCH --gpus-per-node=8\n", exclusive), "PC55", Severity::kWarning), 0);
  EXPECT_EQ(count(lint_with_script("#SBATCH --gpus-per-node=4\n"), "PC55", Severity::kWarning), 0);
}

TEST(ConfigRules, AScriptThatAsksForMemoryNeedsNoDefault) {
  const std::string text = changed("      - DefMemPerGPU: 240000\n", "      - MaxArraySize: 5000\n");
  EXPECT_EQ(count(lint_with_script("#SBATCH --mem=0\n", text), "PC48", Severity::kWarning), 0);
  EXPECT_EQ(count(lint_with_script("#SBATCH --nodes=2\n", text), "PC48", Severity::kWarning), 1);
}

TEST(ConfigRules, ACommentWithAReasonSilences) {
  const auto silenced = [](const std::vector<Finding>& findings, std::string_view rule) {
    return std::count_if(findings.begin(), findings.end(),
                         [&](const Finding& f) { return f.rule->id == rule && f.suppressed_because; });
  };
  const std::vector<Finding> found = lint(changed("all-or-nothing", "best-effort"), {});
  EXPECT_EQ(silenced(found, "PC56"), 0);
  const std::vector<Finding> reason =
      lint(changed("all-or-nothing", "best-effort # millrace: ignore PC56 -- single-node jobs only"), {});
  EXPECT_EQ(silenced(reason, "PC56"), 1);
  const std::vector<Finding> none = lint(changed("all-or-nothing", "best-effort # millrace: ignore PC56"), {});
  EXPECT_EQ(silenced(none, "PC56"), 0);
  EXPECT_EQ(count(none, "IG01", Severity::kWarning), 1);
}

TEST(ConfigRules, ANewerVersionIsHeldAgainstTheKnownOne) {
  const std::string text = changed("Monitoring:\n", "Quux: 1\nMonitoring:\n");
  EXPECT_EQ(count(lint(text, {.version = "3.17"}), "PC01", Severity::kWarning), 1);
  EXPECT_EQ(count(lint(text, {.version = "3.16.3"}), "PC01", Severity::kError), 1);
  EXPECT_EQ(count(lint(text, {.version = "3.12"}), "PC01", Severity::kError), 1);
}

TEST(ConfigRules, FactsThatCannotBeReadAreNamed) {
  const auto refused = [](const char* facts) {
    const auto findings = lint_config(kGood, {.file = "c.yaml", .facts_file = "facts.yaml", .facts = facts});
    return findings ? std::string() : findings.error().message();
  };
  EXPECT_NE(refused("reservatons: {}").find("facts.yaml:1:1: unknown key 'reservatons'; there are"), std::string::npos);
  EXPECT_NE(refused("subnets: {subnet-1: {prefix: 99}}").find("'prefix' has a value of the wrong kind"),
            std::string::npos);
  EXPECT_NE(refused("a: [").find("facts.yaml:"), std::string::npos);
  EXPECT_EQ(refused(""), "");
}

TEST(ConfigRules, UnknownKeysSayWhereTheyBelong) {
  const std::string text = all_of(lint(changed("Monitoring:\n", "MinCount: 1\nMonitorng:\nMonitoring:\n"), {}));
  EXPECT_NE(text.find("it belongs in Scheduling.SlurmQueues[].ComputeResources[].MinCount"), std::string::npos) << text;
  EXPECT_NE(text.find("did you mean 'Monitoring'?"), std::string::npos) << text;
}

}  // namespace
}  // namespace millrace::pcluster
