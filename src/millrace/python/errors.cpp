// SPDX-License-Identifier: Apache-2.0
#include "millrace/python/errors.h"

#include <cerrno>
#include <optional>
#include <thread>

namespace millrace::python {

namespace {

// Created once with the module and never freed: exceptions may be raised until the interpreter has ended.
PyObject* corruption_error = nullptr;
PyObject* cancelled_error = nullptr;

std::optional<std::thread::id> ending_thread;  // the thread in which Python ends; guarded by the GIL

struct PythonClass {
  PyObject* type;
  int default_errno;  // OSError and its children take (errno, message); 0: message only
};

PythonClass class_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return {PyExc_ValueError, 0};
    case ErrorCode::kOutOfRange:
      return {PyExc_ValueError, 0};
    case ErrorCode::kNotFound:
      return {PyExc_FileNotFoundError, ENOENT};
    case ErrorCode::kAlreadyExists:
      return {PyExc_FileExistsError, EEXIST};
    case ErrorCode::kPermissionDenied:
      return {PyExc_PermissionError, EACCES};
    case ErrorCode::kTimeout:
      return {PyExc_TimeoutError, ETIMEDOUT};
    case ErrorCode::kUnsupported:
      return {PyExc_NotImplementedError, 0};
    case ErrorCode::kUnavailable:
      return {PyExc_ConnectionError, 0};
    case ErrorCode::kCorruption:
      return {corruption_error, 0};
    case ErrorCode::kCancelled:
      return {ending_thread && *ending_thread != std::this_thread::get_id() ? PyExc_SystemExit : cancelled_error, 0};
    case ErrorCode::kResourceExhausted:
      return {PyExc_OSError, ENOSPC};
    case ErrorCode::kInternal:
      return {PyExc_OSError, 0};
  }
  return {PyExc_OSError, 0};
}

PythonClass class_of(const Error& error) {
  if (error.code() == ErrorCode::kResourceExhausted && error.sys_errno() == ENOMEM) return {PyExc_MemoryError, 0};
  // An error of the system, not of a service. OSError picks its subclass by the number, and has none for EIO.
  if (error.code() == ErrorCode::kUnavailable && error.sys_errno() != 0) return {PyExc_OSError, error.sys_errno()};
  return class_of(error.code());
}

}  // namespace

nb::str message_text(std::string_view text) {
  return nb::steal<nb::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

void raise(const Error& error) {
  const PythonClass python = class_of(error);
  const nb::str text = message_text(error.to_string());
  if (python.default_errno != 0) {
    const int number = error.sys_errno() != 0 ? error.sys_errno() : python.default_errno;
    const nb::object arguments = nb::make_tuple(number, text);
    PyErr_SetObject(python.type, arguments.ptr());
  } else {
    PyErr_SetObject(python.type, text.ptr());
  }
  throw nb::python_error();
}

void check_signals() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

void register_errors(nb::module_& m) {
  corruption_error = PyErr_NewExceptionWithDoc("millrace.CorruptionError",
                                               "Bytes are not what they were said to be: a damaged or changed file.",
                                               PyExc_OSError, nullptr);
  cancelled_error = PyErr_NewExceptionWithDoc("millrace.Cancelled", "The operation was stopped, or its object closed.",
                                              PyExc_Exception, nullptr);
  m.attr("CorruptionError") = nb::handle(corruption_error);
  m.attr("Cancelled") = nb::handle(cancelled_error);
  m.def(
      "python_ends", [] { ending_thread = std::this_thread::get_id(); },
      "Says that Python is ending in this thread. In other threads, which are daemons by now, Cancelled becomes "
      "SystemExit.");
}

}  // namespace millrace::python
