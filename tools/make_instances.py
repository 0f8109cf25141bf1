# SPDX-License-Identifier: Apache-2.0
"""Writes src/millrace/plan/data/instances.csv from Karpenter's page of EC2 instance types.

    tools/make_instances.py website/content/en/docs/reference/instance-types.md 1d92708 > src/millrace/plan/data/instances.csv

The second argument is Karpenter's commit. Its date and the commit belong into the source "ec2" of sources.csv.
"""

import re
import sys

HEAD = "name,vcpus,memory_mib,accelerators,maker,gpu,efa_interfaces,nvme_gb,network_mbps,architecture"
MAKERS = {"nvidia", "amd", "habana", "aws"}
# Karpenter's name of a GPU and its memory in MiB -> the id of gpus.csv. A share of a GPU has another memory, and no id.
GPUS = {
    ("a100", 40960): "a100-40gb",
    ("a100", 81920): "a100-80gb",
    ("a10g", 22888): "a10g",
    ("b200", 183359): "b200",
    ("b300", 275040): "b300",
    ("h100", 81920): "h100-sxm",
    ("h200", 144384): "h200",
    ("l4", 22888): "l4",
    ("l40s", 45776): "l40s",
    ("rtx-pro-server-6000", 98304): "rtxpro6000",
    ("t4", 16384): "t4",
    ("v100", 16384): "v100-16gb",
    ("v100", 32768): "v100-32gb",
}
# Types that Karpenter's page does not list. p6e-gb200: a share of an UltraServer (source "ec2-page" of sources.csv).
MORE = ["p6e-gb200.36xlarge,144,983040,4,nvidia,gb200,16,22500,1600000,arm64"]


def rows(page: str):
    for part in re.split(r"^### `", page, flags=re.MULTILINE)[1:]:
        name = part[: part.index("`")]
        labels = dict(re.findall(r"^ \|([^|]+)\|([^|]*)\|", part, re.MULTILINE))

        def fact(key: str, default: str = "0", labels=labels) -> str:
            return labels.get("karpenter.k8s.aws/instance-" + key, default)

        count, maker = fact("gpu-count"), fact("gpu-manufacturer", "")
        if count == "0":
            count, maker = fact("accelerator-count"), fact("accelerator-manufacturer", "")
        maker = maker if maker in MAKERS or not maker else "other"
        gpu = GPUS.get((fact("gpu-name", ""), int(fact("gpu-memory"))), "")
        efa = labels.get("vpc.amazonaws.com/efa", "0")
        network, nvme, arch = fact("network-bandwidth"), fact("local-nvme"), labels["kubernetes.io/arch"]
        yield f"{name},{fact('cpu')},{fact('memory')},{count},{maker},{gpu},{efa},{nvme},{network},{arch}"


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        found = sorted([*rows(file.read()), *MORE], key=lambda row: row.split(",")[0])
    print(f"# Written by tools/make_instances.py from karpenter-provider-aws {sys.argv[2]}; do not edit.")
    print(HEAD, *found, sep="\n")


if __name__ == "__main__":
    main()
