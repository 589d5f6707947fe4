// SPDX-License-Identifier: Apache-2.0
//
// The extension module flash_transducer._core: each bind_* function adds one part of the C++
// library. What Python sees is described in _core.pyi.
#include <exception>

#include <pybind11/pybind11.h>

#include "python/bindings/bindings.hpp"
#include "reference/core/error.hpp"

namespace py = pybind11;

PYBIND11_MODULE(_core, module) {
  using transducer::Cancelled;
  using transducer::DeviceError;
  using transducer::NotBuilt;
  using transducer::Unsupported;
  module.attr("__version__") = TX_VERSION;
  py::register_exception<Unsupported>(module, "Unsupported", PyExc_NotImplementedError);
  py::register_exception<NotBuilt>(module, "NotBuilt", PyExc_NotImplementedError);
  py::register_exception<DeviceError>(module, "DeviceError", PyExc_RuntimeError);
  // A cancelled call carries the Python exception that cancelled it: KeyboardInterrupt, usually.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): the signature is pybind11's.
  py::register_local_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const Cancelled& cancelled) {
      if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_RuntimeError, cancelled.what());
    }
  });
  transducer::python::bind_arrays(module);
  transducer::python::bind_variants(module);
  transducer::python::bind_loss(module);
  transducer::python::bind_reference(module);
  transducer::python::bind_distributed(module);
}
