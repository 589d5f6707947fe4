// SPDX-License-Identifier: Apache-2.0
//
// What only the reference offers: best paths, inspection, the backward of scores, brute force.
#include <string>
#include <vector>

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "python/bindings/bindings.hpp"
#include "python/bindings/request_from_python.hpp"
#include "python/bindings/tensor_ref_from_python.hpp"
#include "reference/core/validate.hpp"
#include "reference/enumerate.hpp"
#include "reference/inspection.hpp"
#include "reference/loss.hpp"

namespace py = pybind11;

namespace transducer::python {
namespace {

template <class T>
py::array_t<T> to_array(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

py::dict path_for_python(const reference::BestPath& path) {
  std::vector<std::int64_t> frames;
  std::vector<std::int64_t> labels;
  std::vector<std::int64_t> arcs;
  std::vector<double> weights;
  for (const reference::PathStep& step : path.steps) {
    frames.push_back(step.t);
    labels.push_back(step.u);
    arcs.push_back(step.arc);
    weights.push_back(step.weight);
  }
  py::dict out;
  out["exists"] = path.exists;
  out["score"] = path.score;
  out["start_frame"] = path.start_frame;
  out["end_frame"] = path.end_frame;
  out["t"] = to_array(frames);
  out["u"] = to_array(labels);
  out["arc"] = to_array(arcs);
  out["weight"] = to_array(weights);
  return out;
}

py::list best_paths(const std::string& caller, const VariantTable& variant, const py::dict& inputs,
                    const py::dict& options) {
  CallFromPython call;
  fill_call(caller, variant, inputs, py::dict(), options, call);
  std::vector<reference::BestPath> paths;
  {
    const py::gil_scoped_release release;
    paths = reference::best_paths(call.request, call.options);
  }
  py::list out;
  for (const reference::BestPath& path : paths) out.append(path_for_python(path));
  return out;
}

py::list inspect(const std::string& caller, const VariantTable& variant, const py::dict& inputs,
                 const py::dict& options) {
  CallFromPython call;
  fill_call(caller, variant, inputs, py::dict(), options, call);
  std::vector<reference::Inspection> inspections;
  {
    const py::gil_scoped_release release;
    inspections = reference::inspect(call.request, call.options);
  }
  py::list out;
  for (const reference::Inspection& inspection : inspections) {
    py::dict entry;
    entry["best_path"] = path_for_python(inspection.best_path);
    entry["cost"] = inspection.cost;
    entry["entropy"] = inspection.entropy;
    entry["expected_frames"] = to_array(inspection.expected_frames);
    entry["arc_counts"] = to_array(inspection.arc_counts);
    entry["group_occupancy"] = to_array(inspection.group_occupancy);
    out.append(entry);
  }
  return out;
}

/// All paths of one small utterance, as (log-weight, steps): for ft.check and teaching.
py::list enumerate_paths(const VariantTable& variant, const py::array_t<double>& logits,
                         const std::vector<std::int64_t>& labels, bool from_log_probs,
                         std::int64_t limit) {
  check(logits.ndim() == 3 && logits.shape(1) == static_cast<py::ssize_t>(labels.size()) + 1,
        "enumerate_paths: logits must be [T, U + 1, K]");
  reference::TinyLattice lattice;
  lattice.table = bind_table(variant, logits.shape(2), "enumerate_paths");
  const auto view = logits.unchecked<3>();
  std::vector<double> values(static_cast<std::size_t>(logits.size()));
  std::size_t next = 0;
  for (py::ssize_t t = 0; t < logits.shape(0); ++t) {
    for (py::ssize_t u = 0; u < logits.shape(1); ++u) {
      for (py::ssize_t k = 0; k < logits.shape(2); ++k) values[next++] = view(t, u, k);
    }
  }
  const View<double, 3> rows =
      row_major_view(values.data(), logits.shape(0), logits.shape(1), logits.shape(2));
  lattice.logits = rows;
  lattice.labels = labels;
  lattice.frames = logits.shape(0);
  lattice.from_log_probs = from_log_probs;
  py::list out;
  for (const reference::EnumeratedPath& path : reference::enumerate_paths(lattice, limit)) {
    py::list steps;
    for (const reference::PathStep& step : path.steps) {
      steps.append(py::make_tuple(step.t, step.u, step.arc));
    }
    out.append(py::make_tuple(path.weight, steps));
  }
  return out;
}

}  // namespace

void bind_reference(py::module_& module) {
  module.def("best_paths", &best_paths, py::arg("caller"), py::arg("variant"), py::arg("inputs"),
             py::arg("options"));
  module.def("inspect", &inspect, py::arg("caller"), py::arg("variant"), py::arg("inputs"),
             py::arg("options"));
  module.def("enumerate_paths", &enumerate_paths, py::arg("variant"), py::arg("logits"),
             py::arg("labels"), py::arg("from_log_probs") = false, py::arg("limit") = 100000);
}

}  // namespace transducer::python
