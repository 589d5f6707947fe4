// SPDX-License-Identifier: Apache-2.0
//
// Times the CPU layer: loss and gradient of whole batches.
//
//   cpu_bench [--threads N] [--repeats N] [--shapes smoke|all|large|NAME] [--lengths FILE] [--json FILE]
//
// Each shape first has a slice compared with the reference and is not timed if they differ. The table gives
// medians, the JSON lines also the 10th and 90th percentile. Dense shapes are given as a multiple of copying
// their logits twice in the same run, joint shapes as a share of the rate of large matrix products in the same
// run. "large" are shapes of several GB; the ragged one takes its lengths from the file.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "cpu/loss.hpp"
#include "reference/core/validate.hpp"
#include "reference/loss.hpp"
#include "reference/variants/all.hpp"
#include "tests/bench/measure.hpp"

namespace transducer {
namespace {

using bench::Buffer;
using bench::fill_normal;
using bench::measure;
using bench::Timing;

struct Shape {
  const char* name;
  std::int64_t B, T, U, K, H;  // H = 0: dense
  const char* set;
  bool ragged = false;  // lengths from the file; T and U are then the largest of them
};

constexpr Shape kShapes[] = {
    {"smoke", 2, 20, 8, 65, 0, "smoke"},
    {"smoke joint", 1, 20, 8, 65, 32, "smoke"},
    {"V=1024", 8, 188, 90, 1024, 0, "all"},
    {"V=500", 8, 400, 100, 500, 0, "all"},
    {"V=28 B=1", 1, 150, 39, 28, 0, "all"},
    {"V=28 B=16", 16, 150, 39, 28, 0, "all"},
    {"V=28 B=128", 128, 150, 39, 28, 0, "all"},
    {"V=5000 B=1", 1, 150, 19, 5000, 0, "all"},
    {"V=5000 B=16", 16, 150, 19, 5000, 0, "all"},
    {"V=5000 B=128", 128, 150, 19, 5000, 0, "large"},
    {"V=50 B=1", 1, 1500, 299, 50, 0, "all"},
    {"V=50 B=16", 16, 1500, 299, 50, 0, "all"},
    {"V=50 B=64", 64, 1500, 299, 50, 0, "large"},
    {"T=1500 U=400", 1, 1500, 400, 1024, 0, "all"},
    {"librispeech", 16, 0, 0, 500, 0, "all", true},
    {"joint", 4, 188, 90, 1024, 640, "all"},
};

struct Lengths {
  std::vector<std::int64_t> frames, labels;
};

/// Every utterance the same, or evenly drawn lines "frames,labels" of a file.
Lengths make_lengths(Shape& shape, const std::string& path) {
  if (!shape.ragged) {
    const auto batch = static_cast<std::size_t>(shape.B);
    return {std::vector<std::int64_t>(batch, shape.T), std::vector<std::int64_t>(batch, shape.U)};
  }
  Lengths all;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::int64_t frames = 0;
    std::int64_t labels = 0;
    char comma = 0;
    if (!(fields >> frames >> comma >> labels)) continue;  // a comment, the head
    all.frames.push_back(frames);
    all.labels.push_back(labels);
  }
  if (static_cast<std::int64_t>(all.frames.size()) < shape.B) {
    std::printf("%s: expected at least %ld lines \"frames,labels\" in '%s'\n", shape.name,
                static_cast<long>(shape.B), path.c_str());
    std::exit(1);
  }
  Lengths drawn;
  for (std::size_t b = 0; b < static_cast<std::size_t>(shape.B); ++b) {
    const std::size_t line = b * all.frames.size() / static_cast<std::size_t>(shape.B);
    drawn.frames.push_back(all.frames[line]);
    drawn.labels.push_back(all.labels[line]);
  }
  shape.T = *std::max_element(drawn.frames.begin(), drawn.frames.end());
  shape.U = *std::max_element(drawn.labels.begin(), drawn.labels.end());
  return drawn;
}

/// One batch: inputs, outputs and the request over them.
struct Batch {
  Batch(const Shape& shape, const Lengths& lengths)
      : s(shape),
        targets(static_cast<std::size_t>(s.B * s.U)),
        frames(lengths.frames),
        labels(lengths.labels),
        costs(static_cast<std::size_t>(s.B)),
        first(s.H > 0 ? s.B * s.T * s.H : s.B * s.T * (s.U + 1) * s.K),
        predictor(std::max<std::int64_t>(s.B * (s.U + 1) * s.H, 1)),
        weight(std::max<std::int64_t>(s.K * s.H, 1)) {
    std::mt19937 random(7);
    for (std::int64_t& label : targets) {
      label = static_cast<std::int64_t>(random() %
                                        static_cast<unsigned>(std::max<std::int64_t>(s.K - 1, 1)));
    }
    fill_normal(first, 1.0f);
    fill_normal(predictor, 1.0f);
    fill_normal(weight, s.H > 0 ? 1.0f / std::sqrt(static_cast<float>(s.H)) : 1.0f);
    request.caller = "cpu_bench";
    request.variant = make_variant(find_variant("rnnt"));
    request.reduction = Reduction::sum;
    request.targets = contiguous_ref(targets.data(), DType::int64, {s.B, s.U});
    request.frame_lengths = contiguous_ref(frames.data(), DType::int64, {s.B});
    request.target_lengths = contiguous_ref(labels.data(), DType::int64, {s.B});
    if (s.H > 0) {
      JointSource source;
      source.encoder = contiguous_ref(first.data(), DType::float32, {s.B, s.T, s.H});
      source.predictor = contiguous_ref(predictor.data(), DType::float32, {s.B, s.U + 1, s.H});
      source.weight = contiguous_ref(weight.data(), DType::float32, {s.K, s.H});
      request.source = source;
    } else {
      request.source =
          DenseSource{contiguous_ref(first.data(), DType::float32, {s.B, s.T, s.U + 1, s.K})};
    }
  }

