// SPDX-License-Identifier: Apache-2.0
//
// Error types and the one way to raise them. A message has four pieces: the function, what was
// given (by name), what was expected and why, and a hint where the mistake is a usual one:
//
//   ft.loss: logits has shape [4, 10, 5, 30], expected [4, 10, 6, 30] because targets has U = 5
//   columns and the joint needs U + 1. Did the prediction network get its start symbol?
//
// Cases that depend on the data alone (no path, a target of length 0) have defined values, not
// errors.
#pragma once

#include <charconv>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace transducer {

/// The caller's argument is wrong; pybind11 turns it into ValueError.
class InvalidArgument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// The request is legal but this layer cannot do it (a data type, a semiring).
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The layer was left out of this build.
class NotBuilt : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A device call failed.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// `Options::cancelled` asked for the computation to stop. Outputs hold unspecified values.
class Cancelled : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {

inline void append(std::string& text, std::string_view part) { text += part; }
inline void append(std::string& text, char part) { text += part; }

/// Integers in full, other numbers with six significant digits.
template <class Number>
  requires(std::is_arithmetic_v<Number> && !std::is_same_v<Number, bool>)
void append(std::string& text, Number part) {
  char digits[32];
  std::to_chars_result end{};
  if constexpr (std::is_integral_v<Number>) {
    end = std::to_chars(digits, digits + sizeof digits, part);
  } else {
    end = std::to_chars(digits, digits + sizeof digits, part, std::chars_format::general, 6);
  }
  text.append(digits, end.ptr);
}

}  // namespace detail

/// Joins strings and numbers. GCC 12 has no std::format, and streams are avoided: where the C++
/// library is linked into an extension module, its locale can clash with that of another module.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string text;
  (detail::append(text, parts), ...);
  return text;
}

/// Throws InvalidArgument with the joined parts unless `condition` holds. The parts are only
/// formatted on failure.
template <class... Parts>
void check(bool condition, const Parts&... parts) {
  if (!condition) throw InvalidArgument(concat(parts...));
}

}  // namespace transducer
