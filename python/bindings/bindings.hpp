// SPDX-License-Identifier: Apache-2.0
//
// The parts of the extension module.
#pragma once

#include <pybind11/pybind11.h>

namespace transducer::python {

void bind_arrays(pybind11::module_& module);
void bind_variants(pybind11::module_& module);
void bind_distributed(pybind11::module_& module);
void bind_loss(pybind11::module_& module);
void bind_reference(pybind11::module_& module);

}  // namespace transducer::python