  /// Points `result` at `gradient` (of `first`) and, for joint inputs, at the other gradients.
  LossResult result_into(const Buffer& gradient, const Buffer& predictor_gradient,
                         const Buffer& weight_gradient) {
    LossResult result;
    result.costs = contiguous_ref(costs.data(), DType::float32, {s.B});
    if (s.H > 0) {
      result.encoder_gradient = contiguous_ref(gradient.data(), DType::float32, {s.B, s.T, s.H});
      result.predictor_gradient =
          contiguous_ref(predictor_gradient.data(), DType::float32, {s.B, s.U + 1, s.H});
      result.weight_gradient = contiguous_ref(weight_gradient.data(), DType::float32, {s.K, s.H});
    } else {
      result.logits_gradient =
          contiguous_ref(gradient.data(), DType::float32, {s.B, s.T, s.U + 1, s.K});
    }
    return result;
  }

  Shape s;
  std::vector<std::int64_t> targets, frames, labels;
  std::vector<float> costs;
  Buffer first, predictor, weight;
  LossRequest request;
};

class Scratch {
 public:
  explicit Scratch(std::size_t bytes) : memory_(bytes + kWorkspaceAlignment), bytes_(bytes) {}
  Workspace workspace() {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    const std::size_t shift =
        (kWorkspaceAlignment - address % kWorkspaceAlignment) % kWorkspaceAlignment;
    return {.scratch = std::span(memory_).subspan(shift, bytes_), .saved = {}};
  }

