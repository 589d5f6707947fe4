// SPDX-License-Identifier: Apache-2.0
//
// From a Python array to a TensorRef without a copy: NumPy arrays (ml_dtypes' bfloat16 included),
// PyTorch tensors by their address, anything else by DLPack. Any strides are taken as they are; an
// element type that is not supported is an error, never a conversion.
#pragma once

#include <string>

#include <pybind11/pybind11.h>

#include "reference/core/tensor_ref.hpp"

namespace transducer::python {

/// A borrowed array and the Python objects that keep its memory alive.
struct Array {
  TensorRef ref;
  pybind11::object owner;
};

/// Throws InvalidArgument (ValueError), beginning with `caller` and `name`, for an element type or
/// a rank that is not supported, and pybind11::type_error for something that is no array.
Array array_from_python(const pybind11::object& object, const std::string& name,
                        const std::string& caller);

}  // namespace transducer::python
