// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous products of a warpgroup on Hopper (compute capability 9.0): d (64 x N, in registers) from a and b in
// shared memory. PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate".
//
// Warp w of the group owns rows 16 w .. 16 w + 15, as in m16n8k16; d[4 n + e] is element e of columns 8 n ..
// Shared memory: k innermost in rows of 64 bytes, swizzled by 64; else rows of 128 bytes of one k, swizzled by 128.
#pragma once

#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>

namespace transducer::cuda {

/// Describes an operand with k innermost: rows of kStep = 32 elements, one after the other.
__device__ __forceinline__ std::uint64_t describe_inner(std::uint32_t address) {
  constexpr std::uint64_t kSwizzle64 = std::uint64_t{2} << 62;
  constexpr std::uint64_t kEightRows = std::uint64_t{512 >> 4} << 32;
  return kSwizzle64 | kEightRows | (std::uint64_t{1} << 16) | ((address & 0x3FFFF) >> 4);
}

/// Describes an operand with k outermost: groups of 64 elements, each kStep rows of 128 bytes.
__device__ __forceinline__ std::uint64_t describe_outer(std::uint32_t address) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  constexpr std::uint64_t kEightRows = std::uint64_t{1024 >> 4} << 32;
  constexpr std::uint64_t kGroup = std::uint64_t{4096 >> 4} << 16;
  return kSwizzle128 | kEightRows | kGroup | ((address & 0x3FFFF) >> 4);
}

__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/// Makes this thread's ordinary and asynchronous-copy writes to shared memory visible to products.
__device__ __forceinline__ void publish_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// Keeps the compiler from moving uses of d across this point.
template <int N>
__device__ __forceinline__ void pin(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// One instruction for each width and type: the operands of inline assembly are numbered by hand. TX_D4 to TX_D64
// name the registers of d from i on.
#define TX_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TX_D16(i) TX_D4(i), TX_D4(i + 4), TX_D4(i + 8), TX_D4(i + 12)
#define TX_D32(i) TX_D16(i), TX_D16(i + 16)
#define TX_D64(i) TX_D32(i), TX_D32(i + 32)
#define TX_PRODUCT(WIDTH, TYPE, LIST, A, B, ADD, TRANSPOSE_A, TRANSPOSE_B, ...)                    \
  asm volatile("{.reg .pred p;\nsetp.ne.b32 p, " ADD                                               \
               ", 0;\nwgmma.mma_async.sync.aligned.m64n" WIDTH "k16.f32." TYPE "." TYPE " " LIST A \
               ", " B ", p, 1, 1, " TRANSPOSE_A ", " TRANSPOSE_B ";}"                              \
               : __VA_ARGS__                                                                       \
               : "l"(a), "l"(b), "r"(add), "n"(kTransposeA), "n"(kTransposeB))
#define TX_LIST8 "{%0, %1, %2, %3}, "
#define TX_LIST32 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
#define TX_LIST64                                                           \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
#define TX_LIST128                                                                   \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "          \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
#define TX_LIST256                                                                               \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                      \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "   \
  "%127}, "
#define TX_PRODUCTS(TYPE)                                                                  \
  if constexpr (N == 8) {                                                                  \
    TX_PRODUCT("8", TYPE, TX_LIST8, "%4", "%5", "%6", "%7", "%8", TX_D4(0));               \
  }                                                                                        \
  if constexpr (N == 32) {                                                                 \
    TX_PRODUCT("32", TYPE, TX_LIST32, "%16", "%17", "%18", "%19", "%20", TX_D16(0));       \
  }                                                                                        \
  if constexpr (N == 64) {                                                                 \
    TX_PRODUCT("64", TYPE, TX_LIST64, "%32", "%33", "%34", "%35", "%36", TX_D32(0));       \
  }                                                                                        \
  if constexpr (N == 128) {                                                                \
    TX_PRODUCT("128", TYPE, TX_LIST128, "%64", "%65", "%66", "%67", "%68", TX_D64(0));     \
  }                                                                                        \
  if constexpr (N == 256) {                                                                \
    TX_PRODUCT("256", TYPE, TX_LIST256, "%128", "%129", "%130", "%131", "%132", TX_D64(0), \
               TX_D64(64));                                                                \
  }

/// d (+)= a b; d is overwritten unless `add`.
template <class Element, int N, int kTransposeA, int kTransposeB, int M>
__device__ __forceinline__ void warpgroup_product(float (&d)[M], std::uint64_t a, std::uint64_t b,
                                                  int add) {
  static_assert(M >= N / 2);
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    TX_PRODUCTS("bf16")
  } else {
    TX_PRODUCTS("f16")
  }
}

#undef TX_D4
#undef TX_D16
#undef TX_D32
#undef TX_D64
#undef TX_PRODUCT
#undef TX_PRODUCTS
#undef TX_LIST8
#undef TX_LIST32
#undef TX_LIST64
#undef TX_LIST128
#undef TX_LIST256

}  // namespace transducer::cuda
