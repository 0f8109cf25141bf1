// SPDX-License-Identifier: Apache-2.0
#pragma once

// For tests: a private environment and a home folder with .aws.

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "millrace/aws/profile_file.h"
#include "millrace/base/testing/helpers.h"

namespace millrace::aws {

class AwsHome {
 public:
  AwsHome() {
    std::filesystem::create_directories(path(".aws/sso/cache"));
    variables["HOME"] = dir_.path();
    // Before anything that leaves this machine.
    variables["AWS_EC2_METADATA_DISABLED"] = "true";
  }

  std::string path(const std::string& name) const { return dir_.path() + "/" + name; }

  void write(const std::string& name, const std::string& text) const { std::ofstream(path(name)) << text; }

  // With the variables as they are now.
  Environment environment() const {
    return [now = variables](const std::string& name) {
      const auto found = now.find(name);
      return found != now.end() ? found->second : std::string();
    };
  }

  std::map<std::string, std::string> variables;

 private:
  const TempDir dir_;
};

}  // namespace millrace::aws
