// SPDX-License-Identifier: Apache-2.0
//
// One call of a layer, and its memory plan. Backends are chosen by name, in one place.
#include <string>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#if defined(TX_HAVE_CPU)
#include "cpu/loss.hpp"
#endif
#include "python/bindings/bindings.hpp"
#include "python/bindings/request_from_python.hpp"
#include "reference/core/validate.hpp"
#include "reference/loss.hpp"

namespace py = pybind11;

namespace transducer::python {
namespace {

/// The entries of one layer.
struct Backend {
  WorkspacePlan (*plan)(const LossShape&, const Options&);
  void (*loss)(const LossRequest&, const LossResult&, const Options&, const Workspace&);
};

#if defined(TX_HAVE_CPU)
constexpr const char* kBuilt = "'reference' and 'cpu'";
#else
constexpr const char* kBuilt = "'reference'";
#endif

Backend find_backend(const std::string& name, const std::string& caller) {
  if (name == "reference") return {reference::plan_workspace, reference::loss};
#if defined(TX_HAVE_CPU)
  if (name == "cpu") return {cpu::plan_workspace, cpu::loss};
#endif
  if (name == "cpu" || name == "cuda") {
    throw NotBuilt(
        concat(caller, ": backend '", name, "' is not part of this build, which has ", kBuilt));
  }
  throw InvalidArgument(
      concat(caller, ": backend is '", name, "', expected 'reference', 'cpu' or 'cuda'"));
}

void evaluate(const std::string& caller, const std::string& backend_name,
              const VariantTable& variant, const py::dict& inputs, const py::dict& outputs,
              const py::dict& options) {
  const Backend backend = find_backend(backend_name, caller);
  CallFromPython call;
  fill_call(caller, variant, inputs, outputs, options, call);
  const py::gil_scoped_release release;
  const LossShape shape = shape_of(call.request, call.result);
  const ScratchMemory scratch(backend.plan(shape, call.options).scratch_bytes());
  backend.loss(call.request, call.result, call.options, scratch.workspace());
}

py::list regions_for_python(const std::vector<WorkspaceRegion>& regions) {
  py::list out;
  for (const WorkspaceRegion& region : regions) {
    py::dict entry;
    entry["name"] = region.name;
    entry["shape"] = region.shape;
    entry["kind"] = region.kind == RegionKind::scratch ? "scratch" : "saved";
    entry["bytes"] = region.bytes;
    out.append(entry);
  }
  return out;
}

py::dict plan(const std::string& backend_name, const py::dict& sizes, const py::dict& options) {
  const Backend backend = find_backend(backend_name, "ft.plan");
  LossShape shape;
  shape.batch = py::cast<std::int64_t>(sizes["batch"]);
  shape.frames = py::cast<std::int64_t>(sizes["frames"]);
  shape.labels = py::cast<std::int64_t>(sizes["labels"]);
  shape.columns = py::cast<std::int64_t>(sizes["columns"]);
  shape.hidden = py::cast<std::int64_t>(sizes["hidden"]);
  shape.max_rows = py::cast<std::int64_t>(sizes["max_rows"]);
  const auto variant = py::cast<VariantTable>(sizes["variant"]);
  shape.arcs = variant.num_arcs;
  shape.groups = variant.num_groups;
  const std::string dtype = py::str(sizes["dtype"]);
  bool known = false;
  for (DType d : {DType::float64, DType::float32, DType::bfloat16, DType::float16}) {
    if (dtype == dtype_name(d)) shape.dtype = d;
    known = known || dtype == dtype_name(d);
  }
  check(known, "ft.plan: dtype is '", dtype, "', expected float64, float32, bfloat16 or float16");
  bind_table(variant, shape.columns, "ft.plan");
  Options call_options;
  if (options.contains("workspace_limit")) {
    call_options.workspace_limit = py::cast<std::int64_t>(options["workspace_limit"]);
  }
  const WorkspacePlan planned = backend.plan(shape, call_options);
  py::dict out;
  out["regions"] = regions_for_python(planned.regions());
  out["never_made"] = regions_for_python(planned.never_made());
  out["scratch_bytes"] = planned.scratch_bytes();
  out["saved_bytes"] = planned.saved_bytes();
  return out;
}

}  // namespace

void bind_loss(py::module_& module) {
  module.def("evaluate", &evaluate, py::arg("caller"), py::arg("backend"), py::arg("variant"),
             py::arg("inputs"), py::arg("outputs"), py::arg("options"));
  module.def("plan", &plan, py::arg("backend"), py::arg("sizes"), py::arg("options"));
#if defined(TX_HAVE_CPU)
  module.attr("backends") = py::make_tuple("reference", "cpu");
  module.def("instruction_set", &cpu::instruction_set);
#else
  module.attr("backends") = py::make_tuple("reference");
  module.def("instruction_set", [] { return "none"; });
#endif
}

}  // namespace transducer::python
