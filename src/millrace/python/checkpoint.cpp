// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/checkpoint.h"

#include <fmt/ranges.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <functional>

#include "millrace/base/memory/pinned.h"
#include "millrace/checkpoint/tensor_file.h"
#include "millrace/link/wait.h"
#include "millrace/python/interruptible.h"
#include "millrace/python/results.h"

// The checkpoint engine for millrace.torch. Tensors are given by address; torch owns them.

namespace millrace::python {

namespace {

using checkpoint::Checkpoint;
using checkpoint::PendingSave;
using checkpoint::Saver;

using Shape = std::vector<int64_t>;
// (name, dtype, global_shape, offset, shape, data_ptr)
using SaveEntry = std::tuple<std::string, std::string, Shape, Shape, Shape, uintptr_t>;
// (name, offset, shape, data_ptr)
using LoadEntry = std::tuple<std::string, Shape, Shape, uintptr_t>;

// checkpoint::KeepRules, its members in order, `young` in seconds
using KeepEntry = std::tuple<int64_t, int64_t, int64_t, std::string, bool, double, int64_t>;
// (url, keep, save_every, node_local)
using TierEntry = std::tuple<std::string, KeepEntry, int64_t, bool>;
// One folder of checkpoints, or tiers of it, nearest first.
using Places = std::variant<std::string, std::vector<std::string>>;

// checkpoint::Lineage: (attempt, step), the oldest first
using LineEntry = std::vector<std::pair<std::string, int64_t>>;
// checkpoint::StepNames: (step, whether it is committed, attempts)
using NamesEntry = std::vector<std::tuple<int64_t, bool, std::vector<std::string>>>;

struct PySaver {
  std::unique_ptr<Saver> saver;
  bool is_capped = false;  // its saves may take as long as the writing (memory_bytes)

