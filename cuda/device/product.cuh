// SPDX-License-Identifier: Apache-2.0
//
// Tiles of matrix products by one block of 256 threads:  c(i, j) = sum over k of a(i, k) b(j, k).
//
// Purpose: the three products of the joint source (logits, their gradient towards h, and towards W). Approach:
// tiles of 128 x 256, eight warps of 64 x 64 each on tensor cores, k in steps of 32 through four stages of
// shared memory filled by asynchronous copies; the loads of a block's next tile start before this one is
// finished. Either operand may lie in memory with k or with i (j) innermost. The order of k is the same
// whatever the tile, so a row's sums do not depend on which rows share its tile.
//
// float32 comes as 2 or 3 planes of bfloat16 whose sum it is, and a product as the planes' products, the
// smallest terms first: 3 planes are exact to 2^-24, at six times the work. float64, for tests, uses plain
// multiplications on tiles of 32 x 64.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/device/mma.cuh"
#include "cuda/device/warpgroup.cuh"

namespace transducer::cuda {

inline constexpr int kThreads = 256;
inline constexpr int kStep = 32;  // of k

/// What products of Element are summed in.
template <class Element>
using RealOf = std::conditional_t<sizeof(Element) == 8, double, float>;

/// A tile of Element products, in the registers of its block: every thread owns kOwnRows x kOwnColumns elements,
/// and the four threads of a quad share their rows. kHopper: warpgroup products of compute capability 9.0, where
/// a warp owns 16 rows and all columns; else kWarpColumns warps share a row.
template <class Element, bool kHopper>
struct Tile {
  using Real = RealOf<Element>;
  static constexpr bool kTensorCores = sizeof(Element) == 2;
  static_assert(kTensorCores || !kHopper);
  static constexpr int kWarpRows = kHopper ? 8 : 2;
  static constexpr int kWarpColumns = kHopper ? 1 : 4;
  static constexpr int kM = kHopper || !kTensorCores ? 1 : 4;
  static constexpr int kN = kHopper ? 32 : kTensorCores ? 8 : 2;
  static constexpr int kRows = kWarpRows * 16 * kM;
  static constexpr int kColumns = kWarpColumns * 8 * kN;
  static constexpr int kOwnRows = 2 * kM;
  static constexpr int kOwnColumns = 2 * kN;
  static constexpr int kBytesA = kRows * kStep * 2;
  static constexpr int kBytesB = kColumns * kStep * 2;

  Real value[kM * kN * 4];

  __device__ __forceinline__ Real& at(int i, int j) {
    return value[(i / 2 * kN + j / 2) * 4 + (i % 2) * 2 + j % 2];
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kM * kN * 4; ++i) value[i] = Real(0);
  }

  static __device__ __forceinline__ int quad() { return static_cast<int>(threadIdx.x) % 4; }
  static __device__ __forceinline__ int warp_row() {
    return static_cast<int>(threadIdx.x) / 32 / kWarpColumns;
  }
  static __device__ __forceinline__ int warp_column() {
    return static_cast<int>(threadIdx.x) / 32 % kWarpColumns;
  }
  /// Where this thread's element (i, j) lies in the tile. Warps that share rows take columns in turns of 16, so
  /// that a tile with few columns keeps them all busy.
  static __device__ __forceinline__ int row(int i) {
    return (warp_row() * kM + i / 2) * 16 + i % 2 * 8 + static_cast<int>(threadIdx.x) % 32 / 4;
  }
  static __device__ __forceinline__ int column(int j) {
    return (j / 4 * kWarpColumns + warp_column()) * 16 + j % 4 / 2 * 8 + quad() * 2 + j % 2;
  }
  /// The same where b has k innermost: on Hopper its rows come in an order (loaded_row) that gives each thread
  /// kLogitRun neighbouring columns, one 16-byte store of 16-bit elements.
  static constexpr int kLogitRun = kHopper ? 8 : 2;
  static __device__ __forceinline__ int logit_column(int j) {
    return kHopper ? j / 8 * 32 + quad() * 8 + j % 8 : column(j);
  }
  /// Row of b that belongs into row `row` of the stage.
  static __device__ __forceinline__ int loaded_row(int row) {
    return kHopper ? row / 32 * 32 + row % 8 / 2 * 8 + row % 32 / 8 * 2 + row % 2 : row;
  }
};

