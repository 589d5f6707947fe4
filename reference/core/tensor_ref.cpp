// SPDX-License-Identifier: Apache-2.0
#include "reference/core/tensor_ref.hpp"

#include <algorithm>

namespace transducer {
namespace {

template <class Scalar>
Scalar* element(const TensorRef& tensor, std::int64_t offset) {
  return static_cast<Scalar*>(tensor.data) + offset;
}

}  // namespace

std::int64_t TensorRef::size() const {
  std::int64_t product = 1;
  for (int axis = 0; axis < rank; ++axis) product *= extents[axis];
  return product;
}

std::int64_t TensorRef::offset(std::initializer_list<std::int64_t> indices) const {
  std::int64_t sum = 0;
  int axis = 0;
  for (std::int64_t index : indices) sum += index * strides[axis++];
  return sum;
}

std::string TensorRef::shape_string() const {
  std::string text = "[";
  for (int axis = 0; axis < rank; ++axis) text += concat(axis > 0 ? ", " : "", extents[axis]);
  return text + "]";
}

TensorRef contiguous_ref(void* data, DType dtype, std::initializer_list<std::int64_t> extents) {
  TensorRef tensor{.data = data, .dtype = dtype, .rank = static_cast<int>(extents.size())};
  std::copy(extents.begin(), extents.end(), tensor.extents);
  std::int64_t stride = 1;
  for (int axis = tensor.rank - 1; axis >= 0; --axis) {
    tensor.strides[axis] = stride;
    stride *= tensor.extents[axis];
  }
  return tensor;
}

bool broadcast_to(const TensorRef& tensor, std::initializer_list<std::int64_t> extents,
                  TensorRef* broadcast) {
  const int rank = static_cast<int>(extents.size());
  if (tensor.rank > rank) return false;
  TensorRef result = tensor;
  result.rank = rank;
  const int missing = rank - tensor.rank;
  int axis = 0;
  for (std::int64_t extent : extents) {
    const bool repeats = axis < missing || tensor.extents[axis - missing] == 1;
    if (!repeats && tensor.extents[axis - missing] != extent) return false;
    result.extents[axis] = extent;
    result.strides[axis] = repeats ? 0 : tensor.strides[axis - missing];
    ++axis;
  }
  *broadcast = result;
  return true;
}

double read_real(const TensorRef& tensor, std::initializer_list<std::int64_t> indices) {
  const std::int64_t offset = tensor.offset(indices);
  if (tensor.dtype == DType::boolean) return *element<bool>(tensor, offset) ? 1.0 : 0.0;
  return visit_real(tensor.dtype, [&]<class Scalar>() {
    return static_cast<double>(*element<Scalar>(tensor, offset));
  });
}

std::int64_t read_index(const TensorRef& tensor, std::initializer_list<std::int64_t> indices) {
  const std::int64_t offset = tensor.offset(indices);
  if (tensor.dtype == DType::int64) return *element<std::int64_t>(tensor, offset);
  if (tensor.dtype == DType::int32) return *element<std::int32_t>(tensor, offset);
  throw Unsupported(concat("dtype ", dtype_name(tensor.dtype),
                           " is not an index type; supported are int64, int32"));
}

void write_real(const TensorRef& tensor, std::initializer_list<std::int64_t> indices,
                double value) {
  const std::int64_t offset = tensor.offset(indices);
  visit_real(tensor.dtype, [&]<class Scalar>() {
    *element<Scalar>(tensor, offset) = static_cast<Scalar>(value);
  });
}

void read_row(const TensorRef& tensor, std::initializer_list<std::int64_t> leading,
              std::span<double> row) {
  const std::int64_t stride = tensor.strides[tensor.rank - 1];
  visit_real(tensor.dtype, [&]<class Scalar>() {
    const Scalar* source = element<Scalar>(tensor, tensor.offset(leading));
    for (std::size_t i = 0; i < row.size(); ++i) {
      row[i] = static_cast<double>(source[static_cast<std::int64_t>(i) * stride]);
    }
  });
}

void write_row(const TensorRef& tensor, std::initializer_list<std::int64_t> leading,
               std::span<const double> row) {
  const std::int64_t stride = tensor.strides[tensor.rank - 1];
  visit_real(tensor.dtype, [&]<class Scalar>() {
    Scalar* target = element<Scalar>(tensor, tensor.offset(leading));
    for (std::size_t i = 0; i < row.size(); ++i) {
      target[static_cast<std::int64_t>(i) * stride] = static_cast<Scalar>(row[i]);
    }
  });
}

void fill_real(const TensorRef& tensor, double value) {
  std::int64_t padded[kMaxRank] = {1, 1, 1, 1};
  std::int64_t strides[kMaxRank] = {};
  for (int axis = 0; axis < tensor.rank; ++axis) {
    padded[kMaxRank - tensor.rank + axis] = tensor.extents[axis];
    strides[kMaxRank - tensor.rank + axis] = tensor.strides[axis];
  }
  visit_real(tensor.dtype, [&]<class Scalar>() {
    const auto stored = static_cast<Scalar>(value);
    for (std::int64_t i = 0; i < padded[0]; ++i) {
      for (std::int64_t j = 0; j < padded[1]; ++j) {
        for (std::int64_t k = 0; k < padded[2]; ++k) {
          Scalar* row = element<Scalar>(tensor, i * strides[0] + j * strides[1] + k * strides[2]);
          for (std::int64_t l = 0; l < padded[3]; ++l) row[l * strides[3]] = stored;
        }
      }
    }
  });
}

}  // namespace transducer