  ~PySaver() {
    const GilRelease release;
    saver.reset();
  }
  Saver& get() {
    if (!saver) raise(Error(ErrorCode::kCancelled, "the saver is closed"));
    return *saver;
  }
};

struct PyCheckpoint {
  std::unique_ptr<Checkpoint> checkpoint;
};

std::chrono::milliseconds to_ms(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(std::clamp(seconds, 0.0, 1e9) * 1000));
}

checkpoint::KeepRules keep_rules(const KeepEntry& entry) {
  const auto& [last, every, best, monitor, higher_is_better, young, quota_bytes] = entry;
  return {last,       every, best, monitor, higher_is_better, std::chrono::ceil<std::chrono::seconds>(to_ms(young)),
          quota_bytes};
}

checkpoint::Lineage to_lineage(const LineEntry& entry) {
  checkpoint::Lineage line;
  for (const auto& [attempt, step] : entry) line.push_back({attempt, step});
  return line;
}
std::optional<checkpoint::Lineage> to_lineage(const std::optional<LineEntry>& entry) {
  return entry ? std::optional(to_lineage(*entry)) : std::nullopt;
}
LineEntry from_lineage(const checkpoint::Lineage& line) {
  LineEntry entry;
  for (const auto& [attempt, step] : line) entry.emplace_back(attempt, step);
  return entry;
}

std::vector<checkpoint::StepNames> to_names(const NamesEntry& entry) {
  std::vector<checkpoint::StepNames> names;
  for (const auto& [step, is_committed, attempts] : entry) names.push_back({step, is_committed, attempts});
  return names;
}

NamesEntry list_step_names(const std::string& root) {
  const auto names = interruptible<std::vector<checkpoint::StepNames>>(
      [&](const std::stop_token&) -> Result<std::vector<checkpoint::StepNames>> {
        ASSIGN_OR_RETURN(const Location location, open_url(root));
        return checkpoint::list_step_names(location);
      });
  NamesEntry entry;
  for (const auto& [step, is_committed, attempts] : names) entry.emplace_back(step, is_committed, attempts);
  return entry;
}

// What a save that follows a commit continues; `line` is what the commit continued, nullopt: it does not say.
LineEntry line_after(const std::string& attempt, int64_t step, const std::optional<LineEntry>& line,
                     const NamesEntry& names) {
  if (!line) return from_lineage(checkpoint::infer_lineage(to_names(names), attempt, step));
  return from_lineage(checkpoint::continue_line(to_lineage(*line), attempt, step));
}

void register_line(nb::module_& m) {
  using checkpoint::LineWalk;
  m.def(
      "list_step_names", &list_step_names, nb::arg("root"),
      "The steps that have a folder, ascending: (step, whether it is committed, the attempts that have files there).");
  m.def(
      "line_after", &line_after, nb::arg("attempt"), nb::arg("step"), nb::arg("line").none(), nb::arg("names"),
      "What a save after this commit continues, [(attempt, step)]; `line`: what the commit itself continued, None: it "
      "does not say, and `names` of list_step_names decide.");
  nb::class_<LineWalk>(m, "LineWalk",
                       "Goes through the steps of the newest line, the newest first: next() gives a step, and one of "
                       "read(), damaged() and gone() says what its manifest is.")
      .def(
          "__init__", [](LineWalk* self, const NamesEntry& names) { new (self) LineWalk(to_names(names)); },
          nb::arg("names"), "names: the results of list_step_names for all tiers, concatenated.")
      .def("next", &LineWalk::next, "Returns the step to look at; None if there are no more.")
      .def(
          "read",
          [](LineWalk& self, const std::string& attempt, const std::optional<LineEntry>& line) {
            return self.read(attempt, to_lineage(line));
          },
          nb::arg("attempt"), nb::arg("line").none(), "Returns whether the step is the next one of the line.")
      .def("damaged", &LineWalk::damaged)
      .def("gone", &LineWalk::gone);
}

void init_saver(PySaver* self, const std::string& root, std::string attempt, int64_t rank, int64_t world_size,
                int threads, int64_t memory_bytes, int64_t reserve_bytes, double commit_timeout, const KeepEntry& keep,
                const std::vector<TierEntry>& tiers, int64_t save_every, double tier_timeout, bool pin,
                bool refer_unchanged) {
  checkpoint::SaverOptions options;
  options.attempt = std::move(attempt);
  options.rank = rank;
  options.world_size = world_size;
  options.threads = threads;
  options.memory_bytes = memory_bytes;
  options.reserve_bytes = reserve_bytes;
  options.pin = pin;
  options.refer_unchanged = refer_unchanged;
  options.commit_timeout = to_ms(commit_timeout);
  options.keep = keep_rules(keep);
  options.save_every = save_every;
  options.tier_timeout = to_ms(tier_timeout);
  for (const auto& [url, rules, save, node_local] : tiers)
    options.tiers.push_back({unwrap(open_url(url)), keep_rules(rules), save, node_local});
  new (self) PySaver{unwrap(Saver::create(unwrap(open_url(root)), options)), memory_bytes > 0};
}

std::vector<checkpoint::TensorToSave> tensors_to_save(const std::vector<SaveEntry>& entries) {
  std::vector<checkpoint::TensorToSave> tensors;
  tensors.reserve(entries.size());
  for (const auto& [name, dtype_name, global_shape, offset, shape, address] : entries) {
    const auto dtype = formats::dtype_from_name(dtype_name);
    if (!dtype) {
      raise(Error(ErrorCode::kInvalidArgument, fmt::format("{}: safetensors has no dtype {}", name, dtype_name)));
    }
    // SAFETY: the caller gives the address of shape x dtype bytes that live until the call returns.
    tensors.push_back({name, *dtype, global_shape, {offset, shape}, reinterpret_cast<const std::byte*>(address)});
  }
  return tensors;
}

// Calls a Python function where the core wants memory filled; what it raises is kept for the caller of save().
class PyFill {
 public:
  explicit PyFill(nb::object function) : function_(std::move(function)) {}
  Status operator()(std::span<std::byte> memory, std::span<const checkpoint::ImagePlace> places,
                    checkpoint::FillMode mode) {
    const nb::gil_scoped_acquire gil;
    const auto address = [](const std::byte* data) { return reinterpret_cast<uintptr_t>(data); };
    try {
      std::vector<std::tuple<size_t, uintptr_t, int64_t, int64_t>> wanted;
      wanted.reserve(places.size());
      for (const auto& place : places) wanted.emplace_back(place.tensor, address(place.data), place.begin, place.bytes);
      function_(address(memory.data()), memory.size(), wanted, mode == checkpoint::FillMode::kComplete);
    } catch (nb::python_error& error) {
      raised_ = std::make_unique<nb::python_error>(std::move(error));
      return fail(ErrorCode::kCancelled, "the memory of the save was not filled");
    }
    return {};
  }
  bool has_raised() const { return raised_ != nullptr; }
  void rethrow() {
    if (raised_) throw nb::python_error(std::move(*raised_));
  }

