// SPDX-License-Identifier: Apache-2.0
#include "cuda/joint.hpp"
#include "cuda/joint_launch.cuh"

namespace transducer::cuda {

TX_JOINT_INSTANCE(extern, __nv_bfloat16, 1, false);
TX_JOINT_INSTANCE(extern, __nv_bfloat16, 2, false);
TX_JOINT_INSTANCE(extern, __nv_bfloat16, 3, false);
TX_JOINT_INSTANCE(extern, __half, 1, false);
TX_JOINT_INSTANCE(extern, double, 1, false);
#ifdef TX_CUDA_HOPPER
TX_JOINT_INSTANCE(extern, __nv_bfloat16, 1, true);
TX_JOINT_INSTANCE(extern, __nv_bfloat16, 2, true);
TX_JOINT_INSTANCE(extern, __nv_bfloat16, 3, true);
TX_JOINT_INSTANCE(extern, __half, 1, true);
#endif

namespace {

/// Whether the build has warpgroup products and the current device runs them. The one place where the
/// architecture is chosen.
bool on_hopper() {
#ifdef TX_CUDA_HOPPER
  int device = 0;
  int major = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
             "cudaDeviceGetAttribute");
  return major == 9;
#else
  return false;
#endif
}

/// Calls launch<Element, planes, hopper>() for the type the products run in.
template <class Real, class Launch>
void in_product_type(const JointSource& source, Launch launch) {
  const auto choose = [&]<class Element, int kPlanes>() {
#ifdef TX_CUDA_HOPPER
    if (on_hopper()) {
      launch.template operator()<Element, kPlanes, true>();
      return;
    }
#endif
    launch.template operator()<Element, kPlanes, false>();
  };
  if constexpr (std::is_same_v<Real, double>) {
    launch.template operator()<double, 1, false>();
  } else {
    const DType dtype = source.weight.dtype;
    const bool same = source.encoder.dtype == dtype && source.predictor.dtype == dtype;
    if (same && dtype == DType::bfloat16) {
      choose.template operator()<__nv_bfloat16, 1>();
    } else if (same && dtype == DType::float16) {
      choose.template operator()<__half, 1>();
    } else if (source.precision == Precision::highest) {
      choose.template operator()<__nv_bfloat16, 3>();
    } else {
      choose.template operator()<__nv_bfloat16, 2>();
    }
  }
}

}  // namespace

template <class Real>
void joint_scores(const CallView& call, const JointSource& source, const LatticeView<Real>& lattice,
                  std::span<std::byte> scratch, Stream stream) {
  in_product_type<Real>(source, [&]<class Element, int kPlanes, bool kHopper>() {
    launch_joint_scores<Element, kPlanes, kHopper>(call, source, lattice, scratch, stream);
  });
}

template <class Real>
void joint_gradient(const CallView& call, const JointSource& source,
                    const LatticeView<Real>& lattice, const LossResult& result,
                    std::span<std::byte> scratch, Stream stream) {
  in_product_type<Real>(source, [&]<class Element, int kPlanes, bool kHopper>() {
    launch_joint_gradient<Element, kPlanes, kHopper>(call, source, lattice, result, scratch,
                                                     stream);
  });
}

template void joint_scores<float>(const CallView&, const JointSource&, const LatticeView<float>&,
                                  std::span<std::byte>, Stream);
template void joint_scores<double>(const CallView&, const JointSource&, const LatticeView<double>&,
                                   std::span<std::byte>, Stream);
template void joint_gradient<float>(const CallView&, const JointSource&, const LatticeView<float>&,
                                    const LossResult&, std::span<std::byte>, Stream);
template void joint_gradient<double>(const CallView&, const JointSource&,
                                     const LatticeView<double>&, const LossResult&,
                                     std::span<std::byte>, Stream);

}  // namespace transducer::cuda
