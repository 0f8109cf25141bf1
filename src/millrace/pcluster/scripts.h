// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads the needs of a job script on its cluster. Does not follow variables and included files. Values and pure
// functions; thread-safe.

#include <string>
#include <vector>

#include "millrace/pcluster/lint.h"
#include "millrace/slurm/options.h"

namespace millrace::pcluster {

struct NamedFolder {
  std::string folder;  // "/fsx1" in "cp /fsx1/data", "--out=/fsx1" and "> /fsx1/log"
  shell::Place place;
};

struct ScriptNeeds {
  std::string file;
  std::vector<slurm::Option> options;  // from #SBATCH lines, and from srun, sbatch and salloc
  std::vector<NamedFolder> folders;
};

ScriptNeeds read_needs(const Script& script);

}  // namespace millrace::pcluster
