// SPDX-License-Identifier: Apache-2.0
//
// The part of DLPack's public, stable C interface that is needed to read an array: versions 0
// and 1. The layout is fixed by https://dmlc.github.io/dlpack; declared here because distributions
// package headers that predate the versioned form.
#pragma once

#include <cstdint>

namespace transducer::dlpack {

// Values of DeviceId::kind.
inline constexpr std::int32_t kCpu = 1;
inline constexpr std::int32_t kCuda = 2;
inline constexpr std::int32_t kCudaHost = 3;
inline constexpr std::int32_t kCudaManaged = 13;

// Values of ElementType::code; the others are only named in messages.
inline constexpr std::uint8_t kInt = 0;
inline constexpr std::uint8_t kFloat = 2;
inline constexpr std::uint8_t kBfloat = 4;
inline constexpr std::uint8_t kBool = 6;

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
