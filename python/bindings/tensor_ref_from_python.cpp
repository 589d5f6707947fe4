// SPDX-License-Identifier: Apache-2.0
#include "python/bindings/tensor_ref_from_python.hpp"

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <pybind11/numpy.h>
#include <pybind11/stl.h>  // casts of std::vector: without it they compile, and fail at run time

#include "python/bindings/dlpack_abi.hpp"

namespace py = pybind11;

namespace transducer::python {
namespace {

/// What the arrays called `name` may hold.
const char* supported(std::string_view name) {
  for (std::string_view integers :
       {"targets", "logit_lengths", "encoder_lengths", "target_lengths", "utterance_ids", "band"}) {
    if (name == integers) return "expected int32 or int64";
  }
  return name == "predictor_mask" ? "expected float64, float32, bfloat16, float16 or bool"
                                  : "expected float64, float32, bfloat16 or float16";
}

struct Context {
  const std::string& name;
  const std::string& caller;

  [[noreturn]] void refuse_dtype(const std::string& dtype) const {
    throw InvalidArgument(concat(caller, ": ", name, " has dtype ", dtype, ", ", supported(name)));
  }
  void check_rank(std::int64_t rank) const {
    check(rank <= kMaxRank, caller, ": ", name, " has ", rank, " axes, expected at most ",
          kMaxRank);
  }
};

DType dtype_by_name(const std::string& dtype, const Context& context) {
  for (DType known : {DType::float64, DType::float32, DType::bfloat16, DType::float16, DType::int64,
                      DType::int32, DType::boolean}) {
    if (dtype == dtype_name(known)) return known;
  }
  context.refuse_dtype(dtype);
}

void set_shape(TensorRef& ref, const std::vector<std::int64_t>& extents,
               const std::vector<std::int64_t>& strides) {
  ref.rank = static_cast<int>(extents.size());
  for (std::size_t axis = 0; axis < extents.size(); ++axis) {
    ref.extents[axis] = extents[axis];
    ref.strides[axis] = strides[axis];
  }
}

Array from_numpy(const py::array& array, const Context& context) {
  context.check_rank(array.ndim());
  Array result;
  const std::string dtype = py::str(array.dtype().attr("name"));
  result.ref.dtype = dtype_by_name(dtype, context);
  check(py::cast<bool>(array.dtype().attr("isnative")), context.caller, ": ", context.name,
        " has bytes in the other order, expected this machine's; use .astype('", dtype, "')");
  const auto bytes = static_cast<std::int64_t>(array.itemsize());
  std::vector<std::int64_t> extents;
  std::vector<std::int64_t> strides;
  for (py::ssize_t axis = 0; axis < array.ndim(); ++axis) {
    extents.push_back(array.shape(axis));
    const std::int64_t stride = array.strides(axis);
    const bool moves = array.shape(axis) > 1;
    check(!moves || stride % bytes == 0, context.caller, ": ", context.name, " has a stride of ",
          stride, " bytes, expected a multiple of the element's ", bytes, "; pass a copy");
    strides.push_back(moves ? stride / bytes : 0);
  }
  set_shape(result.ref, extents, strides);
  result.ref.data = const_cast<void*>(array.data());
  check(array.size() == 0 || reinterpret_cast<std::uintptr_t>(result.ref.data) %
                                     static_cast<std::uintptr_t>(bytes) ==
                                 0,
        context.caller, ": ", context.name, " is not aligned to its element, pass a copy");
  result.ref.read_only = !array.writeable();
  result.owner = array;
  return result;
}

/// PyTorch: the address and shape, which is faster than DLPack. Only called for torch.Tensor.
Array from_torch(const py::object& tensor, const Context& context) {
  check(!py::cast<bool>(tensor.attr("requires_grad")), context.caller, ": ", context.name,
        " requires a gradient, but this function returns no autograd graph; pass ", context.name,
        ".detach(), and take gradients from value_and_grad");
  const auto extents = py::cast<std::vector<std::int64_t>>(py::list(tensor.attr("shape")));
  context.check_rank(static_cast<std::int64_t>(extents.size()));
  Array result;
  std::string dtype = py::str(tensor.attr("dtype"));  // "torch.float32"
  result.ref.dtype = dtype_by_name(dtype.substr(dtype.find('.') + 1), context);
  set_shape(result.ref, extents,
            py::cast<std::vector<std::int64_t>>(py::list(tensor.attr("stride")())));
  // PyTorch hands out its addresses as integers.
  result.ref.data = reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr)
      py::cast<std::uintptr_t>(tensor.attr("data_ptr")()));
  const py::object device = tensor.attr("device");
  const std::string kind = py::str(device.attr("type"));
  check(kind == "cpu" || kind == "cuda", context.caller, ": ", context.name, " is on device ", kind,
        ", expected cpu or cuda");
  if (kind == "cuda") {
    result.ref.device = {DeviceType::cuda, py::cast<int>(device.attr("index"))};
  }
  result.owner = tensor;
  return result;
}

