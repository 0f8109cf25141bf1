// SPDX-License-Identifier: Apache-2.0
#pragma once

// Wraps C++ memory in NumPy arrays without a copy. The owner of the array keeps the C++ object alive.

#include <nanobind/ndarray.h>

#include <memory>
#include <utility>
#include <vector>

#include "millrace/python/errors.h"

namespace millrace::python {

// Returns a capsule that releases `owner` when the last array over it is gone.
template <class Owner>
nb::capsule keep_alive(std::shared_ptr<Owner> owner) {
  auto* const kept = new std::shared_ptr<Owner>(std::move(owner));
  return nb::capsule(kept, [](void* p) noexcept { delete static_cast<std::shared_ptr<Owner>*>(p); });
}

// Returns an array of shape [values.size()].
template <class T>
nb::ndarray<nb::numpy, T> to_array(std::vector<T> values) {
  auto owner = std::make_shared<std::vector<T>>(std::move(values));
  T* const data = owner->data();
  const size_t shape[1] = {owner->size()};
  return nb::ndarray<nb::numpy, T>(data, 1, shape, keep_alive(std::move(owner)));
}

}  // namespace millrace::python
