// SPDX-License-Identifier: Apache-2.0
//
// float32 with Precision::highest.
#include "cuda/joint_launch.cuh"

namespace transducer::cuda {

TX_JOINT_INSTANCE(, __nv_bfloat16, 3, true);

}  // namespace transducer::cuda