 private:
  nb::object function_;
  std::unique_ptr<nb::python_error> raised_;
};

using StartSave = std::function<Result<std::shared_ptr<PendingSave>>(const std::stop_token&)>;

// A thread for the call would lengthen the stop of a save that only copies.
std::shared_ptr<PendingSave> start_save(const PySaver& self, const StartSave& start) {
  if (self.is_capped) return interruptible<std::shared_ptr<PendingSave>>(start);
  return without_gil([&] { return start({}); });
}

// The same with a function that fills memory. What it raises is raised here, unless a tier has the step nevertheless.
std::shared_ptr<PendingSave> start_filled_save(const PySaver& self, const StartSave& start, PyFill& filler) {
  PinnedRange::see_context();  // the call's own thread has none
  std::shared_ptr<PendingSave> pending;
  try {
    pending = start_save(self, start);
  } catch (...) {
    filler.rethrow();
    throw;
  }
  if (!filler.has_raised()) return pending;
  {
    const GilRelease release;
    static_cast<void>(pending->wait());
  }
  for (size_t tier = 0; tier < pending->tiers(); ++tier) {
    if (pending->state(tier) == checkpoint::TierState::kDurable) return pending;
  }
  filler.rethrow();
  return pending;
}

std::shared_ptr<PendingSave> save(PySaver& self, int64_t step, const std::vector<SaveEntry>& entries, std::string state,
                                  std::string rank_state, const std::map<std::string, double>& metrics,
                                  const nb::object& fill) {
  const auto tensors = tensors_to_save(entries);
  Saver& saver = self.get();
  PyFill filler(fill);
  const auto start = [&](const std::stop_token& stop) {
    return saver.save(step, tensors, std::move(state), std::move(rank_state), {metrics.begin(), metrics.end()}, stop,
                      fill.is_none() ? checkpoint::FillImage() : std::ref(filler));
  };
  return fill.is_none() ? start_save(self, start) : start_filled_save(self, start, filler);
}

std::shared_ptr<PendingSave> save_part(PySaver& self, int64_t step, const std::vector<SaveEntry>& entries,
                                       std::string rank_state, const nb::object& fill) {
  const auto tensors = tensors_to_save(entries);
  Saver& saver = self.get();
  PyFill filler(fill);
  const auto start = [&](const std::stop_token& stop) {
    return saver.save_part(step, tensors, std::move(rank_state), stop,
                           fill.is_none() ? checkpoint::FillImage() : std::ref(filler));
  };
  return fill.is_none() ? start_save(self, start) : start_filled_save(self, start, filler);
}

// What a caller of wait() names: a tier as the Saver got it, or the side of a link in the bucket, of a tier that lies
// in the link's directory.
struct NamedTier {
  std::optional<size_t> at;  // nullopt: all
  std::optional<link::LinkedPath> carried;
};

// Raises ValueError.
NamedTier tier_of(const PendingSave& self, const nb::object& tier) {
  if (tier.is_none()) return {};
  const auto url = nb::cast<std::string>(nb::module_::import_("os").attr("fspath")(tier));
  std::vector<std::string> known;
  for (size_t i = 0; i < self.tiers(); ++i) {
    if (self.tier_url(i) == url) return {i, std::nullopt};
    known.push_back(self.tier_url(i));
  }
  std::string no_link = "and no link of this user and machine has it";
  if (auto carried = link::links_folder().and_then([&](auto links) { return link::find_linked_url(links, url); })) {
    for (size_t i = 0; i < self.tiers(); ++i) {
      if (link::real_path(self.tier_url(i)) == carried->whole()) return {i, *std::move(carried)};
    }
    no_link =
        fmt::format("and the link {} keeps {} there, which is none of them", carried->config.name, carried->whole());
  }
  raise(Error(ErrorCode::kInvalidArgument,
              fmt::format("tier '{}': there are {}, {}", url, fmt::join(known, ", "), no_link)));
}

// Until every file of the step's folder is proven to be in the bucket.
void wait_for_link(const PendingSave& self, link::LinkedPath carried, Clock::time_point deadline) {
  const std::string below = carried.below.empty() ? self.folder() : carried.below + "/" + self.folder();
  std::optional<std::chrono::duration<double>> within;
  if (deadline != Clock::time_point::max()) within = std::max(deadline - Clock::now(), Clock::duration::zero());
  interruptible<link::WaitReport>([&](const std::stop_token& stop) {
    return link::wait_for(carried.config, carried.home, below, within, stop, nullptr);
  });
}

void wait(PendingSave& self, std::optional<double> timeout, const nb::object& tier) {
  constexpr std::chrono::milliseconds kBetweenSignals{50};
  auto [at, carried] = tier_of(self, tier);
  const auto deadline = timeout ? Clock::now() + to_ms(*timeout) : Clock::time_point::max();
  const auto ended = [&, at = at] {
    return without_gil([&] { return self.wait_until(std::min(deadline, Clock::now() + kBetweenSignals), at); });
  };
  while (!ended()) {
    check_signals();
    if (Clock::now() >= deadline) {
      raise(Error(ErrorCode::kTimeout, fmt::format("the save of step {} is still under way", self.step())));
    }
  }
  without_gil([&, at = at] { return self.wait({}, at); });
  if (carried) wait_for_link(self, *std::move(carried), deadline);
}

void wait_removals(PendingSave& self) {
  interruptible<void>([&](std::stop_token stop) { return self.wait_removals(std::move(stop)); });
}

nb::dict save_status(const PendingSave& self) {
  constexpr std::array<const char*, 4> kNames = {"pending", "durable", "failed", "skipped"};
  nb::dict status;
  for (size_t i = 0; i < self.tiers(); ++i)
    status[nb::str(self.tier_url(i).c_str())] = kNames[static_cast<size_t>(self.state(i))];
  return status;
}

nb::dict saver_metrics(PySaver& self) {
  nb::dict d;
  for (const Metric metric : {Metric::kSaves, Metric::kWriteBytes, Metric::kWriteSeconds, Metric::kStallSeconds}) {
    d[nb::str(metric_defs()[static_cast<size_t>(metric)].name.data())] = self.get().metrics().value(metric);
  }
  d["referred_bytes"] = self.get().referred_bytes();
  d["peak_memory_bytes"] = self.get().peak_memory_bytes();
  return d;
}

void close_saver(PySaver& self) {
  const GilRelease release;
  self.saver.reset();
}

nb::typed<nb::list, StepInfo> list_steps(const std::string& root) {
  const auto steps = interruptible<std::vector<checkpoint::StepInfo>>(
      [&](const std::stop_token&) -> Result<std::vector<checkpoint::StepInfo>> {
        ASSIGN_OR_RETURN(const Location location, open_url(root));
        return checkpoint::list_steps(location);
      });
  nb::typed<nb::list, StepInfo> list;
  for (const auto& info : steps) {
    StepInfo d;
    d["step"] = info.step;
    d["attempt"] = info.attempt;
    d["world_size"] = info.world_size;
    d["tensors"] = info.tensors;
    d["bytes"] = info.bytes;
    d["referred_bytes"] = info.referred_bytes;
    d["bases"] = from_lineage(info.bases);
    d["metrics"] = std::map<std::string, double>(info.metrics.begin(), info.metrics.end());
    d["committed"] = std::chrono::duration<double>(info.committed.time_since_epoch()).count();
    d["line"] = info.line ? nb::cast(from_lineage(*info.line)) : nb::none();
    d["left_behind"] = info.is_left;
    d["damage"] = info.damage ? nb::cast(info.damage->to_string()) : nb::none();
    d["newer"] = info.damage && info.damage->code() == ErrorCode::kUnsupported;
    list.append(d);
  }
  return list;
}

void init_checkpoint(PyCheckpoint* self, const Places& root, int64_t step, double tier_timeout) {
  const auto* const one = std::get_if<std::string>(&root);
  const auto urls = one != nullptr ? std::vector{*one} : std::get<std::vector<std::string>>(root);
  if (urls.empty()) raise(Error(ErrorCode::kInvalidArgument, "no folder of checkpoints is given"));
  auto opened =
      interruptible<std::unique_ptr<Checkpoint>>([&](const std::stop_token&) -> Result<std::unique_ptr<Checkpoint>> {
        std::vector<Location> tiers;
        for (const std::string& url : urls) {
          ASSIGN_OR_RETURN(tiers.emplace_back(), open_url(url));
        }
        return Checkpoint::open(tiers, step, to_ms(tier_timeout));
      });
  new (self) PyCheckpoint{std::move(opened)};
}

nb::dict stored_tensors(PyCheckpoint& self) {
  nb::dict d;
  for (const auto& tensor : self.checkpoint->tensors()) {
    d[nb::str(tensor.name.data(), tensor.name.size())] =
        nb::make_tuple(std::string(formats::dtype_name(tensor.dtype)), nb::tuple(nb::cast(tensor.shape)));
  }
  return d;
}

nb::dict stored_boxes(PyCheckpoint& self) {
  nb::dict d;
  for (const auto& tensor : self.checkpoint->tensors()) {
    nb::list boxes;
    for (const checkpoint::Box& box : self.checkpoint->boxes(tensor.name)) {
      boxes.append(nb::make_tuple(nb::tuple(nb::cast(box.offset)), nb::tuple(nb::cast(box.shape))));
    }
    d[nb::str(tensor.name.data(), tensor.name.size())] = boxes;
  }
  return d;
}

std::vector<checkpoint::TensorToLoad> targets_of(const std::vector<LoadEntry>& entries) {
  std::vector<checkpoint::TensorToLoad> targets;
  targets.reserve(entries.size());
  for (const auto& [name, offset, shape, address] : entries) {
    // SAFETY: the caller gives the address of writable memory of shape x the stored dtype.
    targets.push_back({name, {offset, shape}, reinterpret_cast<std::byte*>(address)});
  }
  return targets;
}

void load(PyCheckpoint& self, const std::vector<LoadEntry>& entries, int threads) {
  const auto targets = targets_of(entries);
  interruptible<void>([&](std::stop_token stop) { return self.checkpoint->load(targets, threads, stop); });
}

void save_tensors(const std::string& url, const std::vector<SaveEntry>& entries,
                  std::map<std::string, std::string> metadata, bool durable, int threads) {
  const auto tensors = tensors_to_save(entries);
  const checkpoint::TensorFileOptions options{std::move(metadata),
                                              durable ? Durability::kDurable : Durability::kVisible, threads};
  interruptible<void>([&](std::stop_token stop) -> Status {
    ASSIGN_OR_RETURN(const Location at, open_url(url));
    return checkpoint::save_tensors(at, tensors, options, stop);
  });
}

struct PyTensorFile {
  std::unique_ptr<checkpoint::TensorFile> file;
};

void init_tensor_file(PyTensorFile* self, const std::string& url) {
  auto opened = interruptible<std::unique_ptr<checkpoint::TensorFile>>(
      [&](const std::stop_token&) -> Result<std::unique_ptr<checkpoint::TensorFile>> {
        ASSIGN_OR_RETURN(const Location location, open_url(url));
        return checkpoint::TensorFile::open(location);
      });
  new (self) PyTensorFile{std::move(opened)};
}

nb::dict file_tensors(PyTensorFile& self) {
  nb::dict d;
  for (const auto& tensor : self.file->header().tensors) {
    d[nb::str(tensor.name.data(), tensor.name.size())] =
        nb::make_tuple(std::string(formats::dtype_name(tensor.dtype)), nb::tuple(nb::cast(tensor.shape)));
  }
  return d;
}

void register_tensor_file(nb::module_& m) {
  m.def("save_tensors", &save_tensors, nb::arg("url"), nb::arg("tensors"), nb::arg("metadata"), nb::arg("durable"),
        nb::arg("threads") = 0,
        "Writes one safetensors file of whole tensors, given as (name, dtype, global_shape, offset, shape, data_ptr).");
  nb::class_<PyTensorFile>(m, "TensorFile", "One safetensors file, opened for reading.")
      .def("__init__", &init_tensor_file, nb::arg("url"))
      .def_prop_ro("metadata", [](PyTensorFile& self) { return self.file->header().metadata; })
      .def_prop_ro("tensors", &file_tensors, nb::sig("def tensors(self) -> dict[str, tuple[str, tuple[int, ...]]]"),
                   "name -> (dtype, shape), in the order of their bytes.")
      .def(
          "load",
          [](PyTensorFile& self, const std::vector<LoadEntry>& entries, int threads) {
            const auto targets = targets_of(entries);
            interruptible<void>([&](std::stop_token stop) { return self.file->load(targets, threads, stop); });
          },
          nb::arg("targets"), nb::arg("threads") = 0,
          "Fills the targets (name, offset, shape, data_ptr). Verifies no hash.");
}

}  // namespace

