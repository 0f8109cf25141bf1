// SPDX-License-Identifier: Apache-2.0
// Runs a target of libFuzzer's form without libFuzzer.
//   millrace_fuzz_x CORPUS                  each file once
//   millrace_fuzz_x CORPUS SECONDS [SEED]   then what becomes of them by random changes
// An input that ends the program, or keeps it busy for more than kSlow seconds, is left in ./crash-<hash>. A target
// says 0 for an input that it took, and such inputs are changed further; -1 says that it refused one.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// Sanitizers end with SIGABRT, for which there is a handler.
extern "C" const char* __asan_default_options() {
  return "abort_on_error=1";
}
extern "C" const char* __ubsan_default_options() {
  return "abort_on_error=1:print_stacktrace=1";
}

namespace {

using Input = std::string;
constexpr unsigned kSlow = 30;
// What JSON and text in UTF-8 are made of.
constexpr std::string_view kLetters = " \n\"\\[]{}()0123456789aZ\xC3\xE2\xF0\x80";
constexpr size_t kMaxSize = 1 << 14, kMaxInputs = 4000;

Input current;
char crash_name[64];

// Async-signal-safe but for the name, which is made before.
void save_and_die(int signal_number) {
  const int file = open(crash_name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const auto ignored = file < 0 ? 0 : write(file, current.data(), current.size());
  static_cast<void>(ignored);
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

int run(Input input) {
  current = std::move(input);
  std::snprintf(crash_name, sizeof(crash_name), "crash-%016zx", std::hash<Input>()(current));
  alarm(kSlow);
  // SAFETY: uint8_t may alias any object.
  const int result = LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(current.data()), current.size());
  alarm(0);
  return result;
}

std::vector<Input> read_corpus(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  if (std::filesystem::is_regular_file(folder))
    paths.push_back(folder);
  else
    for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Input> inputs;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return inputs;
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}
  size_t below(size_t limit) { return limit == 0 ? 0 : random_() % limit; }

  Input change(Input input, const std::vector<Input>& others) {
    for (size_t count = 1 + below(4); count > 0; --count) change_once(input, others[below(others.size())]);
    if (input.size() > kMaxSize) input.resize(kMaxSize);
    return input;
  }

 private:
  void change_once(Input& input, const Input& other) {
    const size_t at = below(input.size() + 1), size = std::min(below(size_t{1} << below(8)) + 1, input.size() - at);
    const size_t from = below(other.size() + 1);
    switch (below(8)) {
      case 0:
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
        break;
      case 1:
        input.insert(at, 1, static_cast<char>(below(256)));
        break;
      case 2:
        input.erase(at, size);
        break;
      case 3:
        input.insert(at, input.substr(at, size));
        break;
      case 4:
        input.replace(at, size, other.substr(from, size));
        break;
      case 5:
        input.insert(at, other.substr(from, below(64)));
        break;
      case 6:
        replace_word(input, at, other, from);
        break;
      default:
        if (at < input.size()) input[at] = kLetters[below(kLetters.size())];
        break;
    }
  }

  // What stands between two quotation marks, or in any place where there are none.
  void replace_word(Input& input, size_t at, const Input& other, size_t from) {
    const auto word = [](const Input& text, size_t near) {
      const size_t begin = std::min(text.find('"', near), text.size());
      return std::pair(begin, std::min(text.find('"', begin + 1), text.size()));
    };
    const auto [begin, end] = word(input, at);
    const auto [other_begin, other_end] = word(other, from);
    if (begin < end && other_begin < other_end)
      input.replace(begin, end - begin, other.substr(other_begin, other_end - other_begin));
  }

  std::mt19937_64 random_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s CORPUS [SECONDS [SEED]]\n", argv[0]);
    return 2;
  }
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM}) signal(number, save_and_die);
  std::vector<Input> inputs = read_corpus(argv[1]);
  for (const Input& input : inputs) run(input);
  std::printf("%zu files\n", inputs.size());
  if (argc < 3 || inputs.empty()) return inputs.empty() ? 1 : 0;

  using Clock = std::chrono::steady_clock;
  const uint64_t seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  Mutator mutator(seed);
  uint64_t runs = 0, taken = 0;
  const auto end = Clock::now() + std::chrono::seconds(std::strtoll(argv[2], nullptr, 10));
  while (Clock::now() < end) {
    Input input = mutator.change(inputs[mutator.below(inputs.size())], inputs);
    ++runs;
    if (run(input) != 0) continue;
    ++taken;
    if (inputs.size() < kMaxInputs)
      inputs.push_back(std::move(input));
    else
      inputs[mutator.below(kMaxInputs)] = std::move(input);
  }
  std::printf("%llu inputs, %llu taken\n", static_cast<unsigned long long>(runs),
              static_cast<unsigned long long>(taken));
  return 0;
}