/// a or b of a product. k innermost: element (i, k) at data[i * stride + k], every row of the tile readable.
/// Otherwise at data[k * stride + i], i below `limit`, which is a multiple of 8.
template <class Element>
struct Operand {
  const Element* data = nullptr;
  std::int64_t stride = 0;
  std::int64_t plane = 0;  ///< elements from one plane to the next
  int limit = 0;
};

template <class Element>
struct Product {
  Operand<Element> a;
  Operand<Element> b;
  int steps = 0;      ///< of kStep in k
  int columns = 0;    ///< of the tile that are needed
  bool sums = false;  ///< the sum over k of a is wanted too
};

/// Pairs of planes to multiply, the smallest products first.
template <int kPlanes>
struct PlanePairs {
  static constexpr int kCount = kPlanes == 1 ? 1 : kPlanes == 2 ? 3 : 6;
  __device__ static constexpr int a(int pair) {
    if (kPlanes == 1) return 0;
    if (kPlanes == 2) return pair == 1 ? 1 : 0;
    return pair == 0 ? 1 : pair == 1 ? 0 : pair == 2 ? 2 : pair == 4 ? 1 : 0;
  }
  __device__ static constexpr int b(int pair) {
    if (kPlanes == 1) return 0;
    if (kPlanes == 2) return pair == 0 ? 1 : 0;
    return pair == 0 ? 1 : pair == 1 ? 2 : pair == 3 ? 1 : 0;
  }
};

/// Fills stages of shared memory with steps of a block's products, ahead of their use. kInnerA, kInnerB: k is
/// innermost in memory; the stage then holds rows of 64 bytes, else groups of 64 elements with a row of 128 bytes
/// for each k; 16-byte pieces are permuted within so that tensor cores read them without conflicts. kResident: a is
/// in shared memory already and only b is loaded.
template <class Element, int kPlanes, bool kHopper, bool kInnerA, bool kInnerB, bool kResident>
class ProductLoader {
  using Shape = Tile<Element, kHopper>;
  using Pairs = PlanePairs<kPlanes>;

 public:
  static constexpr int kStages = kResident ? 4 : kHopper ? 8 : 3;
  static constexpr int kStageBytes = (kResident ? 0 : Shape::kBytesA) + Shape::kBytesB;

  __device__ explicit ProductLoader(std::uint32_t stages) : stages_(stages) {}

  __device__ std::uint32_t stage_b(int stage) const { return stages_ + stage * kStageBytes; }
  __device__ std::uint32_t stage_a(int stage) const { return stage_b(stage) + Shape::kBytesB; }

  template <class Make>
  __device__ __forceinline__ void start(int count, Make& make) {
    item_ = 0;
    step_ = 0;
    pair_ = 0;
    if (count > 0) start_item(make(0));
  }

  /// Starts the loads of the next step, if there is one, and ends their group.
  template <class Make>
  __device__ __forceinline__ void load_next(int stage, int count, Make& make) {
    // An item without steps loads nothing and is passed over.
    while (item_ < count && step_ == loading_.steps) {
      step_ = 0;
      if (loading_.steps == 0 || ++pair_ == Pairs::kCount) {
        pair_ = 0;
        if (++item_ == count) break;
        start_item(make(item_));
      } else {
        start_item(loading_);
      }
    }
    if (item_ < count) {
      if constexpr (!kResident) {
        load<kInnerA, Shape::kRows>(stage_a(stage), from_a_, loading_.a);
        from_a_ += kInnerA ? kStep : kStep * loading_.a.stride;
      }
      load<kInnerB, Shape::kColumns>(stage_b(stage), from_b_, loading_.b);
      from_b_ += kInnerB ? kStep : kStep * loading_.b.stride;
      ++step_;
    }
    commit_copies();
  }

 private:
  static constexpr __device__ int first_of(bool inner, int width) {
    // Threads along the contiguous axis: 4 pieces of a row of 32 k, or width / 8 pieces of one k.
    return inner ? 4 : width / 8;
  }
  template <bool kInner, int kWidth, bool kIsB>
  static __device__ __forceinline__ std::int64_t offset(std::int64_t stride) {
    constexpr int kAlong = first_of(kInner, kWidth);
    const int tid = static_cast<int>(threadIdx.x);
    const int down = tid / kAlong;
    return (kIsB && kInner ? Shape::loaded_row(down) : down) * stride + (tid % kAlong) * 8;
  }

