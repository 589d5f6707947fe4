// SPDX-License-Identifier: Apache-2.0
//
// Variant tables cross the border as plain Python values: tuples and dicts that variants.py makes
// from its dataclasses, and JSON-ready ones back.
#include <map>
#include <string>
#include <string_view>

#include <pybind11/operators.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "python/bindings/bindings.hpp"
#include "reference/core/variant_table.hpp"
#include "reference/variants/all.hpp"

namespace py = pybind11;

namespace transducer::python {
namespace {

constexpr std::pair<ColumnKind, const char*> kColumnKinds[] = {
    {ColumnKind::fixed, "fixed"}, {ColumnKind::label, "label"}, {ColumnKind::log_sum, "log_sum"}};
constexpr std::pair<ArcKind, const char*> kArcKinds[] = {
    {ArcKind::blank, "blank"}, {ArcKind::label, "label"}, {ArcKind::skip, "skip"}};
constexpr std::pair<Normaliser, const char*> kNormalisers[] = {{Normaliser::softmax, "softmax"},
                                                               {Normaliser::bernoulli, "bernoulli"},
                                                               {Normaliser::none, "none"}};

template <class Enum, std::size_t N>
const char* word_of(const std::pair<Enum, const char*> (&words)[N], Enum value) {
  for (const auto& [known, word] : words) {
    if (known == value) return word;
  }
  return "";
}

template <class Enum, std::size_t N>
Enum value_of(const std::pair<Enum, const char*> (&words)[N], const std::string& given,
              const char* what) {
  std::string known;
  for (const auto& [value, word] : words) {
    if (given == word) return value;
    known += (known.empty() ? "'" : ", '") + std::string(word) + "'";
  }
  throw InvalidArgument(concat(what, " is '", given, "', expected one of ", known));
}

py::tuple to_python(Position position) {
  return py::make_tuple(position.offset, position.from_vocabulary);
}

Position to_position(const py::handle& value) {
  const auto pair = py::cast<std::pair<std::int64_t, bool>>(value);
  return {pair.first, pair.second};
}

py::list groups_of(std::uint8_t mask) {
  py::list groups;
  for (int g = 0; g < kMaxGroups; ++g) {
    if ((mask & group_bit(g)) != 0) groups.append(g);
  }
  return groups;
}

std::uint8_t mask_of(const py::handle& groups, std::string_view name) {
  std::uint8_t mask = 0;
  for (const py::handle& item : groups) {
    const int g = py::cast<int>(item);
    check(g >= 0 && g < kMaxGroups, "variant ", name, ": a column names group ", g,
          ", expected one from 0 to ", kMaxGroups - 1);
    mask = static_cast<std::uint8_t>(mask | group_bit(g));
  }
  return mask;
}

py::dict to_python(const Column& column) {
  py::dict out;
  out["kind"] = word_of(kColumnKinds, column.kind);
  out["position"] = to_python(column.position);
  out["label_offset"] = column.label_offset;
  out["group"] = column.group;
  out["subtract"] = groups_of(column.subtract);
  out["add"] = groups_of(column.add);
  out["grad_scale"] = column.grad_scale;
  return out;
}

Column to_column(const py::handle& in, std::string_view name) {
  Column column;
  column.kind = value_of(kColumnKinds, py::cast<std::string>(in["kind"]), "a column's kind");
  column.position = to_position(in["position"]);
  column.label_offset = py::cast<std::int64_t>(in["label_offset"]);
  column.group = py::cast<int>(in["group"]);
  column.subtract = mask_of(in["subtract"], name);
  column.add = mask_of(in["add"], name);
  column.grad_scale = py::cast<double>(in["grad_scale"]);
  return column;
}

py::dict to_python(const Arc& arc) {
  py::dict out;
  py::list columns;
  for (int i = 0; i < arc.num_columns; ++i) columns.append(to_python(arc.columns[i]));
  out["dt"] = arc.dt;
  out["du"] = arc.du;
  out["columns"] = columns;
  out["constant"] = py::make_tuple(arc.constant.value, arc.constant.log_v1);
  out["frame_bonus"] = arc.frame_bonus;
  out["may_finish"] = arc.may_finish;
  out["kind"] = word_of(kArcKinds, arc.kind);
  return out;
}

Arc to_arc(const py::handle& in, std::string_view name) {
  Arc arc;
  arc.dt = py::cast<int>(in["dt"]);
  arc.du = py::cast<int>(in["du"]);
  const auto constant = py::cast<std::pair<double, double>>(in["constant"]);
  arc.constant = {constant.first, constant.second};
  arc.frame_bonus = py::cast<double>(in["frame_bonus"]);
  arc.may_finish = py::cast<bool>(in["may_finish"]);
  arc.kind = value_of(kArcKinds, py::cast<std::string>(in["kind"]), "an arc's kind");
  for (const py::handle& column : in["columns"]) {
    check(arc.num_columns < kMaxColumnsPerArc, "variant ", name, ": an arc reads more than ",
          kMaxColumnsPerArc, " columns; a log-sum of a group counts as one");
    arc.columns[arc.num_columns++] = to_column(column, name);
  }
  return arc;
}

py::dict to_python(const Group& group) {
  py::dict out;
  out["begin"] = to_python(group.begin);
  out["end"] = to_python(group.end);
  out["excluded"] = group.exclude_fixed ? py::object(to_python(group.excluded)) : py::none();
  out["exclude_label"] = group.exclude_label;
  out["normaliser"] = word_of(kNormalisers, group.normaliser);
  out["clamp"] = group.clamp;
  return out;
}

Group to_group(const py::handle& in) {
  Group group;
  group.begin = to_position(in["begin"]);
  group.end = to_position(in["end"]);
  group.exclude_fixed = !in["excluded"].is_none();
  if (group.exclude_fixed) group.excluded = to_position(in["excluded"]);
  group.exclude_label = py::cast<bool>(in["exclude_label"]);
  group.normaliser =
      value_of(kNormalisers, py::cast<std::string>(in["normaliser"]), "a normaliser");
  group.clamp = py::cast<bool>(in["clamp"]);
  return group;
}

VariantTable table_from_python(const py::dict& in) {
  VariantTable table;
  const auto name = py::cast<std::string>(in["name"]);
  check(name.size() <= kMaxNameLength, "variant ", name, ": the name has ", name.size(),
        " bytes, expected at most ", kMaxNameLength);
  set_name(table, name);
  table.heads = py::cast<int>(in["heads"]);
  for (const py::handle& group : in["groups"]) {
    check(table.num_groups < kMaxGroups, "variant ", name, ": more than ", kMaxGroups, " groups");
    table.groups[table.num_groups++] = to_group(group);
  }
  for (const py::handle& arc : in["arcs"]) {
    check(table.num_arcs < kMaxArcs, "variant ", name, ": more than ", kMaxArcs, " arcs");
    table.arcs[table.num_arcs++] = to_arc(arc, name);
  }
  check_table(table);
  return table;
}

py::dict table_to_python(const VariantTable& table) {
  py::dict out;
  py::list arcs;
  py::list groups;
  for (int a = 0; a < table.num_arcs; ++a) arcs.append(to_python(table.arcs[a]));
  for (int g = 0; g < table.num_groups; ++g) groups.append(to_python(table.groups[g]));
  out["name"] = table.name;
  out["heads"] = table.heads;
  out["arcs"] = arcs;
  out["groups"] = groups;
  return out;
}

const char* kind_of(const ParameterValue& value) {
  constexpr const char* kKinds[] = {"flag", "integer", "real", "integers", "word"};
  return kKinds[value.index()];
}

py::list named_variants_for_python() {
  py::list out;
  for (const NamedVariant& variant : named_variants()) {
    py::list parameters;
    for (const Parameter& parameter : all_parameters(variant)) {
      py::dict entry;
      entry["name"] = parameter.name;
      entry["meaning"] = parameter.meaning;
      entry["kind"] = kind_of(parameter.example);
      entry["example"] = parameter.example;
      if (!parameter.required) entry["default"] = parameter.example;
      entry["required"] = parameter.required;
      entry["keyword_only"] = parameter.keyword_only;
      entry["choices"] = parameter.choices;
      parameters.append(entry);
    }
    py::dict entry;
    entry["name"] = variant.name;
    entry["summary"] = variant.summary;
    entry["citation"] = variant.citation;
    entry["parameters"] = parameters;
    out.append(entry);
  }
  return out;
}

/// Values by the kinds the list declares: an int is fine for a real, a bool is not an integer.
py::dict make_named_variant(const std::string& name, const py::dict& given) {
  const NamedVariant& variant = find_variant(name);
  std::map<std::string, ParameterValue> values;
  for (const Parameter& parameter : all_parameters(variant)) {
    if (!given.contains(parameter.name)) continue;
    const py::object value = given[parameter.name.c_str()];
    const bool is_bool = py::isinstance<py::bool_>(value);
    try {
      switch (parameter.example.index()) {
        case 0:
          if (!is_bool) throw py::cast_error();
          values[parameter.name] = py::cast<bool>(value);
          break;
        case 1:
          if (is_bool) throw py::cast_error();
          values[parameter.name] = py::cast<std::int64_t>(value.attr("__index__")());
          break;
        case 2:
          if (is_bool) throw py::cast_error();
          values[parameter.name] = py::cast<double>(value.attr("__float__")());
          break;
        case 3: {
          std::vector<std::int64_t> list;
          for (const py::handle& item : value) {
            list.push_back(py::cast<std::int64_t>(item.attr("__index__")()));
          }
          values[parameter.name] = list;
          break;
        }
        default:
          values[parameter.name] = py::cast<std::string>(value);
      }
    } catch (const std::exception&) {
      PyErr_Clear();
      throw py::type_error(concat("ft.", name, ": ", parameter.name, " is ",
                                  std::string(py::repr(value)), ", expected ",
                                  parameter.example.index() == 3   ? "a list of integers"
                                  : parameter.example.index() == 0 ? "True or False"
                                  : parameter.example.index() == 1 ? "an integer"
                                  : parameter.example.index() == 2 ? "a number"
                                                                   : "a word"));
    }
  }
  return table_to_python(make_variant(variant, values));
}

}  // namespace

void bind_variants(py::module_& module) {
  py::class_<VariantTable>(module, "VariantTable")
      .def(py::init(&table_from_python), py::arg("spec"))
      .def("spec", &table_to_python)
      .def(py::self == py::self);
  module.def("named_variants", &named_variants_for_python);
  module.def("make_named_variant", &make_named_variant, py::arg("name"), py::arg("arguments"));
}

}  // namespace transducer::python