 private:
  std::vector<std::byte> memory_;
  std::size_t bytes_;
};

/// Largest difference between cpu and reference on a corner of the first utterance.
double slice_error(Batch& batch) {
  LossRequest request = batch.request;
  std::int64_t frames = std::min<std::int64_t>(batch.frames[0], 6);
  std::int64_t labels = std::min<std::int64_t>(batch.labels[0], 3);
  request.frame_lengths = contiguous_ref(&frames, DType::int64, {1});
  request.target_lengths = contiguous_ref(&labels, DType::int64, {1});
  request.targets.extents[0] = 1;
  request.skip_mass = 0.0;
  std::int64_t count = batch.s.T * batch.s.H;
  if (auto* dense = std::get_if<DenseSource>(&request.source)) {
    dense->logits.extents[0] = 1;
    count = batch.s.T * (batch.s.U + 1) * batch.s.K;
  } else {
    auto& joint = std::get<JointSource>(request.source);
    joint.encoder.extents[0] = joint.predictor.extents[0] = 1;
  }
  const Buffer expected(count);
  const Buffer found(count);
  const auto run = [&](const Buffer& into, auto plan, auto loss) {
    LossResult result;
    if (batch.s.H > 0) {
      result.encoder_gradient =
          contiguous_ref(into.data(), DType::float32, {1, batch.s.T, batch.s.H});
    } else {
      result.logits_gradient =
          contiguous_ref(into.data(), DType::float32, {1, batch.s.T, batch.s.U + 1, batch.s.K});
    }
    Scratch scratch(plan(shape_of(request, result), Options{}).scratch_bytes());
    loss(request, result, Options{}, scratch.workspace());
  };
  run(expected, reference::plan_workspace, reference::loss);
  run(found, cpu::plan_workspace, cpu::loss);
  double worst = 0.0;
  for (std::int64_t i = 0; i < count; ++i) {
    worst = std::max<double>(worst, std::abs(found.data()[i] - expected.data()[i]));
  }
  return worst;
}

struct CommandLine {
  int threads = 2;
  int repeats = 7;
  std::string shapes = "smoke";
  std::string lengths = TX_LENGTHS_FILE;
  std::string json;

  bool wants(const Shape& shape) const { return shapes == shape.set || shapes == shape.name; }
};

CommandLine parse(int count, char** values) {
  CommandLine arguments;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = values[i];
    const std::string value = values[i + 1];
    if (name == "--threads") arguments.threads = std::stoi(value);
    if (name == "--repeats") arguments.repeats = std::stoi(value);
    if (name == "--shapes") arguments.shapes = value;
    if (name == "--lengths") arguments.lengths = value;
    if (name == "--json") arguments.json = value;
  }
  return arguments;
}

struct Figures {
  Timing warm, fresh, complete, copy;  // copy: one
  double growth = 0.0;                 // MiB beyond inputs and outputs
  double product = 0.0;                // GFLOP/s of large products
};

Figures time_batch(Batch& batch, const CommandLine& arguments, double product) {
  Options options;
  options.threads = arguments.threads;
  const Buffer gradient(batch.first.size());
  const Buffer predictor_gradient(batch.predictor.size());
  const Buffer weight_gradient(batch.weight.size());
  const LossResult warm = batch.result_into(gradient, predictor_gradient, weight_gradient);
  const std::size_t bytes =
      cpu::plan_workspace(shape_of(batch.request, warm), options).scratch_bytes();
  const auto call_with = [&](Scratch& scratch, const LossResult& result) {
    cpu::loss(batch.request, result, options, scratch.workspace());
  };
  Figures figures;
  figures.product = product;
  cpu::loss(batch.request, warm, options, Scratch(bytes).workspace());  // touches the output
  figures.growth = bench::memory_growth([&] {
    Scratch scratch(bytes);
    call_with(scratch, warm);
  });
  Scratch scratch(bytes);
  figures.warm = measure(arguments.repeats, [&] { call_with(scratch, warm); });
  figures.copy = measure(arguments.repeats,
                         [&] { bench::parallel_copy(batch.first, gradient, arguments.threads); });
  std::optional<Buffer> untouched;  // its memory is given back outside of the time taken
  figures.fresh = measure(
      arguments.repeats,
      [&] {
        call_with(scratch, batch.result_into(*untouched, predictor_gradient, weight_gradient));
      },
      [&] { untouched.emplace(batch.first.size()); });
  untouched.reset();
  batch.request.skip_mass = 0.0;
  figures.complete = measure(arguments.repeats, [&] { call_with(scratch, warm); });
  return figures;
}

