// SPDX-License-Identifier: Apache-2.0
//
// The list of named variants. Tests, the Python constructors, their type stubs and the table in the
// docs all iterate it: a new variant is one header, one entry here and one test.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "reference/core/variant_table.hpp"
#include "reference/variants/arguments.hpp"
#include "reference/variants/bypass.hpp"
#include "reference/variants/hat.hpp"
#include "reference/variants/knobs.hpp"
#include "reference/variants/monotonic.hpp"
#include "reference/variants/multi_blank.hpp"
#include "reference/variants/rnnt.hpp"
#include "reference/variants/star.hpp"
#include "reference/variants/target_robust.hpp"
#include "reference/variants/tdt.hpp"

namespace transducer {

/// `blank`, which every variant takes.
inline Parameter blank_parameter() {
  return {.name = "blank",
          .meaning = "Column of the blank symbol; below 0 it counts back from the vocabulary size.",
          .example = std::int64_t{-1}};
}

/// `mode` of a skip-token arc.
inline Parameter mode_parameter() {
  return {.name = "mode",
          .meaning = "Score of a skip token.",
          .example = std::string("sumexcl"),
          .keyword_only = true,
          .choices = {"sumexcl", "sum", "mean", "constant"}};
}

/// A log-weight added to a skip arc.
inline Parameter penalty_parameter(const std::string& name) {
  return {.name = name, .meaning = "Log-weight added to each skip.", .example = -1.0};
}

/// The knobs that are added to every variant's own parameters.
inline std::vector<Parameter> knob_parameters() {
  return {{.name = "fastemit",
           .meaning = "FastEmit strength: label gradients are multiplied by 1 + fastemit.",
           .example = 0.0,
           .keyword_only = true},
          {.name = "delay_penalty",
           .meaning = "Adds delay_penalty * ((T - 1) / 2 - t) to each arc that emits.",
           .example = 0.0,
           .keyword_only = true},
          {.name = "sigma",
           .meaning = "Subtracted once from each arc that scores a symbol.",
           .example = 0.0,
           .keyword_only = true}};
}

inline const std::vector<NamedVariant>& named_variants() {
  static const std::vector<NamedVariant> kVariants = {
      {.name = "rnnt",
       .summary = "The regular transducer: any number of labels per frame.",
       .citation = "Graves 2012, arXiv 1211.3711",
       .parameters = {blank_parameter()},
       .make = [](const Arguments& a) { return rnnt(a.position("blank")); }},
      {.name = "monotonic",
       .summary = "One symbol per frame (k2 \"modified\").",
       .citation = "Tripathi et al. 2019 (ASRU)",
       .parameters = {blank_parameter(),
                      {.name = "final_label",
                       .meaning = "Whether the last frame may emit a label.",
                       .example = true,
                       .keyword_only = true}},
       .make =
           [](const Arguments& a) {
             return monotonic(a.position("blank"), a.flag("final_label"));
           }},
      {.name = "multi_blank",
       .summary = "Blanks that skip several frames.",
       .citation = "Xu et al. 2022, arXiv 2211.03541",
       .parameters = {{.name = "durations",
                       .meaning =
                           "Frames skipped by each big blank; big blank i is column blank - 1 - i.",
                       .example = std::vector<std::int64_t>{2, 4},
                       .required = true},
                      blank_parameter()},
       .make =
           [](const Arguments& a) {
             return multi_blank(a.integers("durations"), a.position("blank"));
           }},
      {.name = "tdt",
       .summary = "Token-and-duration transducer: a second head predicts how far to move.",
       .citation = "Xu et al. 2023, arXiv 2304.06795",
       .parameters = {{.name = "durations",
                       .meaning =
                           "Frames moved by each duration column; column V + i is durations[i].",
                       .example = std::vector<std::int64_t>{0, 1, 2},
                       .required = true},
                      blank_parameter(),
                      {.name = "final_label",
                       .meaning =
                           "Whether a label may end the path, as the paper's equations allow.",
                       .example = false,
                       .keyword_only = true}},
       .make =
           [](const Arguments& a) {
             return tdt(a.integers("durations"), a.position("blank"), a.flag("final_label"));
           }},
      {.name = "hat",
       .summary = "Hybrid autoregressive transducer: blank is a Bernoulli decision of its own.",
       .citation = "Variani et al. 2020, arXiv 2003.07705",
       .parameters = {blank_parameter()},
       .make = [](const Arguments& a) { return hat(a.position("blank")); }},
      {.name = "star",
       .summary = "RNN-T that may skip frames, for audio with untranscribed stretches.",
       .citation = "Bataev 2025, arXiv 2504.06963",
       .parameters = {penalty_parameter("skip_frame_penalty"), blank_parameter()},
       .make =
           [](const Arguments& a) {
             return star(a.real("skip_frame_penalty"), a.position("blank"));
           }},
      {.name = "bypass",
       .summary = "RNN-T that may skip labels, for transcripts with words that were not said.",
       .citation = "Bataev 2025, arXiv 2504.06963",
       .parameters = {penalty_parameter("skip_token_penalty"), blank_parameter(), mode_parameter()},
       .make =
           [](const Arguments& a) {
             return bypass(a.real("skip_token_penalty"), a.position("blank"), a.word("mode"));
           }},
      {.name = "target_robust",
       .summary = "Star and bypass in one: frames and labels may be skipped.",
       .citation = "Bataev 2025, arXiv 2504.06963",
       .parameters = {penalty_parameter("skip_frame_penalty"),
                      penalty_parameter("skip_token_penalty"), blank_parameter(), mode_parameter()},
       .make =
           [](const Arguments& a) {
             return target_robust(a.real("skip_frame_penalty"), a.real("skip_token_penalty"),
                                  a.position("blank"), a.word("mode"));
           }},
  };
  return kVariants;
}

/// Own parameters, then the knobs: what a constructor takes, in order.
inline std::vector<Parameter> all_parameters(const NamedVariant& variant) {
  std::vector<Parameter> parameters = variant.parameters;
  for (Parameter& knob : knob_parameters()) parameters.push_back(knob);
  return parameters;
}

/// The entry of that name; throws InvalidArgument naming the known ones.
inline const NamedVariant& find_variant(std::string_view name) {
  std::string known;
  for (const NamedVariant& variant : named_variants()) {
    if (variant.name == name) return variant;
    known += (known.empty() ? "" : ", ") + variant.name;
  }
  throw InvalidArgument(concat("variant '", name, "' is not known, expected one of: ", known));
}

/// The table of a named variant. `given` holds values by parameter name; the rest are defaults (for
/// required parameters, the example). Throws InvalidArgument for an unknown name or a wrong kind.
inline VariantTable make_variant(const NamedVariant& variant,
                                 const std::map<std::string, ParameterValue>& given = {}) {
  std::map<std::string, ParameterValue> values;
  for (const Parameter& parameter : all_parameters(variant)) {
    values.emplace(parameter.name, parameter.example);
  }
  for (const auto& [name, value] : given) {
    const auto slot = values.find(name);
    check(slot != values.end(), variant.name, ": '", name, "' is not one of its parameters");
    check(slot->second.index() == value.index(), variant.name, ": ", name, " has the wrong type");
    slot->second = value;
  }
  const Arguments arguments(values);
  VariantTable table = variant.make(arguments);
  table = with_fastemit(table, arguments.real("fastemit"));
  table = with_delay_penalty(table, arguments.real("delay_penalty"));
  table = with_sigma(table, arguments.real("sigma"));
  check_table(table);
  return table;
}

}  // namespace transducer
