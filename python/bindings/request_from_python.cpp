// SPDX-License-Identifier: Apache-2.0
#include "python/bindings/request_from_python.hpp"

#include <chrono>
#include <new>
#include <type_traits>
#include <utility>

#include "python/bindings/tensor_ref_from_python.hpp"

namespace py = pybind11;

namespace transducer::python {
namespace {

constexpr std::pair<const char*, Activation> kActivations[] = {
    {"identity", Activation::identity},
    {"relu", Activation::relu},
    {"leaky_relu", Activation::leaky_relu},
    {"tanh", Activation::tanh},
    {"sigmoid", Activation::sigmoid},
    {"gelu", Activation::gelu},
    {"silu", Activation::silu}};
constexpr std::pair<const char*, Precision> kPrecisions[] = {{"highest", Precision::highest},
                                                             {"high", Precision::high}};
constexpr std::pair<const char*, Semiring> kSemirings[] = {{"log", Semiring::log},
                                                           {"max", Semiring::max}};
constexpr std::pair<const char*, Reduction> kReductions[] = {
    {"none", Reduction::none},
    {"sum", Reduction::sum},
    {"mean", Reduction::mean},
    {"mean_target", Reduction::mean_target},
    {"mean_frame", Reduction::mean_frame}};

template <class Enum, std::size_t N>
void read_word(const py::dict& options, const char* name,
               const std::pair<const char*, Enum> (&words)[N], const std::string& caller,
               Enum& value) {
  if (!options.contains(name)) return;
  const std::string given = py::str(options[name]);
  std::string known;
  for (const auto& [word, meaning] : words) {
    if (given == word) {
      value = meaning;
      return;
    }
    known += (known.empty() ? "'" : ", '") + std::string(word) + "'";
  }
  throw InvalidArgument(concat(caller, ": ", name, " is '", given, "', expected one of ", known));
}

template <class T>
void read_number(const py::dict& options, const char* name, const std::string& caller, T& value) {
  if (!options.contains(name)) return;
  try {
    value = py::cast<T>(options[name]);
  } catch (const py::cast_error&) {
    const char* const kind = std::is_same_v<T, bool>       ? "True or False"
                             : std::is_floating_point_v<T> ? "a number"
                             : std::is_unsigned_v<T>       ? "an integer of 0 or more"
                                                           : "an integer";
    throw py::type_error(concat(caller, ": ", name, " is ", std::string(py::repr(options[name])),
                                ", expected ", kind));
  }
}

void read_array(const py::dict& arrays, const char* name, TensorRef& ref) {
  if (arrays.contains(name)) ref = py::cast<const Array&>(arrays[name]).ref;
}

void read_source(const std::string& caller, const py::dict& inputs, const py::dict& options,
                 LossRequest& request) {
  if (inputs.contains("logits")) {
    DenseSource source;
    read_array(inputs, "logits", source.logits);
    request.source = source;
  } else if (inputs.contains("arc_weights")) {
    ArcWeightSource source;
    read_array(inputs, "arc_weights", source.arc_weights);
    request.source = source;
  } else {
    JointSource source;
    read_array(inputs, "encoder", source.encoder);
    read_array(inputs, "predictor", source.predictor);
    read_array(inputs, "weight", source.weight);
    read_array(inputs, "bias", source.bias);
    read_array(inputs, "predictor_mask", source.predictor_mask);
    read_array(inputs, "utterance_ids", source.utterance_ids);
    read_word(options, "activation", kActivations, caller, source.activation);
    read_word(options, "precision", kPrecisions, caller, source.precision);
    read_number(options, "dropout", caller, source.dropout);
    read_number(options, "seed", caller, source.seed);
    request.source = source;
  }
}

void read_result(const py::dict& outputs, LossResult& result) {
  read_array(outputs, "costs", result.costs);
  read_array(outputs, "total", result.total);
  read_array(outputs, "logits_gradient", result.logits_gradient);
  read_array(outputs, "encoder_gradient", result.encoder_gradient);
  read_array(outputs, "predictor_gradient", result.predictor_gradient);
  read_array(outputs, "weight_gradient", result.weight_gradient);
  read_array(outputs, "bias_gradient", result.bias_gradient);
  read_array(outputs, "arc_weights_gradient", result.arc_weights_gradient);
  read_array(outputs, "arc_scores_gradient", result.arc_scores_gradient);
  read_array(outputs, "start_scores_gradient", result.start_scores_gradient);
  read_array(outputs, "final_scores_gradient", result.final_scores_gradient);
  read_array(outputs, "arc_weights", result.arc_weights);
  read_array(outputs, "alpha", result.alpha);
  read_array(outputs, "beta", result.beta);
  read_array(outputs, "arc_posterior", result.arc_posterior);
  read_array(outputs, "occupancy", result.occupancy);
  read_array(outputs, "skipped_mass", result.skipped_mass);
}

}  // namespace

void fill_call(const std::string& caller, const VariantTable& variant, const py::dict& inputs,
               const py::dict& outputs, const py::dict& options, CallFromPython& call) {
  call.caller = caller;
  LossRequest& request = call.request;
  request.caller = call.caller;
  request.variant = variant;
  read_source(caller, inputs, options, request);
  read_array(inputs, "targets", request.targets);
  read_array(inputs, "frame_lengths", request.frame_lengths);
  read_array(inputs, "target_lengths", request.target_lengths);
  read_array(inputs, "arc_scores", request.arc_scores);
  read_array(inputs, "band", request.band);
  read_array(inputs, "start_scores", request.start_scores);
  read_array(inputs, "final_scores", request.final_scores);
  read_array(inputs, "upstream", request.upstream);
  read_word(options, "semiring", kSemirings, caller, request.semiring);
  read_word(options, "reduction", kReductions, caller, request.reduction);
  read_number(options, "clamp", caller, request.clamp);
  read_number(options, "zero_infinity", caller, request.zero_infinity);
  read_number(options, "from_log_probs", caller, request.from_log_probs);
  read_number(options, "skip_mass", caller, request.skip_mass);
  read_result(outputs, call.result);
  read_number(options, "threads", caller, call.options.threads);
  read_number(options, "workspace_limit", caller, call.options.workspace_limit);
  read_number(options, "validate", caller, call.options.validate);
  call.options.cancelled = signal_is_pending;
}

bool signal_is_pending(void* context) {
  (void)context;
  using Clock = std::chrono::steady_clock;
  thread_local Clock::time_point last = Clock::now();
  const Clock::time_point now = Clock::now();
  if (now - last < std::chrono::milliseconds(50)) return false;
  last = now;
  const py::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

ScratchMemory::ScratchMemory(std::size_t bytes)
    : data_(static_cast<std::byte*>(
          ::operator new(bytes + 1, std::align_val_t{kWorkspaceAlignment}))),
      bytes_(bytes) {}

ScratchMemory::~ScratchMemory() { ::operator delete(data_, std::align_val_t{kWorkspaceAlignment}); }

}  // namespace transducer::python