  __device__ __forceinline__ void start_item(const Product<Element>& product) {
    loading_ = product;
    const Operand<Element>& a = loading_.a;
    const Operand<Element>& b = loading_.b;
    from_a_ = a.data + Pairs::a(pair_) * a.plane + offset<kInnerA, Shape::kRows, false>(a.stride);
    from_b_ = b.data + Pairs::b(pair_) * b.plane + offset<kInnerB, Shape::kColumns, true>(b.stride);
  }

  template <bool kInner, int kWidth>
  static __device__ __forceinline__ void load(std::uint32_t to, const Element* from,
                                              const Operand<Element>& operand) {
    const int tid = static_cast<int>(threadIdx.x);
    if constexpr (kInner) {
      const int row = tid / 4;
      const std::uint32_t at = to + row * 64 + ((tid % 4) ^ (row / 2 % 4)) * 16;
#pragma unroll
      for (int i = 0; i < kWidth / 64; ++i) {
        copy_async(at + i * 64 * 64, from + i * 64 * operand.stride);
      }
    } else {
      constexpr int kAlong = kWidth / 8;
      constexpr int kDown = kThreads / kAlong;
      const int piece = tid % kAlong;
      const int k = tid / kAlong;
      const std::uint32_t at =
          to + piece / 8 * (kStep * 128) + k * 128 + ((piece % 8) ^ (k % 8)) * 16;
      if (piece * 8 < operand.limit) {
#pragma unroll
        for (int i = 0; i < kStep / kDown; ++i) {
          copy_async(at + i * kDown * 128, from + i * kDown * operand.stride);
        }
      }
    }
  }

  std::uint32_t stages_;
  Product<Element> loading_;
  const Element* from_a_ = nullptr;
  const Element* from_b_ = nullptr;
  int item_ = 0;
  int step_ = 0;
  int pair_ = 0;
};

/// The engine of one kernel phase; kSums: the sums over k of a are offered.
template <class Element, int kPlanes, bool kHopper, bool kInnerA, bool kInnerB, bool kResident,
          bool kSums>
class ProductEngine {
  using Shape = Tile<Element, kHopper>;
  using Real = typename Shape::Real;
  using Pairs = PlanePairs<kPlanes>;
  using Loader = ProductLoader<Element, kPlanes, kHopper, kInnerA, kInnerB, kResident>;
  static constexpr int kStages = Loader::kStages;
  static constexpr int kOnesBytes = kHopper && kSums ? 1024 : 0;

 public:
  static constexpr int kSharedBytes =
      Shape::kTensorCores ? kStages * Loader::kStageBytes + kOnesBytes : 0;

