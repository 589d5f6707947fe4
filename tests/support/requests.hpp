// SPDX-License-Identifier: Apache-2.0
//
// Small legal requests of each source with memory of their own, for tests that then spoil one
// thing: B = 2, T = 3, U = 2, K = 5, H = 4. All numbers are 0; labels are 0, lengths full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "reference/core/request.hpp"
#include "reference/core/validate.hpp"
#include "reference/variants/rnnt.hpp"
#include "tests/support/messages.hpp"

namespace transducer::testing {

class SmallRequest {
 public:
  LossRequest request;
  LossResult result;
  Options options;

  /// An array of zeros that lives as long as the request.
  TensorRef zeros(std::initializer_list<std::int64_t> extents, DType dtype = DType::float64) {
    TensorRef tensor = contiguous_ref(nullptr, dtype, extents);
    const auto bytes = static_cast<std::size_t>(tensor.size()) * dtype_bytes(dtype);
    memory_.push_back(std::make_shared<std::vector<std::byte>>(bytes + 1));
    tensor.data = memory_.back()->data();
    return tensor;
  }
  TensorRef integers(std::initializer_list<std::int64_t> extents, DType dtype = DType::int64) {
    return zeros(extents, dtype);
  }

  ValidRequest validated() const { return validate(request, result, options); }

  ::testing::AssertionResult refused(const std::string& pattern) const {
    return throws([&] { validated(); }, pattern);
  }
  ::testing::AssertionResult passes() const {
    try {
      validated();
    } catch (const std::exception& error) {
      return ::testing::AssertionFailure() << error.what();
    }
    return ::testing::AssertionSuccess();
  }

 protected:
  SmallRequest() {
    request.caller = "ft.loss";
    request.variant = rnnt(position(0));
    request.targets = integers({2, 2});
    request.frame_lengths = lengths(3);
    request.target_lengths = lengths(2);
  }

 private:
  TensorRef lengths(std::int64_t length) {
    TensorRef tensor = integers({2});
    static_cast<std::int64_t*>(tensor.data)[0] = length;
    static_cast<std::int64_t*>(tensor.data)[1] = length;
    return tensor;
  }

  std::vector<std::shared_ptr<std::vector<std::byte>>> memory_;
};

class DenseRequest : public SmallRequest {
 public:
  DenseRequest() { request.source = DenseSource{zeros({2, 3, 3, 5})}; }
  DenseSource& dense() { return std::get<DenseSource>(request.source); }
};

class JointRequest : public SmallRequest {
 public:
  JointRequest() {
    JointSource source;
    source.encoder = zeros({2, 3, 4});
    source.predictor = zeros({2, 3, 4});
    source.weight = zeros({5, 4});
    request.source = source;
  }
  JointSource& joint() { return std::get<JointSource>(request.source); }
};

class ArcWeightRequest : public SmallRequest {
 public:
  ArcWeightRequest() { request.source = ArcWeightSource{zeros({2, 3, 3, 2})}; }
  ArcWeightSource& weights() { return std::get<ArcWeightSource>(request.source); }
};

}  // namespace transducer::testing
