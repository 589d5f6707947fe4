// SPDX-License-Identifier: Apache-2.0
//
// One call of a layer, and its memory plan. Backends are chosen by name, in one place.
#include <cstddef>
#include <span>
#include <string>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#if defined(TX_HAVE_CPU)
#include "cpu/loss.hpp"
#endif
#include "python/bindings/bindings.hpp"
#include "python/bindings/request_from_python.hpp"
#include "python/bindings/tensor_ref_from_python.hpp"
#include "reference/core/validate.hpp"
#include "reference/loss.hpp"

namespace py = pybind11;

namespace transducer::python {
namespace {

using Entry = void (*)(const LossRequest&, const LossResult&, const Options&, const Workspace&);

/// The entries of one layer. The reference saves nothing: its backward computes all again.
struct Backend {
  WorkspacePlan (*plan)(const LossShape&, const Options&);
  Entry loss;
  Entry forward;
  Entry backward;
  void (*scores_backward)(const LossRequest&, const TensorRef&, const LossResult&, const Options&,
                          const Workspace&);
  bool saves;
};

#if defined(TX_HAVE_CPU)
constexpr const char* kBuilt = "'reference' and 'cpu'";
#else
constexpr const char* kBuilt = "'reference'";
#endif

Backend find_backend(const std::string& name, const std::string& caller) {
  if (name == "reference") {
    return {reference::plan_workspace,
            reference::loss,
            reference::loss,
            reference::loss,
            reference::scores_backward,
            false};
  }
#if defined(TX_HAVE_CPU)
  if (name == "cpu") {
    return {cpu::plan_workspace,  cpu::loss, cpu::forward, cpu::backward,
            cpu::scores_backward, true};
  }
#endif
  if (name == "cpu" || name == "cuda") {
    throw NotBuilt(
        concat(caller, ": backend '", name, "' is not part of this build, which has ", kBuilt));
  }
  throw InvalidArgument(
      concat(caller, ": backend is '", name, "', expected 'reference', 'cpu' or 'cuda'"));
}

/// The memory of an array made by saved_layout(), as bytes.
std::span<std::byte> bytes_of(const TensorRef& saved, const std::string& caller) {
  std::int64_t expected = 1;
  for (int axis = saved.rank - 1; axis >= 0; --axis) {
    check(saved.strides[axis] == expected || saved.extents[axis] <= 1 || saved.size() == 0, caller,
          ": the saved array is not contiguous, expected memory as forward filled it");
    expected *= saved.extents[axis];
  }
  check(saved.dtype == DType::float64, caller, ": the saved array is ", dtype_name(saved.dtype),
        ", expected float64");
  return {static_cast<std::byte*>(saved.data),
          static_cast<std::size_t>(saved.size()) * sizeof(double)};
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
  backend.loss(call.request, call.result, call.options, {.scratch = scratch.span(), .saved = {}});
}

/// One half of a call; `saved` lies in the outputs of the forward and in the inputs of the backward.
void evaluate_half(const std::string& caller, const std::string& backend_name,
                   const VariantTable& variant, const py::dict& inputs, const py::dict& outputs,
                   const py::dict& options, bool is_forward) {
  const Backend backend = find_backend(backend_name, caller);
  CallFromPython call;
  fill_call(caller, variant, inputs, outputs, options, call);
  const py::dict& holder = is_forward ? outputs : inputs;
  check(holder.contains("saved"), caller, ": no saved array was given");
  const TensorRef saved = tensor_ref_of(holder["saved"], "saved", caller);
  const py::gil_scoped_release release;
  LossShape shape = shape_of(call.request, call.result);
  shape.apart = true;
  const ScratchMemory scratch(backend.plan(shape, call.options).scratch_bytes());
  const Workspace workspace{.scratch = scratch.span(), .saved = bytes_of(saved, caller)};
  (is_forward ? backend.forward : backend.backward)(call.request, call.result, call.options,
                                                    workspace);
}

/// From a gradient of the arc weights to gradients of the source and of arc_scores.
void scores_backward(const std::string& caller, const std::string& backend_name,
                     const VariantTable& variant, const py::dict& inputs, const py::dict& outputs,
                     const py::dict& options) {
  const Backend backend = find_backend(backend_name, caller);
  CallFromPython call;
  fill_call(caller, variant, inputs, outputs, options, call);
  check(inputs.contains("weights_gradient"), caller, ": no gradient of the arc weights was given");
  const TensorRef weights_gradient =
      tensor_ref_of(inputs["weights_gradient"], "the gradient of the arc weights", caller);
  const py::gil_scoped_release release;
  const LossShape shape = shape_of(call.request, call.result);
  const ScratchMemory scratch(backend.plan(shape, call.options).scratch_bytes());
  backend.scores_backward(call.request, weights_gradient, call.result, call.options,
                          {.scratch = scratch.span(), .saved = {}});
}

/// The planes and type of [B, planes, T, U+1] that the forward of a backend saves.
py::tuple saved_layout(const std::string& backend_name, const VariantTable& variant) {
  const Backend backend = find_backend(backend_name, "saved_layout");
  return py::make_tuple(backend.saves ? variant.num_arcs + variant.num_groups : 0, "float64");
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
  using Half = void (*)(const std::string&, const std::string&, const VariantTable&,
                        const py::dict&, const py::dict&, const py::dict&);
  const auto bind_half = [&](const char* name, Half half) {
    module.def(name, half, py::arg("caller"), py::arg("backend"), py::arg("variant"),
               py::arg("inputs"), py::arg("outputs"), py::arg("options"));
  };
  bind_half("evaluate", &evaluate);
  bind_half("forward",
            [](const std::string& caller, const std::string& backend, const VariantTable& variant,
               const py::dict& inputs, const py::dict& outputs, const py::dict& options) {
              evaluate_half(caller, backend, variant, inputs, outputs, options, true);
            });
  bind_half("backward",
            [](const std::string& caller, const std::string& backend, const VariantTable& variant,
               const py::dict& inputs, const py::dict& outputs, const py::dict& options) {
              evaluate_half(caller, backend, variant, inputs, outputs, options, false);
            });
  bind_half("scores_backward", &scores_backward);
  module.def("saved_layout", &saved_layout, py::arg("backend"), py::arg("variant"));
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
