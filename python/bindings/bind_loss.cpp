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
#include "python/bindings/cuda_backend.hpp"
#include "python/bindings/request_from_python.hpp"
#include "python/bindings/tensor_ref_from_python.hpp"
#include "reference/core/tap_plan.hpp"
#include "reference/core/validate.hpp"
#include "reference/loss.hpp"

namespace py = pybind11;

namespace transducer::python {
namespace {

/// One of a layer's passes, which finds its scratch by itself.
using Run = void (*)(Pass, const LossRequest&, const LossResult&, const Options&, const PassData&);

/// A layer. The reference saves nothing: its backward computes all again.
struct Backend {
  WorkspacePlan (*plan)(const LossShape&, const Options&);
  Run run;
  bool saves;
};

#if defined(TX_HAVE_CPU)
constexpr const char* kBuilt = "'reference' and 'cpu'";
#else
constexpr const char* kBuilt = "'reference'";
#endif

void run_reference(Pass pass, const LossRequest& request, const LossResult& result,
                   const Options& options, const PassData& data) {
  const LossShape shape = shape_of(request, result);
  const ScratchMemory scratch(reference::plan_workspace(shape, options).scratch_bytes());
  const Workspace workspace{.scratch = scratch.span(), .saved = {}};
  if (pass == Pass::scores_backward) {
    reference::scores_backward(request, data.weights_gradient, result, options, workspace);
  } else {
    reference::loss(request, result, options, workspace);
  }
}

#if defined(TX_HAVE_CPU)
void run_cpu(Pass pass, const LossRequest& request, const LossResult& result,
             const Options& options, const PassData& data) {
  LossShape shape = shape_of(request, result);
  shape.apart = pass == Pass::forward || pass == Pass::backward;
  const ScratchMemory scratch(cpu::plan_workspace(shape, options).scratch_bytes());
  const Workspace workspace{.scratch = scratch.span(), .saved = data.saved};
  switch (pass) {
    case Pass::both:
      return cpu::loss(request, result, options, workspace);
    case Pass::forward:
      return cpu::forward(request, result, options, workspace);
    case Pass::backward:
      return cpu::backward(request, result, options, workspace);
    case Pass::scores_backward:
      return cpu::scores_backward(request, data.weights_gradient, result, options, workspace);
  }
}
#endif

/// The CUDA layer is an extension module of its own, loaded when it is first asked for: nothing else needs
/// its libraries.
const CudaBackend& load_cuda(const std::string& caller) {
  static const CudaBackend* loaded = nullptr;
  if (loaded != nullptr) return *loaded;
  try {
    const py::module_ module = py::module_::import("flash_transducer._cuda");
    loaded = py::cast<py::capsule>(module.attr("backend")).get_pointer<const CudaBackend>();
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_ImportError)) throw;
    const bool absent = error.matches(PyExc_ModuleNotFoundError);
    throw NotBuilt(concat(caller, ": backend 'cuda' is not part of this build, which has ", kBuilt,
                          absent ? "; build with -Dcuda=enabled" : "; loading it failed: ",
                          absent ? "" : std::string(py::str(error.value()))));
  }
  return *loaded;
}

Backend find_backend(const std::string& name, const std::string& caller) {
  if (name == "reference") return {reference::plan_workspace, run_reference, false};
#if defined(TX_HAVE_CPU)
  if (name == "cpu") return {cpu::plan_workspace, run_cpu, true};
#endif
  if (name == "cpu") {
    throw NotBuilt(concat(caller, ": backend 'cpu' is not part of this build, which has ", kBuilt));
  }
  if (name == "cuda") {
    const CudaBackend& cuda = load_cuda(caller);
    return {cuda.plan, cuda.run, true};
  }
  throw InvalidArgument(
      concat(caller, ": backend is '", name, "', expected 'reference', 'cpu' or 'cuda'"));
}

/// The stream of a device call: an address, as frameworks hand it out.
std::uint64_t stream_of(const py::dict& options) {
  return options.contains("stream") ? py::cast<std::uint64_t>(options["stream"]) : 0;
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
  const PassData data{.stream = stream_of(options)};
  const py::gil_scoped_release release;
  backend.run(Pass::both, call.request, call.result, call.options, data);
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
  const PassData data{.saved = bytes_of(saved, caller), .stream = stream_of(options)};
  const py::gil_scoped_release release;
  backend.run(is_forward ? Pass::forward : Pass::backward, call.request, call.result, call.options,
              data);
}

/// Checks a call whose labels and lengths lie in host memory while the rest may lie on a device.
void validate_call(const std::string& caller, const VariantTable& variant, const py::dict& inputs,
                   const py::dict& outputs, const py::dict& options) {
  CallFromPython call;
  fill_call(caller, variant, inputs, outputs, options, call);
  call.options.validate = true;
  validate(call.request, call.result, call.options);
}

/// From a gradient of the arc weights to gradients of the source and of arc_scores.
void scores_backward(const std::string& caller, const std::string& backend_name,
                     const VariantTable& variant, const py::dict& inputs, const py::dict& outputs,
                     const py::dict& options) {
  const Backend backend = find_backend(backend_name, caller);
  CallFromPython call;
  fill_call(caller, variant, inputs, outputs, options, call);
  check(inputs.contains("weights_gradient"), caller, ": no gradient of the arc weights was given");
  const PassData data{.weights_gradient = tensor_ref_of(inputs["weights_gradient"],
                                                        "the gradient of the arc weights", caller),
                      .stream = stream_of(options)};
  const py::gil_scoped_release release;
  backend.run(Pass::scores_backward, call.request, call.result, call.options, data);
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
  shape.taps = count_taps(variant);
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
  module.def(
      "check_backend",
      [](const std::string& name, const std::string& caller) { find_backend(name, caller); },
      py::arg("name"), py::arg("caller"));
  module.def("validate", &validate_call, py::arg("caller"), py::arg("variant"), py::arg("inputs"),
             py::arg("outputs"), py::arg("options"));
  module.def("count_taps", &count_taps, py::arg("variant"));
  module.def("saved_layout", &saved_layout, py::arg("backend"), py::arg("variant"));
  module.def("plan", &plan, py::arg("backend"), py::arg("sizes"), py::arg("options"));
  py::list backends;
  backends.append("reference");
#if defined(TX_HAVE_CPU)
  backends.append("cpu");
  module.def("instruction_set", &cpu::instruction_set);
#else
  module.def("instruction_set", [] { return "none"; });
#endif
#if defined(TX_HAVE_CUDA)
  backends.append("cuda");
#endif
  module.attr("backends") = py::tuple(backends);
}

}  // namespace transducer::python
