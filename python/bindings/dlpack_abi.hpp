// SPDX-License-Identifier: Apache-2.0
//
// The part of DLPack's public, stable C interface that is needed to read an array: versions 0
// and 1. The layout is fixed by https://dmlc.github.io/dlpack; declared here because distributions
// package headers that predate the versioned form.
#pragma once

#include <cstdint>

namespace transducer::dlpack {

enum DeviceKind : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };
enum TypeCode : std::uint8_t {
  kInt = 0,
  kUnsigned = 1,
  kFloat = 2,
  kBfloat = 4,
  kComplex = 5,
  kBool = 6
};

struct DeviceId {
  std::int32_t kind;
  std::int32_t index;
};

struct ElementType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  DeviceId device;
  std::int32_t rank;
  ElementType type;
  std::int64_t* extents;
  std::int64_t* strides;  ///< in elements; nullptr for row-major
  std::uint64_t byte_offset;
};

struct ManagedTensor {
  Tensor tensor;
  void* manager_context;
  void (*deleter)(ManagedTensor*);
};

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};

inline constexpr std::uint64_t kReadOnly = 1;

struct ManagedTensorVersioned {
  Version version;
  void* manager_context;
  void (*deleter)(ManagedTensorVersioned*);
  std::uint64_t flags;
  Tensor tensor;
};

}  // namespace transducer::dlpack