void register_checkpoint(nb::module_& m) {
  register_tensor_file(m);
  register_line(m);
  m.def(
      "make_attempt",
      [](const std::string& root, const std::string& nonce, bool newer) {
        return interruptible<std::string>([&](const std::stop_token&) -> Result<std::string> {
          ASSIGN_OR_RETURN(const Location location, open_url(root));
          return newer ? checkpoint::make_attempt(location, nonce) : checkpoint::make_equal_attempt(location);
        });
      },
      nb::arg("root"), nb::arg("nonce") = "", nb::arg("newer") = true,
      "The name of a new attempt below `root`; one rank makes it and tells the others, or all make the same with a "
      "nonce that they agree on. newer=False: as new as the newest, for a program that is no training.");
  m.def(
      "assign_writers",
      [](const std::vector<int64_t>& bytes, int64_t world_size) {
        return checkpoint::assign_writers(bytes, world_size);
      },
      nb::arg("bytes"), nb::arg("world_size"),
      "Returns the rank that writes each of the replicated tensors, balanced by bytes.");
  m.def(
      "copy_step",
      [](const std::vector<std::string>& from, const std::string& to, int64_t step, std::optional<int64_t> rank,
         std::string attempt, const KeepEntry& keep, double timeout) {
        const auto copied =
            interruptible<checkpoint::StepCopy>([&](const std::stop_token&) -> Result<checkpoint::StepCopy> {
              std::vector<Location> sources;
              for (const std::string& url : from) {
                ASSIGN_OR_RETURN(sources.emplace_back(), open_url(url));
              }
              ASSIGN_OR_RETURN(const Location target, open_url(to));
              return checkpoint::copy_step(sources, target, step,
                                           {rank, std::move(attempt), keep_rules(keep), to_ms(timeout)});
            });
        return copied.copied;
      },
      nb::arg("sources"), nb::arg("target"), nb::arg("step"), nb::arg("rank") = nb::none(), nb::arg("attempt") = "",
      nb::arg("keep") = KeepEntry{}, nb::arg("timeout") = 600.0,
      "Copies a committed step, verified; with `rank` only its part, and rank 0 commits. Returns how many parts were "
      "copied.");
  m.def("list_steps", &list_steps, nb::arg("root"),
        "Committed steps, ascending: step, attempt, world_size, tensors, bytes, committed (Unix seconds), line "
        "([(attempt, step)] that the commit continues, or None), left_behind, damage (str or None), newer (whether a "
        "newer version wrote it).");
  m.def(
      "list_step_numbers",
      [](const std::string& root) {
        return interruptible<std::vector<int64_t>>([&](const std::stop_token&) -> Result<std::vector<int64_t>> {
          ASSIGN_OR_RETURN(const Location location, open_url(root));
          return checkpoint::list_step_numbers(location);
        });
      },
      nb::arg("root"), "Lists the steps that have a folder, ascending, committed or not.");

  nb::class_<PendingSave>(m, "PendingSave", "One save under way.")
      .def_prop_ro("step", &PendingSave::step)
      .def_prop_ro("bytes", &PendingSave::bytes, "Size of this rank's file.")
      .def_prop_ro("done", &PendingSave::done)
      .def(
          "filled",
          [](PendingSave& self, const std::optional<std::string>& failure) {
            self.filled(failure ? Status(fail(ErrorCode::kInternal, "step {}: {}", self.step(), *failure)) : Status());
          },
          nb::arg("failure") = nb::none(),
          "What fill() began is done; or, with a reason, never will be, and the save fails.")
      .def_prop_ro("status", &save_status, nb::sig("def status(self) -> dict[str, str]"),
                   "By tier, nearest first, the root last: 'pending', 'durable', 'failed', or 'skipped' (save_every).")
      .def("wait", &wait, nb::arg("timeout") = nb::none(), nb::arg("tier") = nb::none(),
           nb::sig("def wait(self, timeout: float | None = None, tier: str | os.PathLike[str] | None = None) -> None"),
           "Waits until the step is committed and durable in `tier`, as the Checkpointer got it; by default in every "
           "tier.\n"
           "`tier` may also be the URL in the bucket that a link (millrace.link) of this machine keeps in step with a\n"
           "tier's folder: then it waits until all files of the step are proven to be there.\n"
           "Raises TimeoutError after `timeout` seconds, and what went wrong.")
      .def(
          "wait_removals", &wait_removals,
          "Waits until the removal of older steps behind the commits, which wait() does not wait for, has ended, too.");

  nb::class_<PySaver>(m, "Saver",
                      "One rank's way to write checkpoints; millrace.torch.Checkpointer is the way to use it.")
      .def("__init__", &init_saver, nb::arg("root"), nb::kw_only(), nb::arg("attempt"), nb::arg("rank") = 0,
           nb::arg("world_size") = 1, nb::arg("threads") = 0, nb::arg("memory_bytes") = 0, nb::arg("reserve_bytes") = 0,
           nb::arg("commit_timeout") = 600.0, nb::arg("keep") = KeepEntry{},
           nb::arg("tiers") = std::vector<TierEntry>(), nb::arg("save_every") = 0, nb::arg("tier_timeout") = 120.0,
           nb::arg("pin") = false, nb::arg("refer_unchanged") = false)
      .def(
          "save", &save, nb::arg("step"), nb::arg("tensors"), nb::arg("state"), nb::arg("rank_state") = "null",
          nb::arg("metrics") = std::map<std::string, double>(), nb::arg("fill") = nb::none(),
          nb::sig("def save(self, step: int, tensors: collections.abc.Sequence[tuple[str, str, "
                  "collections.abc.Sequence[int], collections.abc.Sequence[int], collections.abc.Sequence[int], int]], "
                  "state: str, rank_state: str = 'null', metrics: collections.abc.Mapping[str, float] = {}, "
                  "fill: collections.abc.Callable[[int, int, list[tuple[int, int, int, int]], bool], object] | None = "
                  "None) -> PendingSave"),
          "Copies the tensors, given as (name, dtype, global_shape, offset, shape, data_ptr), and returns a\n"
          "PendingSave. Tensors with data_ptr 0 are filled in by the caller: fill(memory, bytes, [(tensor, address,\n"
          "begin, bytes)], complete). Either it begins that once, and PendingSave.filled() says when it is done; or,\n"
          "`complete`, it fills runs of the tensors' bytes, on any threads.")
      .def("save_part", &save_part, nb::arg("step"), nb::arg("tensors"), nb::arg("rank_state") = "null",
           nb::arg("fill") = nb::none(),
           nb::sig("def save_part(self, step: int, tensors: collections.abc.Sequence[tuple[str, str, "
                   "collections.abc.Sequence[int], collections.abc.Sequence[int], collections.abc.Sequence[int], "
                   "int]], rank_state: str = 'null', fill: collections.abc.Callable[[int, int, list[tuple[int, int, "
                   "int, int]], bool], object] | None = None) -> PendingSave"),
           "save() without the commit: the PendingSave ends when this rank's part is durable.")
      .def(
          "commit",
          [](PySaver& self, int64_t step, std::string state) {
            Saver& saver = self.get();
            without_gil([&] { return saver.commit(step, std::move(state)); });
          },
          nb::arg("step"), nb::arg("state"), "Rank 0: commits a step whose parts were all saved by save_part().")
      .def(
          "abandon",
          [](PySaver& self, int64_t step, const std::string& cause) {
            Saver& saver = self.get();
            without_gil([&] {
              saver.abandon(step, Error(ErrorCode::kInvalidArgument, cause));
              return Status();
            });
          },
          nb::arg("step"), nb::arg("cause"), "Tells the other ranks that this rank cannot save the step, and why.")
      .def(
          "continue_from",
          [](PySaver& self, const std::optional<LineEntry>& line) {
            Saver& saver = self.get();
            without_gil([&] {
              saver.continue_from(to_lineage(line));
              return Status();
            });
          },
          nb::arg("line").none(), "What the next save continues: [(attempt, step)], the oldest first; None: unknown.")
      .def("metrics", &saver_metrics, nb::sig("def metrics(self) -> dict[str, float]"))
      .def("close", &close_saver, "Waits for the current save and its removals.");

  nb::class_<PyCheckpoint>(m, "Checkpoint", "One committed step, opened for reading.")
      .def("__init__", &init_checkpoint, nb::arg("root"), nb::arg("step"), nb::arg("tier_timeout") = 0.0,
           "root: a folder of checkpoints, or its tiers, nearest first. tier_timeout: seconds without an answer after "
           "which a load goes on from the next tier; 0: it waits.")
      .def_prop_ro("step", [](PyCheckpoint& self) { return self.checkpoint->info().step; })
      .def_prop_ro("attempt", [](PyCheckpoint& self) { return self.checkpoint->info().attempt; })
      .def_prop_ro(
          "line",
          [](PyCheckpoint& self) {
            const auto& line = self.checkpoint->info().line;
            return line ? std::optional(from_lineage(*line)) : std::nullopt;
          },
          "The line that the commit continues, [(attempt, step)]; None: unknown.")
      .def_prop_ro("world_size", [](PyCheckpoint& self) { return self.checkpoint->info().world_size; })
      .def_prop_ro("state", [](PyCheckpoint& self) { return self.checkpoint->state(); })
      .def(
          "rank_state",
          [](PyCheckpoint& self, int64_t rank) {
            return without_gil([&] { return self.checkpoint->rank_state(rank); });
          },
          nb::arg("rank"))
      .def_prop_ro("tensors", &stored_tensors, nb::sig("def tensors(self) -> dict[str, tuple[str, tuple[int, ...]]]"),
                   "name -> (dtype, shape).")
      .def_prop_ro("boxes", &stored_boxes,
                   nb::sig("def boxes(self) -> dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]]"),
                   "name -> (offset, shape) of each box that the tensor was saved in.")
      .def("load", &load, nb::arg("targets"), nb::arg("threads") = 0,
           "Fills (name, offset, shape, data_ptr) with verified bytes. Raises CorruptionError naming file and tensor.")
      .def(
          "heal",
          [](PyCheckpoint& self) {
            return interruptible<int64_t>([&](std::stop_token stop) { return self.checkpoint->heal(stop); });
          },
          "Writes files that loads of this object found damaged back into their tiers. Returns how many.")
      .def(
          "verify",
          [](PyCheckpoint& self, int threads) {
            interruptible<void>([&](std::stop_token stop) { return self.checkpoint->verify(threads, stop); });
          },
          nb::arg("threads") = 0, "Reads and checks all files of the step. Raises CorruptionError.");
}

}  // namespace millrace::python
