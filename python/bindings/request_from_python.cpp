// SPDX-License-Identifier: Apache-2.0
#include "python/bindings/request_from_python.hpp"

#include <chrono>
#include <new>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

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

/// A dictionary walked once: a look-up here makes no Python string of the name, and a call does fifty.
class Entries {
 public:
  explicit Entries(const py::dict& values) {
    entries_.reserve(values.size());
    for (const auto& [key, value] : values) {
      Py_ssize_t size = 0;
      const char* const text = PyUnicode_AsUTF8AndSize(key.ptr(), &size);
      if (text == nullptr) throw py::error_already_set();
      entries_.emplace_back(std::string_view(text, static_cast<std::size_t>(size)), value);
    }
  }

  /// The value of a key, or a null handle.
  py::handle find(std::string_view name) const {
    for (const auto& [key, value] : entries_) {
      if (key == name) return value;
    }
    return {};
  }

 private:
  std::vector<std::pair<std::string_view, py::handle>> entries_;
};

template <class Enum, std::size_t N>
void read_word(const Entries& options, const char* name,
               const std::pair<const char*, Enum> (&words)[N], const std::string& caller,
               Enum& value) {
  const py::handle option = options.find(name);
  if (!option) return;
  const std::string given = py::str(option);
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
void read_number(const Entries& options, const char* name, const std::string& caller, T& value) {
  const py::handle option = options.find(name);
  if (!option) return;
  try {
    value = py::cast<T>(option);
  } catch (const py::cast_error&) {
    const char* const kind = std::is_same_v<T, bool>       ? "True or False"
                             : std::is_floating_point_v<T> ? "a number"
                             : std::is_unsigned_v<T>       ? "an integer of 0 or more"
                                                           : "an integer";
    throw py::type_error(
        concat(caller, ": ", name, " is ", std::string(py::repr(option)), ", expected ", kind));
  }
}

/// Arrays by name: made by array_from_python, or DLPack capsules that are read here.
class Arrays {
 public:
  Arrays(const py::dict& arrays, const std::string& caller) : arrays_(arrays), caller_(caller) {}

  bool contain(const char* name) const { return arrays_.find(name).ptr() != nullptr; }

  void read(const char* name, TensorRef& ref, const char* shown = nullptr) const {
    const py::handle value = arrays_.find(name);
    if (value) ref = tensor_ref_of(value, shown != nullptr ? shown : name, caller_);
  }

 private:
  Entries arrays_;
  const std::string& caller_;
};

void read_source(const std::string& caller, const Arrays& inputs, const Entries& options,
                 LossRequest& request) {
  if (inputs.contain("logits")) {
    DenseSource source;
    inputs.read("logits", source.logits);
    request.source = source;
  } else if (inputs.contain("arc_weights")) {
    ArcWeightSource source;
    inputs.read("arc_weights", source.arc_weights);
    request.source = source;
  } else {
    JointSource source;
    inputs.read("encoder", source.encoder);
    inputs.read("predictor", source.predictor);
    inputs.read("weight", source.weight);
    inputs.read("bias", source.bias);
    inputs.read("predictor_mask", source.predictor_mask);
    inputs.read("utterance_ids", source.utterance_ids);
    read_word(options, "activation", kActivations, caller, source.activation);
    read_word(options, "precision", kPrecisions, caller, source.precision);
    read_number(options, "dropout", caller, source.dropout);
    read_number(options, "seed", caller, source.seed);
    request.source = source;
  }
}

void read_result(const Arrays& outputs, LossResult& result) {
  outputs.read("costs", result.costs);
  outputs.read("total", result.total);
  outputs.read("logits_gradient", result.logits_gradient);
  outputs.read("encoder_gradient", result.encoder_gradient);
  outputs.read("predictor_gradient", result.predictor_gradient);
  outputs.read("weight_gradient", result.weight_gradient);
  outputs.read("bias_gradient", result.bias_gradient);
  outputs.read("arc_weights_gradient", result.arc_weights_gradient);
  outputs.read("arc_scores_gradient", result.arc_scores_gradient);
  outputs.read("start_scores_gradient", result.start_scores_gradient);
  outputs.read("final_scores_gradient", result.final_scores_gradient);
  outputs.read("arc_weights", result.arc_weights);
  outputs.read("alpha", result.alpha);
  outputs.read("beta", result.beta);
  outputs.read("arc_posterior", result.arc_posterior);
  outputs.read("occupancy", result.occupancy);
  outputs.read("skipped_mass", result.skipped_mass);
}

}  // namespace

void fill_call(const std::string& caller, const VariantTable& variant, const py::dict& given,
               const py::dict& wanted, const py::dict& chosen, CallFromPython& call) {
  call.caller = caller;
  const Entries options(chosen);
  const Arrays inputs(given, call.caller);
  LossRequest& request = call.request;
  request.caller = call.caller;
  request.variant = variant;
  read_source(caller, inputs, options, request);
  inputs.read("targets", request.targets);
  inputs.read("frame_lengths", request.frame_lengths,
              inputs.contain("encoder") ? "encoder_lengths" : "logit_lengths");
  inputs.read("target_lengths", request.target_lengths);
  inputs.read("arc_scores", request.arc_scores);
  inputs.read("band", request.band);
  inputs.read("start_scores", request.start_scores);
  inputs.read("final_scores", request.final_scores);
  inputs.read("upstream", request.upstream);
  read_word(options, "semiring", kSemirings, caller, request.semiring);
  read_word(options, "reduction", kReductions, caller, request.reduction);
  read_number(options, "clamp", caller, request.clamp);
  read_number(options, "zero_infinity", caller, request.zero_infinity);
  read_number(options, "from_log_probs", caller, request.from_log_probs);
  read_number(options, "skip_mass", caller, request.skip_mass);
  read_result(Arrays(wanted, call.caller), call.result);
  read_number(options, "threads", caller, call.options.threads);
  read_number(options, "workspace_limit", caller, call.options.workspace_limit);
  read_number(options, "validate", caller, call.options.validate);
  call.options.cancelled = signal_is_pending;
}

TensorRef tensor_ref_of(const py::handle& value, const std::string& name,
                        const std::string& caller) {
  if (!PyCapsule_CheckExact(value.ptr())) return py::cast<const Array&>(value).ref;
  return array_from_python(py::reinterpret_borrow<py::object>(value), name, caller).ref;
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
