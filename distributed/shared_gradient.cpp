// SPDX-License-Identifier: Apache-2.0
#include "distributed/shared_gradient.hpp"

namespace transducer::distributed {
namespace {

void read_shared_row(const TensorRef& tensor, std::int64_t r, std::span<double> row) {
  if (tensor.rank == 2) {
    read_row(tensor, {r}, row);
  } else {
    read_row(tensor, {}, row);
  }
}

void write_shared_row(const TensorRef& tensor, std::int64_t r, std::span<const double> row) {
  if (tensor.rank == 2) {
    write_row(tensor, {r}, row);
  } else {
    write_row(tensor, {}, row);
  }
}

/// The shape of `like` on contiguous memory.
TensorRef contiguous_like(const TensorRef& like, void* data, DType dtype) {
  return like.rank == 2 ? contiguous_ref(data, dtype, {like.extent(0), like.extent(1)})
                        : contiguous_ref(data, dtype, {like.extent(0)});
}

}  // namespace

SharedGradient::SharedGradient(TensorRef& input, TensorRef& gradient) : output_(gradient) {
  if (!gradient.defined()) return;
  rows_ = input.rank == 2 ? input.extent(0) : 1;
  columns_ = input.extent(input.rank - 1);
  memory_.resize(size());
  const DType arithmetic = input.dtype == DType::float64 ? DType::float64 : DType::float32;
  local_ = contiguous_like(input, memory_.data(), arithmetic);
  gradient = local_;
  if (dtype_bytes(input.dtype) != 2) return;
  widened_.resize(size());
  const TensorRef wide = contiguous_like(input, widened_.data(), DType::float32);
  std::vector<double> row(static_cast<std::size_t>(columns_));
  for (std::int64_t r = 0; r < rows_; ++r) {
    read_shared_row(input, r, row);
    write_shared_row(wide, r, row);
  }
  input = wide;
}

std::vector<double> SharedGradient::values() const {
  std::vector<double> values(size());
  const auto columns = static_cast<std::size_t>(columns_);
  for (std::int64_t r = 0; r < rows_ && wanted(); ++r) {
    read_shared_row(local_, r,
                    std::span(values).subspan(static_cast<std::size_t>(r) * columns, columns));
  }
  return values;
}

void SharedGradient::write(std::span<const double> sum) const {
  const auto columns = static_cast<std::size_t>(columns_);
  for (std::int64_t r = 0; r < rows_ && wanted(); ++r) {
    write_shared_row(output_, r, sum.subspan(static_cast<std::size_t>(r) * columns, columns));
  }
}

}  // namespace transducer::distributed
