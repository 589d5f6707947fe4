// SPDX-License-Identifier: Apache-2.0
//
// Where an array lives.
#pragma once

#include <cstdint>

namespace transducer {

enum class DeviceType : std::uint8_t { cpu, cuda };

struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;

  friend constexpr bool operator==(const Device&, const Device&) = default;
};

}  // namespace transducer
