// SPDX-License-Identifier: Apache-2.0
#include <pybind11/pybind11.h>

#include "python/bindings/bindings.hpp"
#include "python/bindings/tensor_ref_from_python.hpp"

namespace py = pybind11;

namespace transducer::python {

void bind_arrays(py::module_& module) {
  py::class_<Array>(module, "Array")
      .def(py::init(&array_from_python), py::arg("object"), py::arg("name"), py::arg("caller"))
      .def_property_readonly("dtype",
                             [](const Array& array) { return dtype_name(array.ref.dtype); })
      .def_property_readonly("device",
                             [](const Array& array) {
                               const Device& device = array.ref.device;
                               return device.type == DeviceType::cpu
                                          ? std::string("cpu")
                                          : concat("cuda:", device.index);
                             })
      .def_property_readonly("shape", [](const Array& array) {
        py::tuple shape(array.ref.rank);
        for (int axis = 0; axis < array.ref.rank; ++axis) shape[axis] = array.ref.extents[axis];
        return shape;
      });
}

}  // namespace transducer::python
