// SPDX-License-Identifier: Apache-2.0
//
// Times the CPU layer: loss and gradient of whole batches.
//
//   cpu_bench [--threads N] [--repeats N] [--shapes smoke|all|NAME] [--json FILE]
//
// Each shape first has a slice compared with the reference and is not timed if they differ. Figures are
// medians with the 10th and 90th percentile. Dense shapes are given as a multiple of copying their logits
// twice in the same run, joint shapes as a share of the rate of large matrix products in the same run.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <omp.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "cpu/kernels.hpp"
#include "cpu/loss.hpp"
#include "reference/core/validate.hpp"
#include "reference/loss.hpp"
#include "reference/variants/all.hpp"

namespace transducer {
namespace {

struct Shape {
  const char* name;
  std::int64_t B, T, U, K, H;  // H = 0: dense
  bool in_smoke;
};

constexpr Shape kShapes[] = {
    {"smoke", 2, 20, 8, 65, 0, true},
    {"smoke joint", 1, 20, 8, 65, 32, true},
    {"V=1024", 8, 188, 90, 1024, 0, false},
    {"V=500", 8, 400, 100, 500, 0, false},
    {"V=28", 128, 150, 39, 28, 0, false},
    {"V=5000", 16, 150, 19, 5000, 0, false},
    {"V=50 long", 16, 1500, 299, 50, 0, false},
    {"T=1500 U=400", 1, 1500, 400, 1024, 0, false},
    {"joint A/8", 4, 188, 90, 1024, 640, false},
};

/// Memory of its own mapping, in huge pages where the system gives them.
class Buffer {
 public:
  explicit Buffer(std::int64_t count) : bytes_(static_cast<std::size_t>(count) * sizeof(float)) {
    void* address =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) throw std::bad_alloc();
    madvise(address, bytes_, MADV_HUGEPAGE);
    data_ = static_cast<float*>(address);
  }
  ~Buffer() { munmap(data_, bytes_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  float* data() const { return data_; }
  std::int64_t size() const { return static_cast<std::int64_t>(bytes_ / sizeof(float)); }

 private:
  std::size_t bytes_;
  float* data_;
};

void fill_normal(const Buffer& buffer, float scale) {
#pragma omp parallel for
  for (std::int64_t block = 0; block < (buffer.size() + 65535) / 65536; ++block) {
    std::mt19937 random(static_cast<unsigned>(block) + 1);
    std::normal_distribution<float> normal(0.0f, scale);
    const std::int64_t end = std::min(buffer.size(), (block + 1) * 65536);
    for (std::int64_t i = block * 65536; i < end; ++i) buffer.data()[i] = normal(random);
  }
}

double seconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Timing {
  double median, low, high;  // ms
};

Timing measure(int repeats, const std::function<void()>& body) {
  body();
  std::vector<double> times;
  times.reserve(static_cast<std::size_t>(repeats));
  for (int i = 0; i < repeats; ++i) times.push_back(seconds(body) * 1e3);
  std::sort(times.begin(), times.end());
  const auto at = [&](double q) {
    return times[static_cast<std::size_t>(std::lround(q * (repeats - 1)))];
  };
  return {at(0.5), at(0.1), at(0.9)};
}

double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024.0;
}

void parallel_copy(const Buffer& from, const Buffer& to, int threads) {
#pragma omp parallel for num_threads(threads)
  for (int part = 0; part < threads; ++part) {
    const std::int64_t begin = from.size() * part / threads;
    const std::int64_t end = from.size() * (part + 1) / threads;
    std::memcpy(to.data() + begin, from.data() + begin,
                static_cast<std::size_t>(end - begin) * sizeof(float));
  }
}

/// GFLOP/s of one large product per thread, all at once.
double product_rate(int threads) {
  constexpr std::int64_t kSize = 1536;
  std::vector<std::vector<float>> memory(static_cast<std::size_t>(threads));
  for (auto& block : memory) block.assign(3 * kSize * kSize, 0.5f);
  const Timing timing = measure(3, [&] {
#pragma omp parallel for num_threads(threads)
    for (int i = 0; i < threads; ++i) {
      float* a = memory[static_cast<std::size_t>(i)].data();
      cpu::kernels().single.multiply(false, true, false, kSize, kSize, kSize, a, kSize,
                                     a + kSize * kSize, kSize, a + 2 * kSize * kSize, kSize);
    }
  });
  return 2.0 * static_cast<double>(threads) * kSize * kSize * kSize / timing.median / 1e6;
}

/// One batch: inputs, outputs and the request over them.
struct Batch {
  explicit Batch(const Shape& shape)
      : s(shape),
        targets(static_cast<std::size_t>(s.B * s.U)),
        frames(static_cast<std::size_t>(s.B), s.T),
        labels(static_cast<std::size_t>(s.B), s.U),
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
  std::int64_t frames = std::min<std::int64_t>(batch.s.T, 6);
  std::int64_t labels = std::min<std::int64_t>(batch.s.U, 3);
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
  std::string json;