/// The element type, or nothing where it is not supported.
std::optional<DType> dlpack_dtype(const dlpack::ElementType& type) {
  if (type.lanes != 1) return std::nullopt;
  switch (type.code) {
    case dlpack::kInt:
      if (type.bits == 64) return DType::int64;
      if (type.bits == 32) return DType::int32;
      return std::nullopt;
    case dlpack::kFloat:
      if (type.bits == 64) return DType::float64;
      if (type.bits == 32) return DType::float32;
      if (type.bits == 16) return DType::float16;
      return std::nullopt;
    case dlpack::kBfloat:
      if (type.bits == 16) return DType::bfloat16;
      return std::nullopt;
    case dlpack::kBool:
      if (type.bits == 8) return DType::boolean;
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

std::string dlpack_type_name(const dlpack::ElementType& type) {
  constexpr const char* kNames[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  if (type.code == dlpack::kBool) return "bool";
  const std::string name = type.code < 7 ? kNames[type.code] : concat("code", int{type.code}, "_");
  return concat(name, int{type.bits}, type.lanes == 1 ? "" : "x" + std::to_string(type.lanes));
}

void read_dlpack(const dlpack::Tensor& tensor, const Context& context, TensorRef& ref) {
  context.check_rank(tensor.rank);
  const std::optional<DType> dtype = dlpack_dtype(tensor.type);
  if (!dtype) context.refuse_dtype(dlpack_type_name(tensor.type));
  ref.dtype = *dtype;
  const bool host = tensor.device.kind == dlpack::kCpu || tensor.device.kind == dlpack::kCudaHost;
  check(host || tensor.device.kind == dlpack::kCuda || tensor.device.kind == dlpack::kCudaManaged,
        context.caller, ": ", context.name, " is on DLPack device type ", tensor.device.kind,
        ", expected a CPU or CUDA array");
  if (!host) ref.device = {DeviceType::cuda, tensor.device.index};
  ref.rank = tensor.rank;
  std::int64_t next = 1;
  for (int axis = tensor.rank - 1; axis >= 0; --axis) {
    ref.extents[axis] = tensor.extents[axis];
    ref.strides[axis] = tensor.strides != nullptr ? tensor.strides[axis] : next;
    next *= tensor.extents[axis];
  }
  ref.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
}

/// The capsule owns the tensor until it is taken; keeping the capsule unused keeps the memory, and
/// its own destructor frees it.
Array from_capsule(const py::object& capsule, const Context& context) {
  Array result;
  if (void* versioned = PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")
                            ? PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned")
                            : nullptr) {
    const auto& managed = *static_cast<dlpack::ManagedTensorVersioned*>(versioned);
    check(managed.version.major == 1, context.caller, ": ", context.name, " speaks DLPack ",
          managed.version.major, ", expected version 1");
    read_dlpack(managed.tensor, context, result.ref);
    result.ref.read_only = (managed.flags & dlpack::kReadOnly) != 0;
  } else {
    auto* managed =
        static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
    if (managed == nullptr) throw py::error_already_set();
    read_dlpack(managed->tensor, context, result.ref);
  }
  result.owner = capsule;
  return result;
}

Array from_dlpack(const py::object& object, const Context& context) {
  py::object capsule;
  try {
    capsule = object.attr("__dlpack__")(py::arg("max_version") = py::make_tuple(1, 0));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    capsule = object.attr("__dlpack__")();  // a producer that knows no versions
  }
  Array result = from_capsule(capsule, context);
  result.owner = py::make_tuple(object, capsule);
  return result;
}

bool is_torch_tensor(const py::object& object) {
  const py::module_ sys = py::module_::import("sys");
  const py::dict modules = sys.attr("modules");
  if (!modules.contains("torch")) return false;
  return py::isinstance(object, py::object(modules["torch"]).attr("Tensor"));
}

}  // namespace

Array array_from_python(const py::object& object, const std::string& name,
                        const std::string& caller) {
  const Context context{name, caller};
  if (PyCapsule_CheckExact(object.ptr())) return from_capsule(object, context);
  if (py::isinstance<py::array>(object)) return from_numpy(object, context);
  if (is_torch_tensor(object)) return from_torch(object, context);
  if (py::hasattr(object, "__dlpack__")) return from_dlpack(object, context);
  const std::string type = py::str(py::type::of(object).attr("__name__"));
  throw py::type_error(concat(caller, ": ", name, " is a ", type,
                              ", expected a NumPy array or another array with DLPack"));
}

}  // namespace transducer::python
