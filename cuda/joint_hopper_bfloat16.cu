// SPDX-License-Identifier: Apache-2.0
#include "cuda/joint_launch.cuh"

namespace transducer::cuda {

TX_JOINT_INSTANCE(, __nv_bfloat16, 1, true);

}  // namespace transducer::cuda
