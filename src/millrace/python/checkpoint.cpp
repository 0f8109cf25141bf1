// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/checkpoint.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "millrace/python/interruptible.h"
#include "millrace/python/results.h"

// The checkpoint engine as millrace.torch uses it: tensors are given by address, since who owns them is torch's
// business.

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

struct PySaver {
  std::unique_ptr<Saver> saver;
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

void init_saver(PySaver* self, const std::string& root, std::string attempt, int64_t rank, int64_t world_size,
                int threads, int64_t memory_bytes, double commit_timeout, int64_t keep_last, int64_t keep_every) {
  checkpoint::SaverOptions options;
  options.attempt = std::move(attempt);
  options.rank = rank;
  options.world_size = world_size;
  options.threads = threads;
  options.memory_bytes = memory_bytes;
  options.commit_timeout = to_ms(commit_timeout);
  options.keep_last = keep_last;
  options.keep_every = keep_every;
  new (self) PySaver{unwrap(Saver::create(unwrap(open_url(root)), options))};
}

std::shared_ptr<PendingSave> save(PySaver& self, int64_t step, const std::vector<SaveEntry>& entries, std::string state,
                                  std::string rank_state) {
  std::vector<checkpoint::TensorToSave> tensors;
  tensors.reserve(entries.size());
  for (const auto& [name, dtype_name, global_shape, offset, shape, address] : entries) {
    const auto dtype = formats::dtype_from_name(dtype_name);
    if (!dtype) {
      raise(Error(ErrorCode::kInvalidArgument, fmt::format("{}: safetensors has no dtype {}", name, dtype_name)));
    }
    // SAFETY: the caller gives the address of shape x dtype bytes that live until save() returns.
    tensors.push_back({name, *dtype, global_shape, {offset, shape}, reinterpret_cast<const std::byte*>(address)});
  }
  Saver& saver = self.get();
  return without_gil([&] { return saver.save(step, tensors, std::move(state), std::move(rank_state)); });
}

void wait(PendingSave& self, std::optional<double> timeout) {
  const auto deadline = timeout ? Clock::now() + to_ms(*timeout) : Clock::time_point::max();
  while (!self.done()) {
    {
      const GilRelease release;
      // A short sleep instead of a wait that a signal cannot end: durability takes far longer than this.
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    check_signals();
    if (Clock::now() >= deadline) {
      raise(Error(ErrorCode::kTimeout, fmt::format("the save of step {} is still under way", self.step())));
    }
  }
  without_gil([&] { return self.wait(); });
}

nb::dict saver_metrics(PySaver& self) {
  nb::dict d;
  for (const Metric metric : {Metric::kSaves, Metric::kWriteBytes, Metric::kWriteSeconds, Metric::kStallSeconds}) {
    d[nb::str(metric_defs()[static_cast<size_t>(metric)].name.data())] = self.get().metrics().value(metric);
  }
  return d;
}

void close_saver(PySaver& self) {
  const GilRelease release;
  self.saver.reset();
}

nb::typed<nb::list, StepInfo> list_steps(const std::string& root) {
  const auto location = unwrap(open_url(root));
  nb::typed<nb::list, StepInfo> list;
  for (const auto& info : without_gil([&] { return checkpoint::list_steps(location); })) {
    StepInfo d;
    d["step"] = info.step;
    d["attempt"] = info.attempt;
    d["world_size"] = info.world_size;
    d["tensors"] = info.tensors;
    d["bytes"] = info.bytes;
    d["committed"] = std::chrono::duration<double>(info.committed.time_since_epoch()).count();
    d["damage"] = info.damage ? nb::cast(info.damage->to_string()) : nb::none();
    list.append(d);
  }
  return list;
}

void init_checkpoint(PyCheckpoint* self, const std::string& root, int64_t step) {
  auto opened = without_gil([&]() -> Result<std::unique_ptr<Checkpoint>> {
    ASSIGN_OR_RETURN(const Location location, open_url(root));
    return Checkpoint::open(location, step);
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

void load(PyCheckpoint& self, const std::vector<LoadEntry>& entries, int threads) {
  std::vector<checkpoint::TensorToLoad> targets;
  targets.reserve(entries.size());
  for (const auto& [name, offset, shape, address] : entries) {
    // SAFETY: the caller gives the address of writable memory of shape x the stored dtype.
    targets.push_back({name, {offset, shape}, reinterpret_cast<std::byte*>(address)});
  }
  interruptible<void>([&](std::stop_token stop) { return self.checkpoint->load(targets, threads, stop); });
}

}  // namespace

void register_checkpoint(nb::module_& m) {
  m.def(
      "make_attempt",
      [](const std::string& root) {
        return without_gil([&]() -> Result<std::string> {
          ASSIGN_OR_RETURN(const Location location, open_url(root));
          return checkpoint::make_attempt(location);
        });
      },
      nb::arg("root"), "The name of a new attempt below `root`; one rank makes it and tells the others.");
  m.def(
      "assign_writers",
      [](const std::vector<int64_t>& bytes, int64_t world_size) {
        return checkpoint::assign_writers(bytes, world_size);
      },
      nb::arg("bytes"), nb::arg("world_size"), "Which rank writes each of the replicated tensors, balanced by bytes.");
  m.def("list_steps", &list_steps, nb::arg("root"),
        "Committed steps, ascending: step, attempt, world_size, tensors, bytes, committed (Unix seconds), damage (str "
        "or None).");

  nb::class_<PendingSave>(m, "PendingSave", "One save on its way to durability.")
      .def_prop_ro("step", &PendingSave::step)
      .def_prop_ro("bytes", &PendingSave::bytes, "Of this rank's file.")
      .def_prop_ro("done", &PendingSave::done)
      .def("wait", &wait, nb::arg("timeout") = nb::none(),
           "Waits until the step is committed and durable. Raises TimeoutError after `timeout` seconds, and what went "
           "wrong.");

  nb::class_<PySaver>(m, "Saver",
                      "One rank's way to write checkpoints; millrace.torch.Checkpointer is the way to use it.")
      .def("__init__", &init_saver, nb::arg("root"), nb::kw_only(), nb::arg("attempt"), nb::arg("rank") = 0,
           nb::arg("world_size") = 1, nb::arg("threads") = 0, nb::arg("memory_bytes") = 0,
           nb::arg("commit_timeout") = 600.0, nb::arg("keep_last") = 0, nb::arg("keep_every") = 0)
      .def("save", &save, nb::arg("step"), nb::arg("tensors"), nb::arg("state"), nb::arg("rank_state") = "null",
           "Copies the tensors, given as (name, dtype, global_shape, offset, shape, data_ptr), and returns a "
           "PendingSave.")
      .def("metrics", &saver_metrics, nb::sig("def metrics(self) -> dict[str, float]"))
      .def("close", &close_saver, "Waits for the save under way.");

  nb::class_<PyCheckpoint>(m, "Checkpoint", "One committed step, opened for reading.")
      .def("__init__", &init_checkpoint, nb::arg("root"), nb::arg("step"))
      .def_prop_ro("step", [](PyCheckpoint& self) { return self.checkpoint->info().step; })
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
      .def("load", &load, nb::arg("targets"), nb::arg("threads") = 0,
           "Fills (name, offset, shape, data_ptr) with verified bytes. Raises CorruptionError naming file and tensor.")
      .def(
          "verify",
          [](PyCheckpoint& self, int threads) {
            interruptible<void>([&](std::stop_token stop) { return self.checkpoint->verify(threads, stop); });
          },
          nb::arg("threads") = 0, "Reads and checks everything. Raises CorruptionError.");
}

}  // namespace millrace::python
