// SPDX-License-Identifier: Apache-2.0
#include "cuda/joint_launch.cuh"

namespace transducer::cuda {

TX_JOINT_INSTANCE(, __half, 1, false);

}  // namespace transducer::cuda
