// SPDX-License-Identifier: Apache-2.0
//
// Times the CUDA layer: loss and gradient of dense batches, of joint inputs, and the lattice alone (from given
// arc weights).
//
//   cuda_bench [--repeats N] [--only SHAPE] [--source dense|joint] [--json FILE]
//
// Medians of single calls by events on a stream of their own, launches included, after a warm-up. Dense shapes
// are also given as a multiple of copying their logits twice in the same run.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "cuda/check.cuh"
#include "cuda/loss.hpp"
#include "reference/core/validate.hpp"
#include "reference/variants/all.hpp"

namespace transducer {
namespace {

using cuda::check_cuda;

struct Shape {
  const char* name;
  std::int64_t B, T, U, K;
  bool ragged;
};

constexpr Shape kShapes[] = {{"A", 32, 188, 90, 1024, false},   {"A'", 32, 188, 90, 1025, false},
                             {"D", 32, 400, 200, 129, true},    {"B", 64, 400, 100, 1024, true},
                             {"L", 8, 1500, 400, 1024, true},   {"P", 64, 250, 60, 8193, true},
                             {"C", 16, 250, 120, 8193, true},   {"short", 4096, 50, 10, 128, false},
                             {"tall", 1, 2000, 4096, 32, false}};

struct DeviceMemory {
  explicit DeviceMemory(std::int64_t bytes) : size(bytes) {
    check_cuda(cudaMalloc(&data, static_cast<std::size_t>(bytes) + 64), "cudaMalloc");
  }
  ~DeviceMemory() { cudaFree(data); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  std::int64_t size;
  void* data = nullptr;
};

/// Normal numbers of any real type; a block of them is repeated over the memory.
void fill_normal(const DeviceMemory& memory, DType dtype, float scale, float shift) {
  constexpr std::int64_t kBlock = (1 << 20) + 7;
  std::mt19937 random(1);
  std::normal_distribution<float> normal(shift, scale);
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(dtype));
  std::vector<std::byte> block(static_cast<std::size_t>(kBlock * bytes));
  const TensorRef host = contiguous_ref(block.data(), dtype, {kBlock});
  for (std::int64_t i = 0; i < kBlock; ++i) write_real(host, {i}, normal(random));
  for (std::int64_t at = 0; at < memory.size; at += kBlock * bytes) {
    check_cuda(cudaMemcpy(static_cast<std::byte*>(memory.data) + at, block.data(),
                          static_cast<std::size_t>(std::min(kBlock * bytes, memory.size - at)),
                          cudaMemcpyHostToDevice),
               "cudaMemcpy");
  }
}

TensorRef device_ref(void* data, DType dtype, std::initializer_list<std::int64_t> extents) {
  TensorRef ref = contiguous_ref(data, dtype, extents);
  ref.device = {DeviceType::cuda, 0};
  return ref;
}

double median_ms(int repeats, cudaStream_t stream, const std::function<void()>& body) {
  cudaEvent_t begin, end;
  check_cuda(cudaEventCreate(&begin), "cudaEventCreate");
  check_cuda(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<float> times;
  for (int i = -2; i < repeats; ++i) {
    check_cuda(cudaEventRecord(begin, stream), "cudaEventRecord");
    body();
    check_cuda(cudaEventRecord(end, stream), "cudaEventRecord");
    check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    float ms = 0.0f;
    check_cuda(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
    if (i >= 0) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return times[times.size() / 2];
}

/// A batch whose lengths and labels lie on the device.
class Batch {
 public:
  Batch(const Shape& shape, std::int64_t vocabulary)
      : lengths_(2 * shape.B * 8), targets_(std::max<std::int64_t>(shape.B * shape.U, 1) * 8) {
    std::mt19937 random(0);
    std::uniform_real_distribution<double> uniform(0.0, 1.0);
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(2 * shape.B));
    for (std::int64_t b = 0; b < shape.B; ++b) {
      const bool full = !shape.ragged || b == 0;
      const double share = full ? 1.0 : 0.5 + 0.5 * uniform(random);
      const double labels = full ? 1.0 : share * (0.8 + 0.2 * uniform(random));
      lengths[static_cast<std::size_t>(b)] = std::lround(share * static_cast<double>(shape.T));
      lengths[static_cast<std::size_t>(shape.B + b)] =
          std::lround(labels * static_cast<double>(shape.U));
      rows += lengths[static_cast<std::size_t>(b)] *
              (lengths[static_cast<std::size_t>(shape.B + b)] + 1);
    }
    std::vector<std::int64_t> targets(static_cast<std::size_t>(shape.B * shape.U));
    for (std::int64_t& label : targets) {
      label = static_cast<std::int64_t>(uniform(random) * static_cast<double>(vocabulary - 1));
    }
    check_cuda(
        cudaMemcpy(lengths_.data, lengths.data(), lengths.size() * 8, cudaMemcpyHostToDevice),
        "cudaMemcpy");
    check_cuda(
        cudaMemcpy(targets_.data, targets.data(), targets.size() * 8, cudaMemcpyHostToDevice),
        "cudaMemcpy");
    request.targets = device_ref(targets_.data, DType::int64, {shape.B, shape.U});
    request.frame_lengths = device_ref(lengths_.data, DType::int64, {shape.B});
    request.target_lengths =
        device_ref(static_cast<std::int64_t*>(lengths_.data) + shape.B, DType::int64, {shape.B});
    request.reduction = Reduction::sum;
  }

  LossRequest request;
  std::int64_t rows = 0;

 private:
  DeviceMemory lengths_, targets_;
};

class Runner {
 public:
  Runner(int repeats, std::FILE* json) : repeats_(repeats), json_(json) {
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }

  void dense(const Shape& shape, DType dtype, const char* variant_name, const VariantTable& variant,
             double skip_mass) {
    Batch batch(shape, shape.K - variant.heads);
    const std::int64_t bytes =
        shape.B * shape.T * (shape.U + 1) * shape.K * static_cast<std::int64_t>(dtype_bytes(dtype));
    DeviceMemory logits(bytes), gradient(bytes), costs(shape.B * 8);
    fill_normal(logits, dtype, 1.0f, 0.0f);
    const auto whole = [&](void* data) {
      return device_ref(data, dtype, {shape.B, shape.T, shape.U + 1, shape.K});
    };
    batch.request.source = DenseSource{whole(logits.data)};
    batch.request.variant = variant;
    batch.request.skip_mass = skip_mass;
    LossResult result;
    result.costs = device_ref(costs.data, DType::float64, {shape.B});
    LossResult with_gradient = result;
    with_gradient.logits_gradient = whole(gradient.data);
    const double copy = median_ms(repeats_, stream_, [&] {
      for (int i = 0; i < 2; ++i) {
        cudaMemcpyAsync(gradient.data, logits.data, static_cast<std::size_t>(bytes),
                        cudaMemcpyDeviceToDevice, stream_);
      }
    });
    const double forward = time(batch.request, result);
    const double both = time(batch.request, with_gradient);
    std::printf(
        "%-6s dense %-9s %-12s skip %-7.0e forward %8.3f ms  both %8.3f ms  = %.2f of two copies "
        "(%.3f ms)  scratch %.1f MiB  saved %.1f bytes a row\n",
        shape.name, dtype_name(dtype), variant_name, skip_mass, forward, both, both / copy, copy,
        scratch_mib_, saved_bytes_ / static_cast<double>(batch.rows));
    report(shape.name, "dense", dtype, variant_name, skip_mass, forward, both);
  }

  struct Joint {
    DType dtype = DType::bfloat16;
    std::int64_t hidden = 640;
    Activation activation = Activation::relu;
    double dropout = 0.0;
    Precision precision = Precision::highest;
    const char* note = "";
  };

  /// Normal E and P, W normal / sqrt(H), no bias.
  void joint(const Shape& shape, const Joint& joint, const char* variant_name,
             const VariantTable& variant, double skip_mass) {
    Batch batch(shape, shape.K - variant.heads);
    const auto width = static_cast<std::int64_t>(dtype_bytes(joint.dtype));
    const std::int64_t H = joint.hidden;
    const std::int64_t encoder = shape.B * shape.T * H * width;
    const std::int64_t predictor = shape.B * (shape.U + 1) * H * width;
    const std::int64_t weight = shape.K * H * width;
    DeviceMemory e(encoder), p(predictor), w(weight), c(shape.K * width);
    DeviceMemory de(encoder), dp(predictor), dw(weight), dc(shape.K * width), costs(shape.B * 8);
    fill_normal(e, joint.dtype, 1.0f, 0.0f);
    fill_normal(p, joint.dtype, 1.0f, 0.0f);
    fill_normal(w, joint.dtype, 1.0f / std::sqrt(static_cast<float>(H)), 0.0f);
    check_cuda(cudaMemset(c.data, 0, static_cast<std::size_t>(c.size)), "cudaMemset");
    const auto rows = [&](void* data, std::int64_t count) {
      return device_ref(data, joint.dtype, {shape.B, count, H});
    };
    batch.request.source = JointSource{.encoder = rows(e.data, shape.T),
                                       .predictor = rows(p.data, shape.U + 1),
                                       .weight = device_ref(w.data, joint.dtype, {shape.K, H}),
                                       .bias = device_ref(c.data, joint.dtype, {shape.K}),
                                       .predictor_mask = {},
                                       .activation = joint.activation,
                                       .dropout = joint.dropout,
                                       .utterance_ids = {},
                                       .precision = joint.precision};
    batch.request.variant = variant;
    batch.request.skip_mass = skip_mass;
    LossResult result;
    result.costs = device_ref(costs.data, DType::float64, {shape.B});
    LossResult with_gradient = result;
    with_gradient.encoder_gradient = rows(de.data, shape.T);
    with_gradient.predictor_gradient = rows(dp.data, shape.U + 1);
    with_gradient.weight_gradient = device_ref(dw.data, joint.dtype, {shape.K, H});
    with_gradient.bias_gradient = device_ref(dc.data, joint.dtype, {shape.K});
    const double forward = time(batch.request, result);
    const double both = time(batch.request, with_gradient);
    const double flop = 2.0 * static_cast<double>(batch.rows) * static_cast<double>(shape.K * H);
    std::printf(
        "%-6s joint %-9s %-12s %s skip %-7.0e forward %8.3f ms (%.0f TFLOP/s)  both %8.3f ms  "
        "scratch %.1f MiB  saved %.1f bytes a row\n",
        shape.name, dtype_name(joint.dtype), variant_name, joint.note, skip_mass, forward,
        flop / forward * 1e-9, both, scratch_mib_, saved_bytes_ / static_cast<double>(batch.rows));
    report(shape.name, "joint", joint.dtype, variant_name, skip_mass, forward, both);
  }

  void lattice(const Shape& shape, const char* variant_name, const VariantTable& variant) {
    Batch batch(shape, 2);
    const std::int64_t bytes = shape.B * shape.T * (shape.U + 1) * variant.num_arcs * 4;
    DeviceMemory weights(bytes), gradient(bytes), costs(shape.B * 8);
    fill_normal(weights, DType::float32, 1.0f, -7.0f);
    const auto whole = [&](void* data) {
      return device_ref(data, DType::float32, {shape.B, shape.T, shape.U + 1, variant.num_arcs});
    };
    batch.request.source = ArcWeightSource{whole(weights.data)};
    batch.request.variant = variant;
    LossResult result;
    result.costs = device_ref(costs.data, DType::float64, {shape.B});
    LossResult with_gradient = result;
    with_gradient.arc_weights_gradient = whole(gradient.data);
    const double forward = time(batch.request, result);
    const double both = time(batch.request, with_gradient);
    std::printf("%-6s lattice alone %-12s forward %8.3f ms  both %8.3f ms\n", shape.name,
                variant_name, forward, both);
    report(shape.name, "lattice", DType::float32, variant_name, -1.0, forward, both);
  }

 private:
  double time(const LossRequest& request, const LossResult& result) {
    const WorkspacePlan plan = cuda::plan_workspace(shape_of(request, result), {});
    DeviceMemory scratch(static_cast<std::int64_t>(plan.scratch_bytes()));
    DeviceMemory saved(static_cast<std::int64_t>(plan.saved_bytes()));
    scratch_mib_ = static_cast<double>(plan.scratch_bytes()) / (1 << 20);
    saved_bytes_ = static_cast<double>(plan.saved_bytes());
    const Workspace workspace{
        .scratch = {static_cast<std::byte*>(scratch.data), plan.scratch_bytes()},
        .saved = {static_cast<std::byte*>(saved.data), plan.saved_bytes()}};
    return median_ms(repeats_, stream_,
                     [&] { cuda::loss(request, result, {}, workspace, stream_); });
  }

  void report(const char* shape, const char* kind, DType dtype, const char* variant,
              double skip_mass, double forward, double both) {
    if (json_ == nullptr) return;
    std::fprintf(json_,
                 "{\"shape\": \"%s\", \"kind\": \"%s\", \"dtype\": \"%s\", \"variant\": \"%s\", "
                 "\"skip_mass\": %g, \"forward_ms\": %.4f, \"both_ms\": %.4f}\n",
                 shape, kind, dtype_name(dtype), variant, skip_mass, forward, both);
  }

  int repeats_;
  std::FILE* json_;
  cudaStream_t stream_ = nullptr;
  double scratch_mib_ = 0.0;
  double saved_bytes_ = 0.0;
};

void bench_joint(Runner& runner, const Shape& shape) {
  const VariantTable plain = rnnt(position(-1));
  if (std::strlen(shape.name) > 2) return;
  runner.joint(shape, {}, "rnnt", plain, -1.0);
  if (std::strcmp(shape.name, "A") != 0) return;
  runner.joint(shape, {}, "rnnt", plain, 0.0);
  const VariantTable durations = tdt({0, 1, 2, 3, 4}, position(-1), false);
  runner.joint(shape, {}, "tdt(0..4)", durations, -1.0);
  runner.joint(shape, {.dtype = DType::float16}, "rnnt", plain, -1.0);
  runner.joint(
      shape,
      {.hidden = 513, .activation = Activation::tanh, .dropout = 0.1, .note = "H=513 tanh dropout"},
      "rnnt", plain, -1.0);
  runner.joint(shape, {.dtype = DType::float32, .note = "highest"}, "rnnt", plain, -1.0);
  runner.joint(shape, {.dtype = DType::float32, .precision = Precision::high, .note = "high"},
               "rnnt", plain, -1.0);
}

int run(int argc, char** argv) {
  int repeats = 20;
  const char* only = "";
  const char* source = "";
  std::FILE* json = nullptr;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--repeats") == 0) repeats = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--only") == 0) only = argv[i + 1];
    if (std::strcmp(argv[i], "--source") == 0) source = argv[i + 1];
    if (std::strcmp(argv[i], "--json") == 0) json = std::fopen(argv[i + 1], "w");
  }
  const auto wanted = [&](const char* name) {
    return *only == '\0' || std::strcmp(only, name) == 0;
  };
  const VariantTable plain = rnnt(position(-1));
  const VariantTable durations = tdt({0, 1, 2, 3, 4}, position(-1), false);
  Runner runner(repeats, json);
  for (const Shape& shape : kShapes) {
    if (!wanted(shape.name)) continue;
    if (*source == '\0' || std::strcmp(source, "joint") == 0) bench_joint(runner, shape);
    if (std::strcmp(source, "joint") == 0) continue;
    runner.lattice(shape, "rnnt", plain);
    if (shape.name[0] == 'A' || shape.name[0] == 'L') runner.lattice(shape, "tdt(0..4)", durations);
    const std::int64_t elements = shape.B * shape.T * (shape.U + 1) * shape.K;
    if (elements > (std::int64_t{1} << 33)) continue;
    runner.dense(shape, DType::bfloat16, "rnnt", plain, -1.0);
    if (shape.name[0] != 'A') continue;
    runner.dense(shape, DType::bfloat16, "rnnt", plain, 0.0);
    runner.dense(shape, DType::float32, "rnnt", plain, -1.0);
    runner.dense(shape, DType::float32, "rnnt", plain, 0.0);
    runner.dense(shape, DType::bfloat16, "tdt(0..4)", durations, -1.0);
  }
  if (json != nullptr) std::fclose(json);
  return 0;
}

}  // namespace
}  // namespace transducer

int main(int argc, char** argv) {
  try {
    return transducer::run(argc, argv);
  } catch (const std::exception& error) {
    std::printf("cuda_bench: %s\n", error.what());
    return 1;
  }
}