  bool wants(const Shape& shape) const {
    return shape.in_smoke ? shapes == "smoke" || shapes == "all"
                          : shapes == "all" || shapes == shape.name;
  }
};

CommandLine parse(int count, char** values) {
  CommandLine arguments;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = values[i];
    const std::string value = values[i + 1];
    if (name == "--threads") arguments.threads = std::stoi(value);
    if (name == "--repeats") arguments.repeats = std::stoi(value);
    if (name == "--shapes") arguments.shapes = value;
    if (name == "--json") arguments.json = value;
  }
  return arguments;
}

void run_shape(const Shape& shape, const CommandLine& arguments, double peak_product, FILE* json) {
  Batch batch(shape);
  const double error = slice_error(batch);
  if (!(error < 1e-5)) {
    std::printf("%-14s differs from the reference by %.1e: not timed\n", shape.name, error);
    std::exit(1);
  }
  Options options;
  options.threads = arguments.threads;
  const Buffer gradient(batch.first.size());
  const Buffer predictor_gradient(batch.predictor.size());
  const Buffer weight_gradient(batch.weight.size());
  LossResult warm = batch.result_into(gradient, predictor_gradient, weight_gradient);
  const std::size_t bytes =
      cpu::plan_workspace(shape_of(batch.request, warm), options).scratch_bytes();
  Scratch scratch(bytes);
  const auto call = [&](const LossResult& result) {
    cpu::loss(batch.request, result, options, scratch.workspace());
  };
  const Timing skipping = measure(arguments.repeats, [&] { call(warm); });
  const Timing copy =
      measure(arguments.repeats, [&] { parallel_copy(batch.first, gradient, arguments.threads); });
  const Timing fresh = measure(arguments.repeats, [&] {
    const Buffer first_touched(batch.first.size());
    call(batch.result_into(first_touched, predictor_gradient, weight_gradient));
  });
  batch.request.skip_mass = 0.0;
  const Timing complete = measure(arguments.repeats, [&] { call(warm); });
  const double nodes = static_cast<double>(shape.B * shape.T * (shape.U + 1));
  const double flops = 8.0 * nodes * static_cast<double>(shape.K * shape.H);
  std::printf("%-14s %8.1f [%7.1f %7.1f] ms  fresh %8.1f  no skip %8.1f  ", shape.name,
              skipping.median, skipping.low, skipping.high, fresh.median, complete.median);
  if (shape.H == 0) {
    std::printf("two copies %7.1f ms (%.1f GB/s)  ratio %.2f, fresh %.2f, no skip %.2f  ",
                2 * copy.median, 8.0 * static_cast<double>(batch.first.size()) / copy.median / 1e6,
                skipping.median / (2 * copy.median), fresh.median / (2 * copy.median),
                complete.median / (2 * copy.median));
  } else {
    std::printf("no skip %.0f GFLOP/s = %.0f %% of %.0f  ", flops / complete.median / 1e6,
                100.0 * flops / complete.median / 1e6 / peak_product, peak_product);
  }
  std::printf("scratch %.1f MiB\n", static_cast<double>(bytes) / 1048576.0);
  if (json == nullptr) return;
  std::fprintf(json,
               "{\"shape\": \"%s\", \"threads\": %d, \"isa\": \"%s\", \"ms\": %.3f, \"p10\": %.3f, "
               "\"p90\": %.3f, \"fresh_ms\": %.3f, \"no_skip_ms\": %.3f, \"copy_ms\": %.3f, "
               "\"scratch_bytes\": %zu, \"product_gflops\": %.1f, \"peak_mib\": %.1f}\n",
               shape.name, arguments.threads, cpu::instruction_set(), skipping.median, skipping.low,
               skipping.high, fresh.median, complete.median, copy.median, bytes, peak_product,
               peak_mib());
}

}  // namespace
}  // namespace transducer

int main(int count, char** values) {
  using namespace transducer;  // NOLINT(google-build-using-namespace): the program is one file
  const CommandLine arguments = parse(count, values);
  FILE* json = arguments.json.empty() ? nullptr : std::fopen(arguments.json.c_str(), "w");
  const double peak_product = product_rate(arguments.threads);
  std::printf("%s, %d threads, large products %.0f GFLOP/s\n", cpu::instruction_set(),
              arguments.threads, peak_product);
  for (const Shape& shape : kShapes) {
    if (arguments.wants(shape)) run_shape(shape, arguments, peak_product, json);
  }
  if (json != nullptr) std::fclose(json);
  return 0;
}
