// SPDX-License-Identifier: Apache-2.0
//
// The part of the distributed layer that needs no MPI: shards, and a loss over whatever communicates. That is a
// Python object with `rank`, `size`, `sum(buffer)`, `maximum(buffer)` (both in place) and `gather(bytes)`.
#include <string>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#if defined(TX_HAVE_CPU)
#include "cpu/loss.hpp"
#endif
#include "distributed/communicator.hpp"
#include "distributed/loss.hpp"
#include "distributed/reproducible_sum.hpp"
#include "distributed/shard.hpp"
#include "python/bindings/bindings.hpp"
#include "python/bindings/request_from_python.hpp"
#include "reference/core/validate.hpp"
#include "reference/loss.hpp"

namespace py = pybind11;

namespace transducer::python {
namespace {

class PythonCommunicator final : public distributed::Communicator {
 public:
  explicit PythonCommunicator(py::object object)
      : object_(std::move(object)),
        rank_(py::cast<int>(object_.attr("rank"))),
        size_(py::cast<int>(object_.attr("size"))) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void sum(std::span<double> values) override { in_place("sum", values); }
  void sum(std::span<std::int64_t> values) override { in_place("sum", values); }
  void maximum(std::span<std::int32_t> values) override { in_place("maximum", values); }
  distributed::Gathered gather(std::span<const std::byte> mine) override {
    const py::gil_scoped_acquire gil;
    const py::bytes part(reinterpret_cast<const char*>(mine.data()), mine.size());
    distributed::Gathered all{.bytes = {}, .offsets = {0}};
    for (const py::handle other : object_.attr("gather")(part)) {
      const std::string bytes = py::cast<py::bytes>(other);
      const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
      all.bytes.insert(all.bytes.end(), data, data + bytes.size());
      all.offsets.push_back(all.bytes.size());
    }
    check(all.offsets.size() == static_cast<std::size_t>(size_) + 1,
          "distributed: gather returned ", all.offsets.size() - 1, " parts, expected ", size_);
    return all;
  }

 private:
  template <class T>
  void in_place(const char* method, std::span<T> values) {
    if (values.empty()) return;
    const py::gil_scoped_acquire gil;
    object_.attr(method)(py::memoryview::from_buffer(
        values.data(), {static_cast<py::ssize_t>(values.size())}, {sizeof(T)}));
  }

  py::object object_;
  int rank_;
  int size_;
};

/// The layers that compute on host memory.
distributed::Layer find_layer(const std::string& name, const std::string& caller) {
  if (name == "reference") return {reference::plan_workspace, reference::loss};
#if defined(TX_HAVE_CPU)
  if (name == "cpu") return {cpu::plan_workspace, cpu::loss};
#endif
  check(name == "cpu" || name == "cuda", caller, ": backend is '", name,
        "', expected 'reference' or 'cpu'");
  throw NotBuilt(concat(caller, ": backend '", name,
                        "' is not there for several ranks, expected one for host arrays"));
}

void distributed_loss(const std::string& caller, const std::string& backend_name,
                      const VariantTable& variant, const py::dict& inputs, const py::dict& outputs,
                      const py::dict& options, const py::object& group,
                      const std::vector<std::int64_t>& utterances, bool reproducible) {
  const distributed::Layer layer = find_layer(backend_name, caller);
  CallFromPython call;
  fill_call(caller, variant, inputs, outputs, options, call);
  PythonCommunicator communicator(group);
  const distributed::Placement placement{utterances, reproducible};
  const py::gil_scoped_release release;
  // A shape that does not fit is an error that loss() shares with the other ranks.
  std::size_t bytes = 0;
  try {
    const LossShape shape = shape_of(call.request, call.result);
    bytes = distributed::plan_workspace(layer, shape, call.options, placement).scratch_bytes();
  } catch (const InvalidArgument&) {
    bytes = 0;
  }
  const ScratchMemory scratch(bytes);
  distributed::loss(layer, call.request, call.result, call.options,
                    {.scratch = scratch.span(), .saved = {}}, placement, communicator);
}

}  // namespace

void bind_distributed(py::module_& module) {
  module.def(
      "shard",
      [](const std::vector<std::int64_t>& costs, int ranks,
         const std::vector<std::int64_t>& loads) {
        return distributed::shard(costs, ranks, loads);
      },
      py::arg("costs"), py::arg("ranks"), py::arg("loads"));
  module.def("distributed_loss", &distributed_loss, py::arg("caller"), py::arg("backend"),
             py::arg("variant"), py::arg("inputs"), py::arg("outputs"), py::arg("options"),
             py::arg("group"), py::arg("utterances"), py::arg("reproducible"));
  module.attr("reproducible_bytes") = distributed::ReproducibleSum::kBytesPerElement;
}

}  // namespace transducer::python
