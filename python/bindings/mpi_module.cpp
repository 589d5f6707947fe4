// SPDX-License-Identifier: Apache-2.0
//
// The extension module flash_transducer._mpi: a communicator, and nothing else. It alone needs libmpi, so it is
// loaded on first use and the package imports without it.
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "distributed/mpi_communicator.hpp"
#include "reference/core/error.hpp"

namespace py = pybind11;

namespace transducer::python {
namespace {

using distributed::MpiCommunicator;

/// Polls Python's signal handlers, at most every 50 ms, so that Ctrl-C and SIGTERM end a wait.
bool is_interrupted(void* context) {
  (void)context;
  using Clock = std::chrono::steady_clock;
  static Clock::time_point last = Clock::now();
  const Clock::time_point now = Clock::now();
  if (now - last < std::chrono::milliseconds(50)) return false;
  last = now;
  const py::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

template <class T>
std::span<T> elements_of(const py::buffer_info& info) {
  return {static_cast<T*>(info.ptr), static_cast<std::size_t>(info.size)};
}

void sum(MpiCommunicator& communicator, const py::buffer& buffer) {
  const py::buffer_info info = buffer.request(true);
  const bool is_real = info.item_type_is_equivalent_to<double>();
  check(is_real || info.item_type_is_equivalent_to<std::int64_t>(),
        "sum: the elements have format '", info.format, "', expected float64 or int64");
  const py::gil_scoped_release release;
  if (is_real) {
    communicator.sum(elements_of<double>(info));
  } else {
    communicator.sum(elements_of<std::int64_t>(info));
  }
}

void maximum(MpiCommunicator& communicator, const py::buffer& buffer) {
  const py::buffer_info info = buffer.request(true);
  check(info.item_type_is_equivalent_to<std::int32_t>(), "maximum: the elements have format '",
        info.format, "', expected int32");
  const py::gil_scoped_release release;
  communicator.maximum(elements_of<std::int32_t>(info));
}

py::list gather(MpiCommunicator& communicator, const py::bytes& mine) {
  const std::string_view view = mine;
  distributed::Gathered all;
  {
    const py::gil_scoped_release release;
    all = communicator.gather(std::as_bytes(std::span(view)));
  }
  py::list parts;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const std::span<const std::byte> part = all.of(rank);
    parts.append(py::bytes(reinterpret_cast<const char*>(part.data()), part.size()));
  }
  return parts;
}

}  // namespace
}  // namespace transducer::python

PYBIND11_MODULE(_mpi, module) {
  using transducer::distributed::MpiCommunicator;
  using transducer::distributed::MpiSession;
  // NOLINTNEXTLINE(performance-unnecessary-value-param): the signature is pybind11's.
  py::register_local_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const transducer::Cancelled& cancelled) {
      if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_RuntimeError, cancelled.what());
    }
  });
  static std::unique_ptr<MpiSession> session;
  module.def("initialize", [] {
    if (!session) session = std::make_unique<MpiSession>();
  });
  module.def("finalize", [] { session.reset(); });
  module.def("library", &MpiCommunicator::library);

  py::class_<MpiCommunicator>(module, "Communicator")
      .def(py::init([](std::optional<int> fortran_handle) {
             const auto poll = &transducer::python::is_interrupted;
             return fortran_handle ? std::make_unique<MpiCommunicator>(*fortran_handle, poll)
                                   : std::make_unique<MpiCommunicator>(poll);
           }),
           py::arg("fortran_handle") = py::none())
      .def_property_readonly("rank", &MpiCommunicator::rank)
      .def_property_readonly("size", &MpiCommunicator::size)
      .def_property_readonly("bytes_sent", &MpiCommunicator::bytes)
      .def("sum", &transducer::python::sum)
      .def("maximum", &transducer::python::maximum)
      .def("gather", &transducer::python::gather)
      .def("on_node",
           [](const MpiCommunicator& communicator) {
             const MpiCommunicator::Local local = communicator.on_node();
             return py::make_tuple(local.rank, local.size);
           })
      .def("abort",
           [](const MpiCommunicator& communicator, int status) { communicator.abort(status); });
}