  /// `stages` has kSharedBytes; `resident` is where a lies if it is resident.
  __device__ ProductEngine(unsigned char* stages, const unsigned char* resident)
      : loader_(shared_address(stages)),
        ones_(shared_address(stages) + kStages * Loader::kStageBytes),
        resident_(shared_address(resident)) {
    if constexpr (kHopper && kSums) {
      // 512 bytes of ones, and of zeros for the pairs of planes whose b is not the first.
      const std::uint32_t one = std::is_same_v<Element, __nv_bfloat16> ? 0x3F803F80u : 0x3C003C00u;
      const std::uint32_t word = threadIdx.x < 128 ? one : 0u;
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(ones_ + threadIdx.x * 4), "r"(word) : "memory");
      publish_shared();
    }
  }

  /// For items 0 .. count - 1 of this block: make(item) gives the product, begin(item, tile) what it is added
  /// to, finish(item, tile, sums) takes the result; `ready()` runs once, when the first loads are under way.
  template <class Make, class Ready, class Begin, class Finish>
  __device__ __forceinline__ void run(int count, Make make, Ready ready, Begin begin,
                                      Finish finish) {
    if constexpr (!Shape::kTensorCores) {
      ready();
      run_plainly(count, make, begin, finish);
    } else {
      // With warpgroup products one step may still be read while the next is issued.
      constexpr int kAhead = kHopper ? kStages - 2 : kStages - 1;
      loader_.start(count, make);
      for (int s = 0; s < kAhead; ++s) loader_.load_next(s, count, make);
      ready();
      int stage = 0;
      for (int item = 0; item < count; ++item) {
        const Product<Element> product = make(item);
        Shape tile;
        begin(item, tile);
        Real sums[Shape::kM * 4] = {};
        const auto arrive = [&] {
          wait_copies<kAhead - 1>();
          if constexpr (kHopper) publish_shared();
          __syncthreads();
        };
        const auto prefetch = [&] { loader_.load_next((stage + kAhead) % kStages, count, make); };
        if constexpr (kHopper) {
          if (kSums && product.sums) {
            run_warpgroup<256, kSums>(product, stage, arrive, prefetch, tile, sums);
          } else if (product.columns > 128) {
            run_warpgroup<256>(product, stage, arrive, prefetch, tile, sums);
          } else if (product.columns > 64) {
            run_warpgroup<128>(product, stage, arrive, prefetch, tile, sums);
          } else if (product.columns > 32) {
            run_warpgroup<64>(product, stage, arrive, prefetch, tile, sums);
          } else {
            run_warpgroup<32>(product, stage, arrive, prefetch, tile, sums);
          }
        } else {
          run_warps(product, stage, arrive, prefetch, tile, sums);
        }
        finish(item, tile, sums);
      }
      wait_copies<0>();
      __syncthreads();
    }
  }

 private:
  template <int N, bool kWithSums = false, class Arrive, class Prefetch>
  __device__ __forceinline__ void run_warpgroup(const Product<Element>& product, int& stage,
                                                Arrive& arrive, Prefetch& prefetch, Shape& tile,
                                                Real (&sums)[Shape::kM * 4]) {
    const int group = static_cast<int>(threadIdx.x) / 128;
    const int total = product.steps * Pairs::kCount;
    int in_pair = 0;
    int pair = 0;
    for (int s = 0; s < total; ++s) {
      arrive();
      const std::uint32_t a =
          (kResident ? resident_ + s * Shape::kBytesA : loader_.stage_a(stage)) +
          group * (kInnerA ? 64 * 64 : kStep * 128);
      const std::uint32_t b = loader_.stage_b(stage);
      const std::uint64_t about_a = kInnerA ? describe_inner(a) : describe_outer(a);
      const std::uint64_t about_b = kInnerB ? describe_inner(b) : describe_outer(b);
      pin(tile.value);
      begin_products();
#pragma unroll
      for (int half = 0; half < kStep / 16; ++half) {
        const std::uint64_t at_a = about_a + half * (kInnerA ? 32 >> 4 : 2048 >> 4);
        const std::uint64_t at_b = about_b + half * (kInnerB ? 32 >> 4 : 2048 >> 4);
        warpgroup_product<Element, N, !kInnerA, !kInnerB>(tile.value, at_a, at_b, 1);
        if constexpr (kWithSums) {
          const std::uint32_t row = ones_ + (Pairs::b(pair) == 0 ? 0 : 512);
          warpgroup_product<Element, 8, !kInnerA, false>(sums, at_a, describe_inner(row), 1);
        }
      }
      commit_products();
      prefetch();
      wait_products<1>();
      stage = (stage + 1) % kStages;
      if (++in_pair == product.steps) {
        in_pair = 0;
        ++pair;
      }
    }
    wait_products<0>();
    pin(tile.value);
    pin(sums);
  }

  template <class Arrive, class Prefetch>
  __device__ __forceinline__ void run_warps(const Product<Element>& product, int& stage,
                                            Arrive& arrive, Prefetch& prefetch, Shape& tile,
                                            Real (&sums)[Shape::kM * 4]) {
    const int total = product.steps * Pairs::kCount;
    const int turns = (product.columns - Shape::warp_column() * 16 + 63) / 64;
    int in_pair = 0;
    int pair = 0;
    for (int s = 0; s < total; ++s) {
      arrive();
      prefetch();
      const bool with_sums =
          kSums && product.sums && Shape::warp_column() == 0 && Pairs::b(pair) == 0;
      const std::uint32_t b = loader_.stage_b(stage);
      const std::uint32_t a = kResident ? resident_ + s * Shape::kBytesA : loader_.stage_a(stage);
      if (turns >= Shape::kN / 2) {
        multiply<true>(a, b, turns, with_sums, tile, sums);
      } else {
        multiply<false>(a, b, turns, with_sums, tile, sums);
      }
      stage = (stage + 1) % kStages;
      if (++in_pair == product.steps) {
        in_pair = 0;
        ++pair;
      }
    }
  }

  template <bool kFull>
  __device__ __forceinline__ void multiply(std::uint32_t a, std::uint32_t b, int turns,
                                           bool with_sums, Shape& tile,
                                           Real (&sums)[Shape::kM * 4]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int half = 0; half < kStep / 16; ++half) {
      std::uint32_t fragments[Shape::kM][4];
#pragma unroll
      for (int m = 0; m < Shape::kM; ++m) {
        const int first = (Shape::warp_row() * Shape::kM + m) * 16;
        if constexpr (kInnerA) {
          const int row = first + lane % 16;
          load_matrices(fragments[m], a + row * 64 + ((half * 2 + lane / 16) ^ (row / 2 % 4)) * 16);
        } else {
          const int piece = first / 8 + lane / 8 % 2;
          const int k = half * 16 + lane % 8 + lane / 16 * 8;
          load_matrices_transposed(
              fragments[m], a + piece / 8 * (kStep * 128) + k * 128 + ((piece % 8) ^ (k % 8)) * 16);
        }
      }
      if constexpr (kSums) {
        if (with_sums) {
          constexpr std::uint32_t kOnes =
              std::is_same_v<Element, __nv_bfloat16> ? 0x3F803F80u : 0x3C003C00u;
#pragma unroll
          for (int m = 0; m < Shape::kM; ++m) {
            multiply_add<Element>(&sums[4 * m], fragments[m], kOnes, kOnes);
          }
        }
      }
#pragma unroll
      for (int turn = 0; turn < Shape::kN / 2; ++turn) {
        if (!kFull && turn >= turns) break;
        const int first = (turn * Shape::kWarpColumns + Shape::warp_column()) * 16;
        std::uint32_t columns[4];
        if constexpr (kInnerB) {
          const int row = first + lane % 8 + lane / 16 * 8;
          load_matrices(columns, b + row * 64 + ((half * 2 + lane / 8 % 2) ^ (row / 2 % 4)) * 16);
        } else {
          const int piece = first / 8 + lane / 16;
          const int k = half * 16 + lane % 16;
          load_matrices_transposed(
              columns, b + piece / 8 * (kStep * 128) + k * 128 + ((piece % 8) ^ (k % 8)) * 16);
        }
#pragma unroll
        for (int m = 0; m < Shape::kM; ++m) {
          Real* c = &tile.value[(m * Shape::kN + 2 * turn) * 4];
          multiply_add<Element>(c, fragments[m], columns[0], columns[1]);
          multiply_add<Element>(c + 4, fragments[m], columns[2], columns[3]);
        }
      }
    }
  }

  template <class Make, class Begin, class Finish>
  __device__ __forceinline__ void run_plainly(int count, Make& make, Begin& begin, Finish& finish) {
    const auto read = [](const Operand<Element>& x, bool inner, int i, int k) -> Real {
      if (!inner && i >= x.limit) return Real(0);
      return static_cast<Real>(inner ? x.data[i * x.stride + k] : x.data[k * x.stride + i]);
    };
    for (int item = 0; item < count; ++item) {
      const Product<Element> product = make(item);
      Shape tile;
      begin(item, tile);
      Real sums[Shape::kM * 4] = {};
      for (int k = 0; k < product.steps * kStep; ++k) {
        Real b[Shape::kOwnColumns];
#pragma unroll
        for (int j = 0; j < Shape::kOwnColumns; ++j) {
          const int column = Shape::column(j);
          b[j] = column < product.columns ? read(product.b, kInnerB, column, k) : Real(0);
        }
#pragma unroll
        for (int i = 0; i < Shape::kOwnRows; ++i) {
          const Real a = read(product.a, kInnerA, Shape::row(i), k);
#pragma unroll
          for (int j = 0; j < Shape::kOwnColumns; ++j) tile.at(i, j) += a * b[j];
          sums[i / 2 * 4 + i % 2 * 2] += a;
        }
      }
      finish(item, tile, sums);
    }
    __syncthreads();
  }

  Loader loader_;
  std::uint32_t ones_;
  std::uint32_t resident_;
};

}  // namespace transducer::cuda
