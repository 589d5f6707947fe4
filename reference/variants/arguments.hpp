// SPDX-License-Identifier: Apache-2.0
//
// What an entry of the list of named variants is made of: parameters with a name, a kind and a
// default, and the values a caller gave for them. Python constructors, their stubs and the table in
// the docs are generated from these.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "reference/core/error.hpp"
#include "reference/core/variant_table.hpp"

namespace transducer {

/// bool, integer, real, list of integers, or one word of a fixed choice.
using ParameterValue =
    std::variant<bool, std::int64_t, double, std::vector<std::int64_t>, std::string>;

/// One parameter of a named variant.
struct Parameter {
  std::string name;
  std::string meaning;     ///< one sentence for the docstring
  ParameterValue example;  ///< the default; for a required parameter, a value to test with
  bool required = false;   ///< has no default
  bool keyword_only = false;
  std::vector<std::string> choices = {};  ///< of a word
};

/// Values by name. Every getter throws std::logic_error if the list entry does not declare the
/// name.
class Arguments {
 public:
  explicit Arguments(std::map<std::string, ParameterValue> values) : values_(std::move(values)) {}

  bool flag(const std::string& name) const { return get<bool>(name); }
  std::int64_t integer(const std::string& name) const { return get<std::int64_t>(name); }
  double real(const std::string& name) const { return get<double>(name); }
  const std::vector<std::int64_t>& integers(const std::string& name) const {
    return get<std::vector<std::int64_t>>(name);
  }
  const std::string& word(const std::string& name) const { return get<std::string>(name); }
  /// An integer read as a place on the logit axis: below 0 it counts back from V.
  Position position(const std::string& name) const { return transducer::position(integer(name)); }

 private:
  template <class T>
  const T& get(const std::string& name) const {
    const auto found = values_.find(name);
    if (found == values_.end() || !std::holds_alternative<T>(found->second)) {
      throw std::logic_error(concat("parameter ", name, " is not declared with this kind"));
    }
    return std::get<T>(found->second);
  }

  std::map<std::string, ParameterValue> values_;
};

/// An entry of named_variants().
struct NamedVariant {
  std::string name;
  std::string summary;                ///< one sentence
  std::string citation;               ///< where it was published
  std::vector<Parameter> parameters;  ///< its own; the knobs of every variant follow
  VariantTable (*make)(const Arguments&);
};

}  // namespace transducer
