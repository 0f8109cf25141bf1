// SPDX-License-Identifier: Apache-2.0
#include "millrace/cli/cli.h"

int main(int argc, char** argv) {
  return millrace::cli::run_cli(argc, argv);
}