void print(const Shape& s, const Figures& f) {
  const double nodes = static_cast<double>(s.B * s.T * (s.U + 1));
  std::printf("| %s | %ld x %ld x %ld x %ld | %.2f | %.2f | %.2f | ", s.name,
              static_cast<long>(s.B), static_cast<long>(s.T), static_cast<long>(s.U),
              static_cast<long>(s.K), f.warm.median, f.fresh.median, f.complete.median);
  if (s.H == 0) {
    const double copies = 2 * f.copy.median;
    std::printf("%.2f (%.1f GB/s) | %.2f | %.2f | %.2f | ", copies,
                16.0 * nodes * static_cast<double>(s.K) / copies / 1e6, f.warm.median / copies,
                f.fresh.median / copies, f.complete.median / copies);
  } else {
    const double rate = 8.0 * nodes * static_cast<double>(s.K * s.H) / f.complete.median / 1e6;
    std::printf("no skip %.0f GFLOP/s, %.0f %% of %.0f | | | | ", rate, 100.0 * rate / f.product,
                f.product);
  }
  std::printf("%.1f |\n", f.growth);
  std::fflush(stdout);
}

void write_json(FILE* json, const Shape& s, const CommandLine& arguments, const Figures& f) {
  std::fprintf(json,
               "{\"shape\": \"%s\", \"B\": %ld, \"T\": %ld, \"U\": %ld, \"K\": %ld, \"H\": %ld, "
               "\"threads\": %d, \"isa\": \"%s\", \"growth_mib\": %.1f, \"product_gflops\": %.1f",
               s.name, static_cast<long>(s.B), static_cast<long>(s.T), static_cast<long>(s.U),
               static_cast<long>(s.K), static_cast<long>(s.H), arguments.threads,
               cpu::instruction_set(), f.growth, f.product);
  const auto add = [&](const char* name, const Timing& timing) {
    std::fprintf(json, ", \"%s_ms\": [%.4f, %.4f, %.4f]", name, timing.p10, timing.median,
                 timing.p90);
  };
  add("warm", f.warm);
  add("fresh", f.fresh);
  add("no_skip", f.complete);
  add("copy", f.copy);
  std::fprintf(json, "}\n");
}

void run_shape(Shape shape, const CommandLine& arguments, double product, FILE* json) {
  const Lengths lengths = make_lengths(shape, arguments.lengths);
  Batch batch(shape, lengths);
  const double error = slice_error(batch);
  if (!(error < 1e-5)) {
    std::printf("%s differs from the reference by %.1e: not timed\n", shape.name, error);
    std::exit(1);
  }
  const Figures figures = time_batch(batch, arguments, product);
  print(shape, figures);
  if (json != nullptr) write_json(json, shape, arguments, figures);
}

}  // namespace
}  // namespace transducer

int main(int count, char** values) {
  using namespace transducer;  // NOLINT(google-build-using-namespace): the program is one file
  const CommandLine arguments = parse(count, values);
  FILE* json = arguments.json.empty() ? nullptr : std::fopen(arguments.json.c_str(), "w");
  const double product = bench::product_rate(arguments.threads);
  std::printf("%s, %d threads, %d repeats, large products %.0f GFLOP/s\n\n", cpu::instruction_set(),
              arguments.threads, arguments.repeats, product);
  std::printf(
      "| name | B x T x U x V | ms | fresh, ms | no skip, ms | two copies, ms | ratio | fresh | no "
      "skip "
      "| memory, MiB |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const Shape& shape : kShapes) {
    if (arguments.wants(shape)) run_shape(shape, arguments, product, json);
  }
  if (json != nullptr) std::fclose(json);
  return 0;
}
